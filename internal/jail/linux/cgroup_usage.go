//go:build linux

package linux

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
)

// Usage reports what a jail consumes. The counters of memory and tasks survive its processes until Remove; disk and
// descriptors are those of the processes that are there. A limit on memory or tasks counts as hit from the moment
// the kernel refused something, the others while they are full.
func (l *Limiter) Usage(ctx context.Context, name jail.Name, proc jail.Process) (jail.Usage, error) {
	if err := errors.Join(l.o.check(name), ctx.Err()); err != nil {
		return jail.Usage{}, err
	}
	c := counters{limiter: l, name: string(name)}
	u := c.read()
	if c.err != nil {
		return u, fmt.Errorf("measure jail %s: %w", name, c.err)
	}
	pids, err := l.processes(string(name))
	if err != nil {
		return u, err
	}
	var full bool
	if u.OpenFiles, full = openFiles(pids); full {
		u.Hit = append(u.Hit, jail.LimitFiles)
	}
	if proc.PID == 0 {
		return u, nil
	}
	p, err := openProcess(proc)
	if gone(err) {
		return u, nil
	}
	if err != nil {
		return u, fmt.Errorf("measure jail %s: %w", name, err)
	}
	defer p.Close()
	if u.DiskBytes, full, err = p.diskUsage(); err != nil && !gone(err) {
		return u, fmt.Errorf("measure jail %s: %w", name, err)
	}
	if full {
		u.Hit = append(u.Hit, jail.LimitDisk)
	}
	return u, nil
}

// counters reads the files of a jail's groups and keeps the first errors.
type counters struct {
	limiter *Limiter
	name    string
	err     error
}

func (c *counters) number(h hierarchy, file string) int64 {
	v, err := readGroupNumber(c.limiter.group(h, c.name), file)
	return c.keep(v, err)
}

func (c *counters) key(h hierarchy, file, key string) int64 {
	v, err := readGroupKey(c.limiter.group(h, c.name), file, key)
	return c.keep(v, err)
}

// keep drops the error of a file that is not there: the kernel is too old for it, or the group is gone.
func (c *counters) keep(v int64, err error) int64 {
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !gone(err) {
		c.err = errors.Join(c.err, err)
	}
	return v
}

func (c *counters) read() jail.Usage {
	l := c.limiter
	var u jail.Usage
	var killed int64
	if l.Version() == 2 {
		u.MemoryBytes = c.number(l.memory, "memory.current")
		u.MemoryPeak = c.number(l.memory, "memory.peak")
		u.CPU = time.Duration(c.key(l.cpu, "cpu.stat", "usage_usec")) * time.Microsecond
		killed = c.key(l.memory, "memory.events", "oom_kill")
	} else {
		u.MemoryBytes = c.number(l.memory, "memory.usage_in_bytes")
		u.MemoryPeak = c.number(l.memory, "memory.max_usage_in_bytes")
		if l.cpuacct.dir != "" {
			u.CPU = time.Duration(c.number(l.cpuacct, "cpuacct.usage"))
		}
		killed = c.key(l.memory, "memory.oom_control", "oom_kill")
	}
	u.MemoryPeak = max(u.MemoryPeak, u.MemoryBytes)
	u.Tasks = int(c.number(l.pids, "pids.current"))
	if killed > 0 {
		u.Hit = append(u.Hit, c.memoryHit())
	}
	if hit := c.tasksHit(); hit != "" {
		u.Hit = append(u.Hit, hit)
	}
	return u
}

// openFiles is the largest number of descriptors that one of the processes has, and whether that is all it may have.
// Processes that end meanwhile are left out.
func openFiles(pids []int) (largest int, full bool) {
	for _, pid := range pids {
		dir := "/proc/" + strconv.Itoa(pid)
		entries, err := os.ReadDir(dir + "/fd")
		if err != nil {
			continue
		}
		largest = max(largest, len(entries))
		if text, err := os.ReadFile(dir + "/limits"); err == nil {
			soft, _, ok := parseFileLimit(text)
			full = full || ok && len(entries) >= soft
		}
	}
	return largest, full
}

// diskUsage adds up what is in the writable tmpfs of a jail and in the volume of its state, and reports whether one of them
// is full.
func (p *process) diskUsage() (used int64, full bool, err error) {
	mounts, err := p.mounts()
	if err != nil {
		return 0, false, err
	}
	for _, m := range mounts {
		if m.FSType != "tmpfs" && m.Point != jail.StateDir || m.readOnly() {
			continue
		}
		st, err := p.statfs(m.Point)
		if err != nil {
			return used, full, err
		}
		if st.Blocks == 0 || m.isDeviceNode(p) {
			continue
		}
		used += int64(st.Blocks-st.Bfree) * st.Bsize
		full = full || st.Bavail*100 < st.Blocks || st.Files > 0 && st.Ffree*100 < st.Files
	}
	return used, full, nil
}

// isDeviceNode reports whether a device, and not a folder, is mounted there, as the runtime does to hide a file.
func (m mount) isDeviceNode(p *process) bool {
	var st unix.Stat_t
	fd, err := p.openInside(m.Point)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }() // opened for nothing but its identity
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR
}
