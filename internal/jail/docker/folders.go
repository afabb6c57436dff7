//go:build linux

package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/volume"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/linux"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/safepath"
)

// An engine takes paths, and a path may be another folder by the time that it is used. So every folder is opened by
// descriptor, mounted onto a folder of root's below RunDir, with the flags that the jail is to see, and the engine is
// given that one. It passes the flags on, as a bind mount without options does. That the container has the very folders
// that were opened is looked at when it runs.
//
//	<RunDir>/containers/<name>/token/token   the token
//	<RunDir>/containers/<name>/gate/go       what the container waits for
//	<RunDir>/containers/<name>/mounts/<n>    what is mounted
const (
	sharedMemory     = "/dev/shm"
	containersFolder = "containers"
	tokenFolder      = "token"
	mountsFolder     = "mounts"
)

// folders are what a container sees of the host.
type folders struct {
	all []folder
}

type folder struct {
	source string // below RunDir
	target string // in the container
	dev    uint64
	ino    uint64
}

func (d *Driver) stagePath(name jail.Name, parts ...string) string {
	return filepath.Join(append([]string{d.o.RunDir, containersFolder, string(name)}, parts...)...)
}

// stage mounts what a container sees of the host. Nothing of an earlier one is there: the folder is new.
func (d *Driver) stage(name jail.Name, spec jail.Spec, profile jail.Profile) (*folders, error) {
	out := &folders{}
	if err := d.trusted(filepath.Join(d.o.RunDir, containersFolder)); err != nil {
		return nil, err
	}
	for _, dir := range []string{d.stagePath(name), d.stagePath(name, mountsFolder)} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, err
		}
	}
	for _, t := range profile.Tmpfs {
		if t.Path == sharedMemory {
			continue // the engine makes it
		}
		if err := out.addTmpfs(d.stagePath(name, mountsFolder), t, profile); err != nil {
			return nil, fmt.Errorf("make %s: %w", t.Path, err)
		}
	}
	if spec.Agent != nil && spec.Agent.Token {
		dir := d.stagePath(name, tokenFolder)
		if err := errors.Join(os.Mkdir(dir, 0o755), os.Chmod(dir, 0o755)); err != nil {
			return nil, err
		}
		f, err := os.Open(dir)
		if err != nil {
			return nil, err
		}
		if err := out.add(d.stagePath(name, mountsFolder), f, jail.TokenDir, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOEXEC); err != nil {
			return nil, err
		}
	}
	if err := d.stageGate(name, out); err != nil {
		return nil, fmt.Errorf("make the gate: %w", err)
	}
	whose := linux.Holder{Installation: d.o.Installation}
	if spec.Agent != nil {
		whose.Agent = *spec.Agent
	}
	roots, err := spec.Roots(d.o.WorkspaceRoots, d.o.AddedRoots)
	if err != nil {
		return nil, err
	}
	for _, m := range spec.Mounts {
		f, err := linux.OpenMount(roots, whose, m, jail.AgentUID)
		if err != nil {
			return nil, err
		}
		var flags uint64
		if m.ReadOnly {
			flags = unix.MOUNT_ATTR_RDONLY
		}
		if err := out.add(d.stagePath(name, mountsFolder), f, m.Target, flags); err != nil {
			return nil, fmt.Errorf("mount %s: %w", m.Source, err)
		}
	}
	return out, nil
}

