package ringlog

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Write appends. Data that the disk does not take is dropped and counted, because a program that prints must not hang on a full disk:
// the only error is that the log is closed.
func (l *Log) Write(p []byte) (int, error) {
	l.writing.Lock()
	defer l.writing.Unlock()
	total := len(p)
	for len(p) > 0 {
		if l.isClosed() {
			return total - len(p), fs.ErrClosed
		}
		n, err := 0, l.prepare()
		if err == nil {
			n, err = l.current.WriteAt(p[:min(int64(len(p)), l.room)], l.at())
			l.grew(int64(n))
			p = p[n:]
		}
		if err != nil {
			l.drop(int64(len(p)))
			break
		}
	}
	return total, nil
}

func (l *Log) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// prepare makes the newest segment have room. An empty one is renamed, so that its name stays the end of the log also where the disk
// has no room for another file. l.writing is held, as for all that follow.
func (l *Log) prepare() error {
	if l.current != nil && l.room > 0 {
		return nil
	}
	s := segment{start: l.End()}
	if n := len(l.pieces); l.current != nil && l.pieces[n-1].size == 0 {
		if err := l.root.Rename(l.pieces[n-1].name(), s.name()); err != nil {
			return err
		}
		l.mu.Lock()
		l.pieces[n-1] = s
		l.mu.Unlock()
		l.room = l.options.Segment
		return nil
	}
	f, err := l.root.OpenFile(s.name(), os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	if l.current != nil {
		_ = l.current.Close() // everything is with the kernel, and is not forced to the disk
	}
	l.leaveTimes()
	l.current, l.room = f, l.options.Segment
	l.mu.Lock()
	l.pieces = append(l.pieces, s)
	l.mu.Unlock()
	return nil
}

// at is where the next byte goes in the newest segment's file.
func (l *Log) at() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end - l.pieces[len(l.pieces)-1].start
}

// grew says that n bytes were appended to the newest segment, and lets go what need not be kept.
func (l *Log) grew(n int64) {
	if n <= 0 {
		return
	}
	l.note()
	l.room -= n
	var old []segment
	l.mu.Lock()
	l.pieces[len(l.pieces)-1].size += n
	l.end += n
	have := int64(0)
	for _, s := range l.pieces {
		have += s.size
	}
	for len(l.pieces) > 1 && (have-l.pieces[0].size >= l.options.Keep || len(l.pieces) > maxSegments) {
		have -= l.pieces[0].size
		old = append(old, l.pieces[0])
		l.pieces = l.pieces[1:]
	}
	l.announce()
	l.mu.Unlock()
	for _, s := range old {
		_ = l.root.Remove(s.name()) // one that stays is taken for the oldest by the next Open, and goes then
		_ = l.root.Remove(s.timesName())
	}
}

// drop leaves n bytes out. The data behind them begins a segment, whose name says where it is: to the next Open as well, when no
// data comes.
func (l *Log) drop(n int64) {
	if n <= 0 {
		return
	}
	l.mu.Lock()
	l.end += n
	l.dropped += n
	l.announce()
	l.mu.Unlock()
	l.room = 0
	_ = l.prepare() // the next Write and Close try again
}

// discard reads what the disk does not take. It does not wait.
func (l *Log) discard(fd int, limit int) (int64, error) {
	waste := make([]byte, min(limit, 64<<10))
	n, err := unix.Read(fd, waste)
	if n > 0 {
		l.drop(int64(n))
	}
	if errors.Is(err, unix.EINTR) {
		return 0, nil
	}
	return int64(max(n, 0)), err
}
