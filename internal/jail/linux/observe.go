//go:build linux

package linux

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
)

// startLimit is how long the runtime's own first process may take to become the jail's program. It is done within a
// few milliseconds; runc sets the system-call filter in between, after it has reported success.
const startLimit = 2 * time.Second

// Observe reads from the host how the jail is really confined.
func (r *Runtime) Observe(ctx context.Context, p jail.Placement, proc jail.Process) (jail.Observed, error) {
	fail := func(err error) (jail.Observed, error) {
		return jail.Observed{}, fmt.Errorf("observe jail %s: %w", p.Name, err)
	}
	if err := r.o.check(p.Name); err != nil {
		return fail(err)
	}
	pr, err := openProcess(proc)
	if err != nil {
		return fail(err)
	}
	defer pr.Close()
	if err := pr.awaitProgram(ctx); err != nil {
		return fail(err)
	}
	var o jail.Observed
	if err := errors.Join(pr.identity(&o), pr.namespaces(&o), pr.files(&o, p.Profile), pr.placed(&o, p.Root), pr.resources(&o)); err != nil {
		return fail(err)
	}
	if p.Profile.AppArmor != "" {
		if err := pr.underAppArmor(r.o.Installation, &o); err != nil {
			return fail(err)
		}
	}
	if o.Memory, o.MilliCPU, o.Tasks, err = r.limits.enforced(string(p.Name), proc.PID); err != nil {
		return fail(err)
	}
	filtered, err := r.limits.devicesFiltered(string(p.Name), proc.PID)
	if err != nil {
		return fail(err)
	}
	o.Devices = !filtered
	return o, nil
}

// awaitProgram waits until the process is the jail's program.
func (p *process) awaitProgram(ctx context.Context) (err error) {
	if !waitFor(ctx, startLimit, func() bool {
		var inside bool
		inside, err = p.runsFromItsRoot()
		return inside || err != nil
	}) {
		return errors.Join(ctx.Err(), errors.New("the runtime's process did not become the jail's program"))
	}
	return err
}

// runsFromItsRoot reports whether the program that is executed lies in the root file system of the process. The
// runtime's own program does not.
func (p *process) runsFromItsRoot() (bool, error) {
	exe, err := p.mountOf("exe")
	if err != nil {
		return false, err
	}
	root, err := p.mountOf("root")
	return exe == root, err
}

// runsFromItsMounts is the same for containers, whose first process can be a program that the engine has mounted: docker-init.
func (p *process) runsFromItsMounts() (bool, error) {
	exe, err := p.mountOf("exe")
	if err != nil {
		return false, err
	}
	mounts, err := p.mounts()
	return slices.ContainsFunc(mounts, func(m mount) bool { return uint64(m.ID) == exe }), err
}

// mountOf is the number of the mount that a link of the process leads to.
func (p *process) mountOf(link string) (uint64, error) {
	var st unix.Statx_t
	if err := unix.Statx(int(p.dir.Fd()), link, 0, unix.STATX_MNT_ID, &st); err != nil {
		return 0, p.failed(link, err)
	}
	return st.Mnt_id, nil
}

func (p *process) failed(file string, err error) error {
	if gone(err) {
		return os.ErrProcessDone // /proc/<pid>/exe of one that has ended is not there either
	}
	return &os.PathError{Op: "look at", Path: p.dir.Name() + "/" + file, Err: err}
}

// identity reads who the process is, and what it may do.
func (p *process) identity(o *jail.Observed) error {
	text, err := p.read("status")
	if err != nil {
		return err
	}
	var errs []error
	ids := func(field string) (out []uint32) {
		for _, f := range strings.Fields(statusField(text, field)) {
			n, err := strconv.ParseUint(f, 10, 32)
			errs = append(errs, err)
			out = append(out, uint32(n))
		}
		return out
	}
	o.UIDs, o.GIDs, o.Groups = ids("Uid"), ids("Gid"), ids("Groups")
	var all uint64
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		bits, err := strconv.ParseUint(statusField(text, set), 16, 64)
		errs = append(errs, err)
		all |= bits
	}
	if len(o.UIDs) == 0 || len(o.GIDs) == 0 {
		return fmt.Errorf("%s/status is not understood", p.dir.Name())
	}
	var err1, err2, err3 error
	o.InsideUID, err1 = p.translate("uid_map", o.UIDs[0], false)
	o.InsideGID, err2 = p.translate("gid_map", o.GIDs[0], false)
	o.NamespaceOwner, err3 = p.namespaceOwner()
	errs = append(errs, err1, err2, err3)
	o.Capabilities = capabilityNames(all)
	o.NoNewPrivileges = statusField(text, "NoNewPrivs") == "1"
	o.SeccompFilter = statusField(text, "Seccomp") == strconv.Itoa(unix.SECCOMP_MODE_FILTER)
	return errors.Join(errs...)
}

