//go:build linux

package linux

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// hierarchy is one mounted tree of control groups.
type hierarchy struct {
	dir         string   // where it is mounted
	unified     bool     // version 2
	controllers []string // that it offers; of version 1 also "name=systemd" and its like
}

func (h hierarchy) has(controller string) bool { return slices.Contains(h.controllers, controller) }

// Limiter bounds jails by control groups, of version 1, 2 or a hybrid of both.
//
// A jail's group is clawjail-<id>/tenant-<tenant>/<name> in every hierarchy that bounds or counts something. It is made and filled
// before the runtime starts, and the runtime only puts the jail's first process into it; the bundle repeats no limit.
// Swap is not given. Where a limit of memory is hit the kernel ends the jail's largest process and not the whole jail,
// alike on both versions, so that a browser survives the loss of one page.
type Limiter struct {
	o           Options
	hierarchies []hierarchy // every one that is mounted: a runtime may have made groups in those that are not used
	// Of the used ones. On version 2 they are all the same, and devices have none.
	memory, cpu, cpuacct, pids, devices hierarchy
	mkdir                               func(path string) error // os.Mkdir, and in tests also what the kernel puts there
	// attach and attached are attachFilter and filterAttached, but in tests without groups of version 2.
	attach   func(group string) error
	attached func(group string) (bool, error)
	tenants
}

// NewLimiter finds out how the host's control groups are laid out.
func NewLimiter(o Options) (*Limiter, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	mounts, err := readMounts("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("find control groups: %w", err)
	}
	l, err := newLimiter(o, mounts, "/")
	if err != nil {
		return nil, fmt.Errorf("find control groups: %w", err)
	}
	return l, nil
}

// newLimiter takes the mounts as those of a host whose root folder is root.
func newLimiter(o Options, mounts []mount, root string) (*Limiter, error) {
	l := &Limiter{o: o, tenants: tenants{homes: map[string]string{}, share: o.Share}, mkdir: func(path string) error { return os.Mkdir(path, 0o755) }, attach: attachFilter, attached: filterAttached}
	for _, m := range mounts {
		h := hierarchy{dir: filepath.Join(root, m.Point)}
		switch m.FSType {
		case "cgroup":
			h.controllers = m.Super // also "rw" and the like, which are no controller's name
		case "cgroup2":
			h.unified = true
			text, err := os.ReadFile(filepath.Join(h.dir, "cgroup.controllers"))
			if err != nil {
				return nil, err
			}
			h.controllers = strings.Fields(string(text))
		default:
			continue
		}
		// A second mount of the same hierarchy, such as a container's, is the same groups once more.
		if !slices.ContainsFunc(l.hierarchies, func(o hierarchy) bool {
			return o.unified == h.unified && slices.Equal(o.controllers, h.controllers)
		}) {
			l.hierarchies = append(l.hierarchies, h)
		}
	}
	var errs []error
	find := func(controller string, required bool) (out hierarchy) {
		for _, h := range l.hierarchies {
			if h.has(controller) {
				return h
			}
		}
		if required {
			errs = append(errs, problem.New(problem.Unsupported,
				"mount the control groups, for example by starting the host with systemd, or enable the controller in the kernel",
				"this host has no control group controller %s", controller))
		}
		return out
	}
	l.memory, l.cpu, l.pids = find("memory", true), find("cpu", true), find("pids", true)
	if l.cpuacct = l.cpu; !l.cpu.unified {
		l.cpuacct = find("cpuacct", false)
	}
	if !l.memory.unified {
		l.devices = find("devices", true)
	}
	return l, errors.Join(errs...)
}

// Version is 1 or 2: which version bounds the jails here.
func (l *Limiter) Version() int {
	if l.memory.unified {
		return 2
	}
	return 1
}

// used lists the hierarchies that a jail's group is made in, each once.
func (l *Limiter) used() []hierarchy {
	var out []hierarchy
	for _, h := range []hierarchy{l.memory, l.cpu, l.cpuacct, l.pids, l.devices} {
		if h.dir != "" && !slices.ContainsFunc(out, func(o hierarchy) bool { return o.dir == h.dir }) {
			out = append(out, h)
		}
	}
	return out
}

