//go:build linux

package linux

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/safepath"
)

// Files of a bundle, the folder that the runtime is given.
const (
	bundleConfig = "config.json"
	bundleHosts  = "hosts"
	bundleStage  = "stage"       // becomes jail.StageDir
	bundlePolicy = "policies"    // becomes jail.PoliciesDir
	bundlePID    = "pid"         // written by the runtime
	bundleLog    = "log"         // written by the runtime
	bundleDelete = "delete-with" // the runtime, when its state is more than a folder
)

// oomScore makes the kernel end what is in a jail before anything else on the host.
const oomScore = 500

// spec translates a placement for the runtime. It decides nothing: how a jail is confined is in its Profile. users is the user
// namespace of a jail that has one.
func (r *Runtime) spec(p jail.Placement, bundle string, users *os.File) (*specs.Spec, error) {
	prof := p.Profile
	filter, ok := r.filters[prof.Seccomp]
	if !ok {
		return nil, fmt.Errorf("%q is not a system-call filter", prof.Seccomp)
	}
	namespaces := []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.MountNamespace},
		{Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.CgroupNamespace}}
	if network(p) == "" {
		namespaces = append(namespaces, specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: p.NetNS}) // an empty path makes a new one
	}
	var uids, gids []specs.LinuxIDMapping
	if users != nil {
		// runc from 1.1.13 on takes whatever begins with /proc/NUMBER for /proc/NUMBER/ns/user, and the map of that process for the namespace's.
		namespaces = append(namespaces, specs.LinuxNamespace{Type: specs.UserNamespace, Path: fmt.Sprintf("/proc/./%d/fd/%d", os.Getpid(), users.Fd())})
		uids, gids = jailMap(prof.UID, prof.Host), jailMap(prof.GID, prof.Host)
	}
	return &specs.Spec{
		Version: "1.0.2", // what the oldest supported runtimes know; nothing newer is used
		Root:    &specs.Root{Path: p.Root, Readonly: prof.ReadOnlyRoot},
		// Names beginning with a letter and of letters and digits are valid host names.
		Hostname: string(p.Name),
		Process:  r.process(prof, path.Join(jail.StageDir, jail.StageLaunch)),
		Mounts:   mounts(p, bundle),
		Linux: &specs.Linux{
			CgroupsPath:   r.limits.path(string(p.Name)),
			Resources:     &specs.LinuxResources{Devices: devices()},
			Namespaces:    namespaces,
			UIDMappings:   uids,
			GIDMappings:   gids,
			Seccomp:       filter,
			MaskedPaths:   maskedPaths(),
			ReadonlyPaths: readonlyPaths(),
		},
	}, nil
}

// mounts are in the order in which they are made. There is no sysfs and no control group file system.
func mounts(p jail.Placement, bundle string) []specs.Mount {
	prof := p.Profile
	out := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "nodev", "noexec"}},
		// Devices are made in it before it becomes read-only.
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "noexec", "strictatime", "mode=755", "size=64k", "ro"}},
	}
	for _, t := range prof.Tmpfs {
		o := []string{"nosuid", "nodev", fmt.Sprintf("size=%d", t.Size), fmt.Sprintf("mode=%o", t.Mode),
			// Files without content cost memory as well.
			fmt.Sprintf("nr_inodes=%d", max(1024, t.Size/4096))}
		if t.NoExec {
			o = append(o, "noexec")
		}
		if t.Owned {
			o = append(o, fmt.Sprintf("uid=%d", prof.UID), fmt.Sprintf("gid=%d", prof.GID))
		}
		out = append(out, specs.Mount{Destination: t.Path, Type: "tmpfs", Source: "tmpfs", Options: o})
	}
	readOnly := []string{"bind", "ro", "nosuid", "nodev", "noexec", "private"}
	if p.Spec.Kind == jail.KindBrowser {
		// Over the template's own, which may have none or others.
		out = append(out, specs.Mount{Destination: jail.PoliciesDir, Type: "bind", Source: filepath.Join(bundle, bundlePolicy), Options: readOnly})
	}
	return append(out,
		specs.Mount{Destination: jail.StageDir, Type: "bind", Source: filepath.Join(bundle, bundleStage), Options: readOnly},
		specs.Mount{Destination: "/etc/hosts", Type: "bind", Source: filepath.Join(bundle, bundleHosts), Options: readOnly})
}

// alignMountPoints gives the folders that a tmpfs is mounted on the mode of that tmpfs. runc gives a tmpfs the mode of
// the folder that was there, whatever is asked for.
func alignMountPoints(p jail.Placement) error {
	root, err := safepath.OpenPlain(p.Root)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // opened for reading
	for _, t := range p.Profile.Tmpfs {
		dir, err := root.Folder(strings.TrimPrefix(t.Path, "/"))
		if errors.Is(err, os.ErrNotExist) {
			continue // made by the runtime
		}
		if err != nil {
			return err
		}
		err = unix.Fchmod(dir.FD(), t.Mode)
		if err := errors.Join(err, dir.Close()); err != nil {
			return fmt.Errorf("prepare %s: %w", t.Path, err)
		}
	}
	return nil
}

