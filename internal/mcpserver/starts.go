package mcpserver

import "time"

// maxCrashes is how many crashes within the window are one too many.
const maxCrashes = 4

// starts decides when a server that has crashed may be started again: after pauses that double, and after a few crashes
// within the window not until as long again has passed.
type starts struct {
	first, window time.Duration
	crashes       []time.Time // the newest maxCrashes, oldest first
}

// crashed says that the server has ended without being told to, or did not start.
func (s *starts) crashed(at time.Time) {
	s.crashes = append(s.crashes, at)
	s.crashes = s.crashes[max(0, len(s.crashes)-maxCrashes):]
}

// quiet says that no crash is of any interest any more.
func (s *starts) quiet(now time.Time) bool {
	return len(s.crashes) == 0 || now.Sub(s.crashes[len(s.crashes)-1]) >= s.window
}

// next says how long to wait before the next start, or until when there is none.
func (s *starts) next(now time.Time) (wait time.Duration, pausedUntil time.Time) {
	recent := 0
	for _, at := range s.crashes {
		if age := now.Sub(at); age < s.window {
			recent++
		}
	}
	if recent == 0 {
		return 0, time.Time{}
	}
	last := s.crashes[len(s.crashes)-1]
	if recent >= maxCrashes {
		return 0, last.Add(s.window)
	}
	return max(0, last.Add(s.first<<(recent-1)).Sub(now)), time.Time{}
}