// base is the installation's group, as a path below a hierarchy's mount point.
func (l *Limiter) base() string {
	return filepath.Join("/", l.o.CgroupParent, "clawjail-"+string(l.o.Installation))
}

// path is where the group of a jail is, or one inside it, below a hierarchy's mount point.
func (l *Limiter) path(name string) string {
	of, _, _ := strings.Cut(name, "/")
	return filepath.Join(l.base(), l.home(of), name)
}

func (l *Limiter) group(h hierarchy, name string) string { return filepath.Join(h.dir, l.path(name)) }

// Apply makes the jail's groups and sets its limits. It does not take over a group that something runs in.
func (l *Limiter) Apply(ctx context.Context, name jail.Name, tenant string, limits jail.Limits) error {
	err := errors.Join(l.o.check(name), limits.Validate(), ctx.Err())
	if tenant != "" {
		err = errors.Join(err, jail.ValidAgentName(tenant))
	}
	if err != nil {
		return err
	}
	if err := l.apply(string(name), tenant, limits); err != nil {
		return errors.Join(fmt.Errorf("limit jail %s: %w", name, jail.Shortage(err)), l.Remove(context.WithoutCancel(ctx), name))
	}
	return nil
}

func (l *Limiter) apply(name, tenant string, limits jail.Limits) error {
	home := homeOf(tenant)
	if err := l.makeGroups(name, home); err != nil {
		return err
	}
	if home != "" {
		if err := l.bound(home); err != nil {
			return err
		}
	}
	if err := l.filterDevices(name); err != nil {
		return err
	}
	if l.Version() == 2 {
		return setLimitsV2(l.group(l.memory, name), limits)
	}
	return l.setLimitsV1(name, limits)
}