// namespaceOwner is the user who has made the process's user namespace.
func (p *process) namespaceOwner() (uint32, error) {
	fd, err := unix.Openat(int(p.dir.Fd()), "ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nobody, p.failed("ns/user", err)
	}
	owner, err := unix.IoctlGetUint32(fd, unix.NS_GET_OWNER_UID)
	return owner, errors.Join(err, unix.Close(fd))
}

// nobody stands for an id that has no number in the jail.
const nobody = math.MaxUint32

// translate says what number an id of the host has in the process's user namespace, or the other way round.
func (p *process) translate(file string, id uint32, outward bool) (uint32, error) {
	text, err := p.read(file)
	if err != nil {
		return nobody, err
	}
	for line := range strings.Lines(string(text)) {
		var inside, outside, count uint64
		if _, err := fmt.Sscan(line, &inside, &outside, &count); err != nil {
			return nobody, fmt.Errorf("%s/%s is not understood: %w", p.dir.Name(), file, err)
		}
		if outward {
			inside, outside = outside, inside
		}
		if n := uint64(id); n >= outside && n < outside+count {
			return uint32(inside + n - outside), nil
		}
	}
	return nobody, nil
}

// statusField is the value of one line of /proc/<pid>/status.
func statusField(text []byte, field string) string {
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// namespaces lists those that are also the host daemon's. Of a user namespace it is looked at what it maps.
func (p *process) namespaces(o *jail.Observed) error {
	for _, kind := range []string{"pid", "mnt", "net", "ipc", "uts", "cgroup"} {
		own, err := p.namespace(kind)
		if err != nil {
			return err
		}
		host, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			return err
		}
		if own == host {
			o.SharedNamespaces = append(o.SharedNamespaces, kind)
		}
	}
	return nil
}

func (p *process) namespace(kind string) (string, error) {
	var buf [64]byte
	n, err := unix.Readlinkat(int(p.dir.Fd()), "ns/"+kind, buf[:])
	if err != nil {
		return "", p.failed("ns/"+kind, err)
	}
	return string(buf[:n]), nil
}

// files reads what the process sees as its file systems.
func (p *process) files(o *jail.Observed, declared jail.Profile) error {
	mounts, err := p.mounts()
	if err != nil {
		return err
	}
	pivoted, err := p.pivoted()
	if err != nil {
		return err
	}
	o.NotPivoted = !pivoted
	for _, m := range visible(mounts) {
		tmpfs := m.FSType == "tmpfs" && m.Root == "/" &&
			slices.ContainsFunc(declared.Tmpfs, func(t jail.Tmpfs) bool { return t.Path == m.Point })
		switch {
		case m.Point == "/":
			o.ReadOnlyRoot = m.readOnly()
		case tmpfs:
			t, err := p.tmpfs(m)
			if err != nil {
				return err
			}
			o.Tmpfs = append(o.Tmpfs, t)
		case slices.ContainsFunc(declared.Binds, func(b jail.Bind) bool { return b.Path == m.Point }):
			o.Binds = append(o.Binds, jail.Bind{Path: m.Point, ReadOnly: m.readOnly(),
				NoExec: slices.Contains(m.Options, "noexec"), Mapped: slices.Contains(m.Options, "idmapped")})
		case m.readOnly():
		case m.FSType == "proc" && m.Root == "/" && m.Point == "/proc":
			// The user and the paths that are mounted over decide what may be written in proc.
		case m.isDeviceNode(p):
			// A device hides a file; it is not a place to write to.
		default:
			o.Writable = append(o.Writable, m.Point)
		}
	}
	return nil
}

// placed leaves of the binds those that are what Mount has put there on the clone, and nothing else, and in which neither
// devices nor setuid programs work.
func (p *process) placed(o *jail.Observed, clone string) error {
	mounts, err := p.mounts()
	if err != nil {
		return err
	}
	mounts = visible(mounts)
	if !slices.ContainsFunc(mounts, func(m mount) bool { return m.Point == "/" && m.harmless() }) {
		o.Writable = append(o.Writable, "/ (with devices or setuid programs)")
	}
	o.Binds = slices.DeleteFunc(o.Binds, func(b jail.Bind) bool {
		i := slices.IndexFunc(mounts, func(m mount) bool { return m.Point == b.Path })
		if i >= 0 && mounts[i].harmless() && p.sees(b.Path, clone+b.Path) {
			return false
		}
		o.Writable = append(o.Writable, b.Path+" (another folder than was put there, or one with devices or setuid programs)")
		return true
	})
	return nil
}

// harmless says whether neither devices nor setuid programs work in a mount.
func (m mount) harmless() bool {
	return slices.Contains(m.Options, "nosuid") && slices.Contains(m.Options, "nodev")
}

// sealRoot makes the root file system of the process one in which neither devices nor setuid programs work, as its clone is. A
// runtime that makes it read-only leaves that out. A root that is not the clone is left alone: Observe says so.
func (p *process) sealRoot(clone string) error {
	if !p.sees("/", clone) {
		return nil
	}
	mounts, err := p.mounts()
	if err != nil || slices.ContainsFunc(visible(mounts), func(m mount) bool { return m.Point == "/" && m.harmless() }) {
		return err
	}
	return p.changeRoot(unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV})
}

