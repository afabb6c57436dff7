//go:build linux

package linux

import "path/filepath"

// A program that joins a jail has a group inside the jail's: of version 2 one, which divides no controller, and of version
// 1 one below the controller of tasks alone. All limits stay those of the jail's group.

// divide makes such a group, <jail>/<part>.
func (l *Limiter) divide(group string) error {
	return l.mkdir(l.group(l.pids, group))
}

// joinable lists the groups, one of each hierarchy in use, that a process enters to be in a jail's or in one inside it.
func (l *Limiter) joinable(group string) []string {
	var out []string
	for _, h := range l.used() {
		name := group
		if above := filepath.Dir(group); above != "." && h.dir != l.pids.dir {
			name = above
		}
		out = append(out, l.group(h, name))
	}
	return out
}

// refusals counts how often a jail was refused another task. Most kernels count that where the refused process is, and not
// where the limit is set.
func (l *Limiter) refusals(name string) (n int64) {
	dir := l.group(l.pids, name)
	inside, err := filepath.Glob(filepath.Join(dir, execGroup+"*"))
	if err != nil {
		inside = nil // a malformed pattern, which names of jails do not make
	}
	for _, d := range append(inside, dir) {
		// A file that is not there: the kernel is too old for it, or the group is gone.
		if v, err := readGroupKey(d, "pids.events", "max"); err == nil {
			n += v
		}
	}
	return n
}

// full reports whether a jail has as many tasks as it may have.
func (l *Limiter) full(name string) bool {
	dir := l.group(l.pids, name)
	now, err1 := readGroupNumber(dir, "pids.current")
	limit, err2 := readGroupNumber(dir, "pids.max")
	return err1 == nil && err2 == nil && limit > 0 && now >= limit
}
