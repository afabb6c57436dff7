//go:build linux

package linux

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/base/memory"
	"github.com/clawjail/clawjail/internal/jail"
)

// The jails of a tenant are in a group of the tenant's, clawjail-<id>/tenant-<tenant>, which bounds the memory and the tasks that they
// take together. Processor time needs no bound: all groups of tenants have the same weight, so that each gets the same when there is
// too little of it, however many jails are in it. Jails of no tenant lie beside these groups, and so do jails that were made before
// there were any.

// tenantPrefix begins the names of tenants' groups. No jail has a dash in its name.
const tenantPrefix = "tenant-"

func homeOf(tenant string) string {
	if tenant == "" {
		return ""
	}
	return tenantPrefix + tenant
}

// tenants is what a Limiter knows of the groups of tenants.
type tenants struct {
	making sync.Mutex // held while groups of tenants are made or removed
	mu     sync.Mutex
	// homes are the groups that those of jails are in, below the installation's. Guarded by mu, as is share.
	homes map[string]string
	share func(whole int64) int64
}

// Divide says how much of a whole the jails of a tenant may take together. It holds at once for what is made from now on. Where a
// tenant has more already, nothing of it is ended: what the kernel can take back is taken, the tenant gets no more, and each
// further Divide brings its bound down to what it has left.
func (l *Limiter) Divide(_ context.Context, share func(whole int64) int64) error {
	l.mu.Lock()
	l.share = share
	l.mu.Unlock()
	homes, err := l.tenantGroups()
	errs := []error{err}
	for _, home := range homes {
		l.making.Lock()
		l.removeEmpty(home) // a host daemon that was killed may have left one
		l.making.Unlock()
		if err := l.bound(home); err != nil && !gone(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// home is the group that a jail's is in, below the installation's own. It is looked for where it is not known, as after a
// restart of the host daemon.
func (l *Limiter) home(name string) string {
	l.mu.Lock()
	home, known := l.homes[name]
	l.mu.Unlock()
	if known {
		return home
	}
	places, err := l.places(name)
	if err != nil || len(places) == 0 {
		return "" // there is none, or the next look says what is wrong
	}
	l.setHome(name, places[0])
	return places[0]
}

func (l *Limiter) setHome(name, home string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.homes[name] = home
}

// leave forgets a jail whose groups are gone, and removes its tenant's when it was the last one there.
func (l *Limiter) leave(name string) {
	l.mu.Lock()
	home := l.homes[name]
	delete(l.homes, name)
	l.mu.Unlock()
	if home != "" {
		l.making.Lock()
		defer l.making.Unlock()
		l.removeEmpty(home)
	}
}

// removeEmpty removes the group of a tenant where nothing is in it. The caller holds making.
func (l *Limiter) removeEmpty(home string) {
	for _, h := range l.hierarchies {
		_ = unix.Rmdir(filepath.Join(h.dir, l.base(), home)) // it has jails, or is busy for a moment: Divide tries again
	}
}

// places are where there are groups of that name: in the installation's own, or in those of tenants.
func (l *Limiter) places(name string) (out []string, err error) {
	homes, err := l.tenantGroups()
	if err != nil {
		return nil, err
	}
	for _, home := range append(homes, "") {
		if slices.ContainsFunc(l.hierarchies, func(h hierarchy) bool {
			_, err := os.Lstat(filepath.Join(h.dir, l.base(), home, name))
			return err == nil
		}) {
			out = append(out, home)
		}
	}
	return out, nil
}

// tenantGroups lists the groups of tenants in whichever hierarchy they are.
func (l *Limiter) tenantGroups() (out []string, err error) {
	for _, h := range l.hierarchies {
		names, err := groupsIn(filepath.Join(h.dir, l.base()))
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			if strings.HasPrefix(name, tenantPrefix) && !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	return out, nil
}

// groupsIn lists the groups in a group, by name. One that is not there has none.
func groupsIn(dir string) (out []string, err error) {
	entries, err := os.ReadDir(dir)
	if gone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list control groups: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// bound sets what the jails of a tenant may take together.
func (l *Limiter) bound(home string) error {
	l.mu.Lock()
	share := l.share
	l.mu.Unlock()
	host, err := memory.Host()
	if err != nil {
		return err
	}
	if err := errors.Join(l.boundMemory(home, host, share), l.boundTasks(home, share)); err != nil {
		return fmt.Errorf("bound the tenant %s: %w", strings.TrimPrefix(home, tenantPrefix), err)
	}
	return nil
}

// above is the group of a tenant in a hierarchy.
func (l *Limiter) above(h hierarchy, home string) string { return filepath.Join(h.dir, l.base(), home) }

const (
	// memorySlack is room for what is taken between a look at a group and its bound, which would end something if it were below.
	memorySlack = 16 << 20
	// unlimitedV1 is less than what stands in a group of version 1 that has no limit, and more than any can take.
	unlimitedV1 = 1 << 62
)

// boundMemory bounds the memory of a group of a tenant.
func (l *Limiter) boundMemory(home string, host int64, share func(int64) int64) error {
	dir, limit, usage, unlimited := l.above(l.memory, home), "memory.limit_in_bytes", "memory.usage_in_bytes", "-1"
	if l.memory.unified {
		limit, usage, unlimited = "memory.max", "memory.current", "max"
	}
	now, err := readGroupNumber(dir, limit)
	if err != nil {
		return err
	}
	if now >= unlimitedV1 {
		now = 0
	}
	whole := l.smallest(l.memory, limit, host)
	want := share(whole) &^ int64(os.Getpagesize()-1)
	if share(whole) >= whole {
		if now == 0 {
			return nil
		}
		return writeGroupText(dir, limit, unlimited)
	}
	if now == want {
		return nil
	}
	used, err := readGroupNumber(dir, usage)
	if err != nil {
		return err
	}
	if l.memory.unified && used > want {
		// Going beyond memory.high ends nothing, as going beyond memory.max does: the kernel takes back what it can.
		if err := errors.Join(writeGroupFile(dir, "memory.high", want), writeGroupText(dir, "memory.high", "max")); err != nil {
			return err
		}
		if used, err = readGroupNumber(dir, usage); err != nil {
			return err
		}
		want = max(want, used+memorySlack)
	}
	// A group of version 1 refuses a limit that is below what is left after the kernel has taken back what it can.
	err = writeGroupFile(dir, limit, want)
	if !l.memory.unified && errors.Is(err, unix.EBUSY) {
		if used, err = readGroupNumber(dir, usage); err == nil {
			err = writeGroupFile(dir, limit, max(want, used+memorySlack))
		}
	}
	return err
}

// boundTasks bounds the tasks of a group of a tenant. Those that are there already go on.
func (l *Limiter) boundTasks(home string, share func(int64) int64) error {
	var whole int64
	for _, file := range []string{"pid_max", "threads-max"} {
		n, err := readGroupNumber("/proc/sys/kernel", file)
		if err != nil {
			return err
		}
		if whole == 0 || n < whole {
			whole = n
		}
	}
	whole = l.smallest(l.pids, "pids.max", whole)
	want := "max"
	if n := share(whole); n < whole {
		want = strconv.FormatInt(n, 10)
	}
	dir := l.above(l.pids, home)
	if now, err := readGroupText(dir, "pids.max"); err != nil || now == want {
		return err
	}
	return writeGroupText(dir, "pids.max", want)
}

// smallest is the smallest of what the host has and what the groups above those of tenants may take.
func (l *Limiter) smallest(h hierarchy, file string, host int64) int64 {
	dir := h.dir
	for _, step := range append([]string{""}, strings.Split(strings.TrimPrefix(l.base(), "/"), "/")...) {
		dir = filepath.Join(dir, step)
		// A file that is not there: the root has no limits.
		if n, err := readGroupNumber(dir, file); err == nil && n > 0 {
			host = min(host, n)
		}
	}
	return host
}

// Unlinked is how much the jails of each tenant have on a file system in files that are open and have no name any more, in bytes:
// a look through the folders does not find them.
func (l *Limiter) Unlinked(device uint64) (map[string]int64, error) {
	homes, err := l.tenantGroups()
	if err != nil {
		return nil, err
	}
	out := map[string]int64{}
	for _, home := range homes {
		pids, err := readPIDs(l.above(l.pids, home))
		if err != nil {
			return nil, err
		}
		seen := map[uint64]bool{}
		for _, pid := range pids {
			dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
			files, err := os.ReadDir(dir)
			if err != nil {
				continue // it has ended
			}
			for _, f := range files {
				var st unix.Stat_t
				if unix.Stat(filepath.Join(dir, f.Name()), &st) == nil && st.Nlink == 0 && st.Dev == device && !seen[st.Ino] {
					seen[st.Ino] = true
					out[strings.TrimPrefix(home, tenantPrefix)] += st.Blocks * 512
				}
			}
		}
	}
	return out, nil
}

// memoryHit says which limit of memory it was that the kernel ended something of a jail for: the tenant's where that was reached
// and the jail's own was not.
func (c *counters) memoryHit() jail.LimitName {
	l, home := c.limiter, c.limiter.home(c.name)
	if home == "" {
		return jail.LimitMemory
	}
	var own, tenants int64
	var err error
	if l.memory.unified {
		own = c.key(l.memory, "memory.events", "oom")
		tenants, err = readGroupKey(l.above(l.memory, home), "memory.events.local", "oom")
	} else {
		own = c.number(l.memory, "memory.failcnt")
		tenants, err = readGroupNumber(l.above(l.memory, home), "memory.failcnt")
	}
	if c.keep(tenants, err) > 0 && own == 0 {
		return jail.LimitTenantMemory
	}
	return jail.LimitMemory
}

// tasksHit says which limit of tasks a jail ran into; "" is none. Kernels count a refusal in the group of the refused process or,
// of version 2 since Linux 6.11, in the group whose limit it was.
func (c *counters) tasksHit() jail.LimitName {
	l, home := c.limiter, c.limiter.home(c.name)
	refused := l.refusals(c.name) > 0
	if home != "" {
		tenants, err := readGroupKey(l.above(l.pids, home), "pids.events", "max")
		tenants = c.keep(tenants, err)
		peak, err := readGroupNumber(l.group(l.pids, c.name), "pids.peak") // since Linux 6.9
		if below := err == nil && peak < c.number(l.pids, "pids.max"); refused && below || !refused && tenants > 0 {
			return jail.LimitTenantTasks
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			c.keep(0, err)
		}
	}
	if refused {
		return jail.LimitTasks
	}
	return ""
}