// changeRoot changes the mount of the process's root, which can be done from its own namespace only.
func (p *process) changeRoot(attr unix.MountAttr) error {
	root, err := p.openInside("/")
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(root) }() // opened for nothing but its identity
	ns, err := unix.Openat(int(p.dir.Fd()), "ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return p.failed("ns/mnt", err)
	}
	defer func() { _ = unix.Close(ns) }() // opened for nothing but its identity
	return OnDiscardedThread(func() error {
		if err := errors.Join(unix.Unshare(unix.CLONE_FS), unix.Setns(ns, unix.CLONE_NEWNS)); err != nil {
			return fmt.Errorf("enter the mounts of the jail: %w", err)
		}
		if err := unix.MountSetattr(root, "", unix.AT_EMPTY_PATH, &attr); err != nil {
			return fmt.Errorf("restrict the root file system: %w", err)
		}
		return nil
	})
}

// sees reports whether a path of the process is a folder of the host.
func (p *process) sees(path, host string) bool {
	inside, err := p.openInside(path)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(inside) }() // opened for nothing but its identity
	outside, err := unix.Openat2(unix.AT_FDCWD, host, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(outside) }()
	var a, b unix.Stat_t
	return unix.Fstat(inside, &a) == nil && unix.Fstat(outside, &b) == nil && a.Dev == b.Dev && a.Ino == b.Ino
}

// tmpfs reads one that the process sees.
func (p *process) tmpfs(m mount) (jail.Tmpfs, error) {
	out := jail.Tmpfs{Path: m.Point, NoExec: slices.Contains(m.Options, "noexec")}
	fd, err := p.openInside(m.Point)
	if err != nil {
		return out, p.failed("root"+m.Point, err)
	}
	defer func() { _ = unix.Close(fd) }() // opened for nothing but its identity
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := errors.Join(unix.Fstat(fd, &st), unix.Fstatfs(fd, &fs)); err != nil {
		return out, p.failed("root"+m.Point, err)
	}
	out.Size, out.Mode = int64(fs.Blocks)*fs.Bsize, st.Mode&0o7777
	return out, nil
}

// visible leaves out what is mounted over: of several mounts at one place only the last counts.
func visible(mounts []mount) []mount {
	var out []mount
	for i, m := range mounts {
		if !slices.ContainsFunc(mounts[i+1:], func(later mount) bool { return later.Point == m.Point }) {
			out = append(out, m)
		}
	}
	return out
}

// pivoted reports whether the root of the process is the root of its mount tree. From outside, the parent of a
// pivoted root is that root itself; the parent of a folder that was only entered by chroot is a folder of the host.
func (p *process) pivoted() (bool, error) {
	root, err := unix.Openat(int(p.dir.Fd()), "root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, p.failed("root", err)
	}
	defer func() { _ = unix.Close(root) }()
	var here, above unix.Statx_t
	const mask = unix.STATX_INO | unix.STATX_MNT_ID
	if err := errors.Join(unix.Statx(root, "", unix.AT_EMPTY_PATH, mask, &here), unix.Statx(root, "..", 0, mask, &above)); err != nil {
		return false, p.failed("root", err)
	}
	return here.Ino == above.Ino && here.Dev_major == above.Dev_major && here.Dev_minor == above.Dev_minor && here.Mnt_id == above.Mnt_id, nil
}

// resources reads the limits that a process has by itself.
func (p *process) resources(o *jail.Observed) error {
	text, err := p.read("limits")
	if err != nil {
		return err
	}
	_, hard, ok := parseFileLimit(text)
	if !ok {
		return fmt.Errorf("%s/limits is not understood", p.dir.Name())
	}
	o.Files = hard
	o.CoreFiles = !strings.Contains(strings.Join(strings.Fields(string(text)), " "),
		fmt.Sprintf("Max core file size %d %d bytes", CoreLimit, CoreLimit))
	return nil
}

// parseFileLimit reads the limit on descriptors of /proc/<pid>/limits. Unlimited is 0.
func parseFileLimit(text []byte) (soft, hard int, ok bool) {
	for line := range strings.Lines(string(text)) {
		if rest, found := strings.CutPrefix(line, "Max open files"); found {
			if f := strings.Fields(rest); len(f) >= 2 {
				soft, _ = strconv.Atoi(f[0]) // "unlimited" stays 0
				hard, _ = strconv.Atoi(f[1])
				return soft, hard, true
			}
		}
	}
	return 0, 0, false
}

// capabilityNames names the bits of a set, as in capabilities(7).
func capabilityNames(set uint64) []string {
	names := strings.Fields(`CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE
		NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE
		SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL
		SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE`)
	var out []string
	for bit := range 64 {
		if set&(1<<bit) == 0 {
			continue
		}
		if bit < len(names) {
			out = append(out, "CAP_"+names[bit])
		} else {
			out = append(out, "CAP_"+strconv.Itoa(bit))
		}
	}
	return out
}