// add mounts an open folder below dir and closes it.
func (s *folders) add(dir string, f *os.File, target string, flags uint64) (err error) {
	defer func() { err = errors.Join(err, f.Close()) }()
	at := folder{source: filepath.Join(dir, strconv.Itoa(len(s.all))), target: target}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	at.dev, at.ino = st.Dev, st.Ino
	if err := os.Mkdir(at.source, 0o700); err != nil {
		return err
	}
	tree, err := unix.OpenTree(int(f.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("clone the mount: %w", err)
	}
	defer func() { _ = unix.Close(tree) }() // what was not mounted goes with it
	attr := unix.MountAttr{Attr_set: flags | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("confine the mount: %w", err)
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, at.source, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	s.all = append(s.all, at)
	return nil
}

// addTmpfs makes a file system in memory. Its content counts against the limit of the container that writes it, like
// with one that the engine makes; but an engine's has the mode of the image's folder, and a copy of what is in that.
func (s *folders) addTmpfs(dir string, t jail.Tmpfs, p jail.Profile) error {
	at := folder{source: filepath.Join(dir, strconv.Itoa(len(s.all))), target: t.Path}
	if err := os.Mkdir(at.source, 0o700); err != nil {
		return err
	}
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV)
	if t.NoExec {
		flags |= unix.MS_NOEXEC
	}
	options := fmt.Sprintf("size=%d,mode=%o", t.Size, t.Mode)
	if t.Owned {
		options += fmt.Sprintf(",uid=%d,gid=%d", p.UID, p.GID)
	}
	if err := unix.Mount("clawjail", at.source, "tmpfs", flags, options); err != nil {
		return err
	}
	s.all = append(s.all, at) // what is mounted is unmounted, also when the rest fails
	if err := unix.Mount("", at.source, "", unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(at.source, &st); err != nil {
		return err
	}
	s.all[len(s.all)-1].dev, s.all[len(s.all)-1].ino = st.Dev, st.Ino
	return nil
}

// mounts are for the engine. They are read-only where the folder is: an option here would replace its flags.
func (s *folders) mounts() []mount.Mount {
	var out []mount.Mount
	for _, f := range s.all {
		out = append(out, mount.Mount{Type: mount.TypeBind, Source: f.source, Target: f.target,
			BindOptions: &mount.BindOptions{Propagation: mount.PropagationRPrivate}})
	}
	return out
}

// differences says where a container has other folders than those that were opened.
func (s *folders) differences(proc jail.Process) []string {
	var diff []string
	for _, f := range s.all {
		seen, err := linux.Inside(proc, f.target)
		if err != nil {
			diff = append(diff, fmt.Sprintf("%s cannot be looked at: %v", f.target, err))
			continue
		}
		var st unix.Stat_t
		if err := errors.Join(unix.Fstat(int(seen.Fd()), &st), seen.Close()); err != nil || st.Dev != f.dev || st.Ino != f.ino {
			diff = append(diff, f.target+" is not the folder that was opened for it")
		}
	}
	return diff
}

// unstage unmounts and removes what stage made. It succeeds when there is nothing.
func (d *Driver) unstage(name jail.Name) error {
	dir := d.stagePath(name, mountsFolder)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, entry := range entries {
		at := filepath.Join(dir, entry.Name())
		for {
			err := unix.Unmount(at, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
			if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
				break // nothing is mounted there
			}
			if err != nil {
				return fmt.Errorf("unmount %s: %w", at, err)
			}
		}
		if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) { // never what is below: it may be the operator's
			return err
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return errors.Join(os.RemoveAll(d.stagePath(name, tokenFolder)), os.RemoveAll(d.stagePath(name, gateFolder)), removeEmpty(d.stagePath(name)))
}

func removeEmpty(dir string) error {
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// trusted makes a folder that only root can change.
func (d *Driver) trusted(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return fmt.Errorf("%s is not a folder that only this user can write to", dir)
	}
	return nil
}

// Token implements jail.Maker.
func (d *Driver) Token(_ context.Context, name jail.Name, token []byte) error {
	e, err := d.Lookup(name)
	if err != nil {
		return err
	}
	r := e.Record()
	if r.Spec.Agent == nil || !r.Spec.Agent.Token {
		return problem.New(problem.Conflict, "", "container %s has no place for a token", name)
	}
	dir, err := safepath.Open(d.stagePath(name))
	if err != nil {
		return fmt.Errorf("deliver the token: %w", err)
	}
	return errors.Join(jail.PutToken(dir, tokenFolder, name, jail.AgentUID, token), dir.Close())
}

// volumeName is that of the wire contract.
func volumeName(a jail.Agent) string { return "hermit_state_" + a.Key() }

// volume looks for the volume of an agent's state. One that is somebody else's is an error. One that is abandoned has a
// mountpoint, and is not there.
func (d *Driver) volume(ctx context.Context, a jail.Agent) (mountpoint string, there bool, err error) {
	name := volumeName(a)
	got, err := d.engine.VolumeInspect(ctx, name, client.VolumeInspectOptions{})
	if cerrdefs.IsNotFound(err) {
		return "", false, nil
	}
	if err != nil {
		return "", false, d.engineError(err)
	}
	if got.Volume.Labels[labelInstallation] != string(d.o.Installation) {
		if abandoned(got.Volume) {
			return got.Volume.Mountpoint, false, nil
		}
		return "", false, problem.New(problem.Conflict, "rename the agent, or remove the volume with `docker volume rm "+name+"` when nobody needs it",
			"the volume %s was not made by this clawjail", name)
	}
	if got.Volume.Driver != "local" || len(got.Volume.Options) > 0 || !filepath.IsAbs(got.Volume.Mountpoint) {
		return "", false, problem.New(problem.Conflict, "remove it with `docker volume rm "+name+"`", "the volume %s is not a folder of the engine's", name)
	}
	return got.Volume.Mountpoint, true, nil
}

// abandoned says whether a volume is what is left when the engine is ended while it makes one: its folder is there, and
// its labels, which the engine writes after that, are not. It is empty.
func abandoned(v volume.Volume) bool {
	if len(v.Labels) > 0 || v.Driver != "local" || len(v.Options) > 0 || !filepath.IsAbs(v.Mountpoint) {
		return false
	}
	held, err := os.ReadDir(v.Mountpoint)
	if errors.Is(err, fs.ErrNotExist) {
		_, err = os.Lstat(filepath.Dir(v.Mountpoint)) // an engine whose folders are not seen from here may have more
	}
	return err == nil && len(held) == 0
}

// makeVolume makes the volume where it is missing, and gives it to the jail's user.
func (d *Driver) makeVolume(ctx context.Context, a jail.Agent) (string, error) {
	name := volumeName(a)
	at, there, err := d.volume(ctx, a)
	if err == nil && !there {
		if at != "" {
			if err := d.removeVolume(ctx, name); err != nil {
				return "", err
			}
		}
		if _, err = d.engine.VolumeCreate(ctx, client.VolumeCreateOptions{Name: name, Driver: "local", Labels: map[string]string{
			labelInstallation: string(d.o.Installation), labelTenant: a.Tenant, labelAgent: a.Name}}); err == nil {
			at, there, err = d.volume(ctx, a)
		}
	}
	if err != nil {
		return "", err
	}
	if !there {
		return "", fmt.Errorf("the engine made the volume %s and does not show it", name)
	}
	fd, err := unix.Open(at, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open the volume %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), at)
	defer func() { _ = f.Close() }() // a folder
	return name, errors.Join(f.Chown(jail.AgentUID, jail.AgentUID), f.Chmod(0o700))
}

// RemoveState implements jail.Maker.
func (d *Driver) RemoveState(ctx context.Context, a jail.Agent) error {
	if err := errors.Join(jail.ValidAgentName(a.Tenant), jail.ValidAgentName(a.Name)); err != nil {
		return err
	}
	if err := d.Stateless(a); err != nil {
		return err
	}
	if at, _, err := d.volume(ctx, a); err != nil || at == "" {
		return err
	}
	return d.removeVolume(ctx, volumeName(a))
}

// removeVolume removes one without force: a container that uses it keeps it.
func (d *Driver) removeVolume(ctx context.Context, name string) error {
	_, err := d.engine.VolumeRemove(ctx, name, client.VolumeRemoveOptions{})
	if cerrdefs.IsNotFound(err) {
		return nil
	}
	return d.engineError(err)
}

// staged lists the names that have something below RunDir.
func (d *Driver) staged() ([]jail.Name, error) {
	entries, err := os.ReadDir(filepath.Join(d.o.RunDir, containersFolder))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var out []jail.Name
	for _, entry := range entries {
		name, err := jail.ParseName(strings.TrimSpace(entry.Name()), d.o.Installation)
		if err == nil && name.InContainer() {
			out = append(out, name)
		}
	}
	return out, err
}