// makeGroups makes the groups of a jail, and the tenant's above them. One of that name that is somewhere else was left by an
// earlier jail.
func (l *Limiter) makeGroups(name, home string) error {
	l.making.Lock()
	defer l.making.Unlock()
	places, err := l.places(name)
	if err != nil {
		return err
	}
	for _, other := range places {
		for _, h := range l.hierarchies {
			dir := filepath.Join(h.dir, l.base(), other, name)
			if err := notInUse(dir); err != nil {
				return err
			}
			if other == home {
				continue
			}
			if err := removeGroup(dir); err != nil {
				return err
			}
		}
	}
	l.setHome(name, home)
	for _, h := range l.used() {
		dir := l.group(h, name)
		err := l.mkdir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			if err = l.makeBase(h, home); err == nil {
				err = l.mkdir(dir)
			}
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

func notInUse(dir string) error {
	pids, err := readPIDs(dir)
	if err == nil && len(pids) > 0 {
		err = fmt.Errorf("process %d runs in %s already: %w", pids[0], dir, jail.ErrBusy)
	}
	return err
}

// makeBase makes the groups above a jail's. Of version 2 a controller has to be enabled for the children in every
// group from the root down.
func (l *Limiter) makeBase(h hierarchy, home string) error {
	dir := h.dir
	steps := strings.Split(strings.TrimPrefix(filepath.Join(l.base(), home), "/"), "/")
	for i := 0; ; i++ {
		if h.unified {
			if err := enableControllers(dir, "memory", "cpu", "pids"); err != nil {
				return err
			}
		}
		if i == len(steps) {
			return nil
		}
		dir = filepath.Join(dir, steps[i])
		if err := l.mkdir(dir); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := countBelow(dir); err != nil {
			return err
		}
	}
}

// countBelow makes a group of memory of version 1 count what the groups below it take. Since Linux 5.11 every group does.
func countBelow(dir string) error {
	text, err := readGroupText(dir, "memory.use_hierarchy")
	if errors.Is(err, fs.ErrNotExist) {
		return nil // of another controller, or of version 2
	}
	if err == nil && text != "1" {
		err = writeGroupText(dir, "memory.use_hierarchy", "1")
	}
	return err
}

// Remove removes the jail's groups and returns when they are gone.
func (l *Limiter) Remove(ctx context.Context, name jail.Name) error {
	if err := l.o.check(name); err != nil {
		return err
	}
	return l.remove(ctx, string(name))
}

func (l *Limiter) remove(ctx context.Context, name string) error {
	// A group whose last process has just been reaped is busy for a moment.
	var err error
	if !waitFor(ctx, 200*time.Millisecond, func() bool {
		var errs []error
		for _, h := range l.hierarchies {
			errs = append(errs, removeGroup(l.group(h, name)))
		}
		err = errors.Join(errs...)
		return !errors.Is(err, jail.ErrBusy)
	}) {
		return fmt.Errorf("remove the limits of jail %s: %w", name, err)
	}
	if err != nil {
		return fmt.Errorf("remove the limits of jail %s: %w", name, err)
	}
	if !strings.Contains(name, "/") {
		l.leave(name)
	}
	return nil
}

// removeGroup removes a group and those below it. That there is none is fine.
func removeGroup(dir string) error {
	err := unix.Rmdir(dir)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOTEMPTY) {
		return &os.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeGroup(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	switch err := unix.Rmdir(dir); {
	case err == nil || errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EBUSY):
		return errors.Join(jail.ErrBusy, &os.PathError{Op: "rmdir", Path: dir, Err: err})
	default:
		return &os.PathError{Op: "rmdir", Path: dir, Err: err}
	}
}

// Uninstall removes the installation's own group, where no jail is left in it.
func (l *Limiter) Uninstall(context.Context) error {
	homes, err := l.tenantGroups()
	errs := []error{err}
	l.making.Lock()
	defer l.making.Unlock()
	for _, home := range homes {
		l.removeEmpty(home)
	}
	for _, h := range l.hierarchies {
		if err := unix.Rmdir(filepath.Join(h.dir, l.base())); err != nil && !errors.Is(err, unix.ENOENT) {
			if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENOTEMPTY) {
				err = errors.Join(jail.ErrBusy, err)
			}
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove control group %s: %w", l.base(), err)
	}
	return nil
}

// List reports the groups of this installation.
func (l *Limiter) List(context.Context) ([]jail.HostResource, error) {
	var out []jail.HostResource
	for _, h := range l.hierarchies {
		names, err := l.names(h)
		if err != nil {
			return nil, fmt.Errorf("list control groups: %w", err)
		}
		for _, n := range names {
			out = append(out, jail.HostResource{Kind: jail.ResourceCgroup, Name: n, Index: -1, ID: l.group(h, string(n))})
		}
	}
	return out, nil
}

// names lists the jails that have a group in a hierarchy, be it in their tenant's or not.
func (l *Limiter) names(h hierarchy) ([]jail.Name, error) {
	homes, err := l.tenantGroups()
	var out []jail.Name
	for _, home := range append(homes, "") {
		below, err2 := groupsIn(filepath.Join(h.dir, l.base(), home))
		err = errors.Join(err, err2)
		for _, name := range below {
			if n := jail.Name(name); n.Belongs(l.o.Installation) && !slices.Contains(out, n) {
				out = append(out, n)
			}
		}
	}
	return out, err
}

// processes lists the processes in a jail's groups, in whichever hierarchy they are: one that a killed runtime left
// half-way may be in the first of them only.
func (l *Limiter) processes(name string) ([]int, error) {
	var out []int
	for _, h := range l.hierarchies {
		pids, err := readPIDs(l.group(h, name))
		if err != nil {
			return nil, fmt.Errorf("list the processes of jail %s: %w", name, err)
		}
		out = append(out, pids...)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// readPIDs lists the processes of a group and of those below it. A group that is not there has none. Processes of
// other pid namespaces are shown as 0 and left out.
func readPIDs(dir string) ([]int, error) {
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if gone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []int
	for line := range bytes.Lines(text) {
		if pid, err := strconv.Atoi(string(bytes.TrimSpace(line))); err == nil && pid > 0 {
			out = append(out, pid)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil || st.Nlink <= 2 {
		return out, nil // no groups below, or gone by now
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !gone(err) {
		return nil, err
	}
	for _, e := range entries {
		if e.IsDir() {
			below, err := readPIDs(filepath.Join(dir, e.Name()))
			if err != nil {
				return nil, err
			}
			out = append(out, below...)
		}
	}
	return out, nil
}

// waitFor asks again with growing pauses until cond is true, and reports whether it became so in time.
func waitFor(ctx context.Context, limit time.Duration, cond func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return wake.Until(ctx, 200*time.Microsecond, 10*time.Millisecond, cond) || cond()
}