// devices are those that every runtime makes in /dev, and no others. A runtime that joins the jail's groups leaves them
// out: the group has the filter already.
func devices() []specs.LinuxDeviceCgroup {
	out := []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
	for _, d := range charDevices() {
		out = append(out, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &d[0], Minor: &d[1], Access: "rwm"})
	}
	return out
}

func maskedPaths() []string {
	return []string{"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats"}
}

func readonlyPaths() []string {
	return []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
}

// fileLimit is the limit on descriptors, or the host daemon's own where that is lower and it may not raise it.
func fileLimit(want int) uint64 {
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err == nil && own.Max < uint64(want) {
		if mayRaise, err := hasCapability(unix.CAP_SYS_RESOURCE); err == nil && !mayRaise {
			return own.Max
		}
	}
	return uint64(want)
}

func hasCapability(c uint) (bool, error) {
	self, err := openProcess(jail.Process{PID: os.Getpid()})
	if err != nil {
		return false, err
	}
	defer self.Close()
	text, err := self.read("status")
	if err != nil {
		return false, err
	}
	set, err := strconv.ParseUint(statusField(text, "CapEff"), 16, 64)
	return set&(1<<c) != 0, err
}

// stage writes the bundle: what the runtime reads, and in its folder stage what the jail sees. It is owned by root and
// closed to all others; the staged files belong to the jail's user, who can read them only.
func (r *Runtime) stage(p jail.Placement, users *os.File) (_ *safepath.Folder, err error) {
	if err := r.bundles.Make(string(p.Name), 0o700, -1); err != nil {
		return nil, err
	}
	bundle, err := r.bundles.Folder(string(p.Name))
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, bundle.Close())
		}
	}()
	uid := int(p.Profile.Host) // the group has the same number
	stage, err := bundle.Ensure(bundleStage, 0o700, -1)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stage.Close()) }()
	home := p.Spec.Kind.Home()
	err = errors.Join(
		stage.Create(jail.StageLaunch, p.Spec.Program.LaunchScript(home, len(p.Spec.HomeFiles) > 0, true), 0o500, uid),
		mkgate(stage, uid),
		stage.Create(jail.StageEnv, p.Spec.Program.EnvScript(), 0o400, uid),
		stageHome(stage, p.Spec.HomeFiles, uid),
		stage.Own(uid, 0o500),
		stagePolicies(bundle),
		bundle.Create(bundleHosts, []byte(jail.Hosts(r.o.Gateway.String())), 0o444, -1))
	if err != nil {
		return nil, err
	}
	spec, err := r.spec(p, bundle.Path(), users)
	if err != nil {
		return nil, err
	}
	if r.amend != nil {
		r.amend(spec)
	}
	return bundle, writeSpec(bundle, spec)
}

func writeSpec(bundle *safepath.Folder, spec *specs.Spec) error {
	text, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return bundle.Create(bundleConfig, text, 0o400, -1)
}

// stagePolicies writes what browsers are told by their administrator. It is root's, and everybody in the jail reads it.
func stagePolicies(bundle *safepath.Folder) (err error) {
	dir, err := bundle.Ensure(bundlePolicy, 0o755, -1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	managed, err := dir.Ensure(jail.PoliciesManaged, 0o755, -1)
	if err != nil {
		return err
	}
	return errors.Join(managed.Create(jail.PoliciesFile, jail.Policies(), 0o444, -1), managed.Close())
}

// stageHome writes the files that the launch script copies into the home directory. They stay writable by their owner
// there.
func stageHome(stage *safepath.Folder, files []jail.File, uid int) error {
	if len(files) == 0 {
		return nil
	}
	home, err := stage.Ensure(jail.StageHome, 0o700, -1)
	if err != nil {
		return err
	}
	defer func() { _ = home.Close() }()
	for _, f := range files {
		if err := stageFile(home, f, uid); err != nil {
			return fmt.Errorf("stage %s: %w", f.Path, err)
		}
	}
	return home.Own(uid, 0o700)
}

func stageFile(dir *safepath.Folder, f jail.File, uid int) (err error) {
	first, rest, deeper := strings.Cut(f.Path, "/")
	if !deeper {
		return dir.Create(first, f.Data, 0o600, uid)
	}
	sub, err := dir.Ensure(first, 0o700, -1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sub.Close()) }()
	if err := stageFile(sub, jail.File{Path: rest, Data: f.Data}, uid); err != nil {
		return err
	}
	return sub.Own(uid, 0o700)
}
