//go:build linux

package linux

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/safepath"
)

// An agent's state, at /state, is a file system of its own in a sparse file, <data>/state/<key>.img: bounded on every
// file system of the host, without a quota to be turned on for all of it. The kernel gives the loop device back when the
// last mount goes, so that nothing has to be remembered.

const (
	volumeSuffix = ".img"
	volumeFresh  = ".new" // while it is being formatted; a killed process may leave one, which the next replaces
	volumeBlock  = 4096
	// spare is what the host's disk must have left before a volume is made: the least that one takes at first.
	spare = 8 << 20
	// journaled is the size from which a volume has a journal, which takes 4 MiB of it.
	journaled = 16 << 20
	// maxVolumes bounds them: also agents that are gone may have left theirs.
	maxVolumes         = 4096
	maxVolumesOfTenant = maxVolumes * 4 / 5
)

// volume is the image of an agent's state.
type volume struct {
	name  string // of the file
	image *os.File
	size  int64
	has   int64 // of it, the file system
	// Just now it was made, or the image enlarged.
	fresh, enlarged bool
}

// mountState mounts the state of an agent onto the clone, and makes or enlarges it where that is needed.
func (s *Storage) mountState(ctx context.Context, root *safepath.Folder, a jail.Agent, p jail.Profile) (err error) {
	uid := int(p.UID) // of the files, in whatever jail the volume is
	unlock := s.locks.lock("state " + a.Key())
	defer unlock()
	v, err := s.openVolume(ctx, a, uid)
	if err != nil {
		return err
	}
	defer func() { _ = v.image.Close() }() // nothing was written through it but the format, which is synced
	mayGrow, err := hasCapability(unix.CAP_SYS_RESOURCE)
	if err != nil {
		return err
	}
	if v.short() && !mayGrow {
		if err := s.growUnmounted(ctx, v); err != nil {
			return err
		}
	}
	device, err := loopDevice(v.image)
	if err != nil {
		return err
	}
	defer func() { _ = device.Close() }() // the mount holds the device from now on, or it is given back
	tree, err := mountVolume(device)
	if err != nil {
		return problem.Wrap(err, problem.JailFailed, "look at it with `e2fsck -f "+filepath.Join(s.volumes.Path(), v.name)+"`",
			"the state of %s cannot be mounted", a.Name)
	}
	defer func() { _ = unix.Close(tree) }()
	dir, err := safepath.At(tree, jail.StateDir).Folder(".") // what newMount returns is good for mounting only
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	if v.short() && mayGrow {
		if err := growMounted(device, dir, v); err != nil {
			return err
		}
	}
	if v.fresh || v.short() { // made by the format and by a check; users of the volume do not expect it there
		if err := dir.RemoveFolder("lost+found"); err != nil && !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
	}
	if err := dir.Own(uid, 0o700); err != nil {
		return err
	}
	s.forgetStaged(dir)
	if p.Host != p.UID {
		if err := s.maps.restrict(tree, v.image.Name(), userMap{owner{p.UID, p.GID}, p.Host}); err != nil {
			return err
		}
	}
	point, err := jail.MountPoint(root, jail.StateDir)
	if err != nil {
		return err
	}
	return errors.Join(attach(tree, point), point.Close())
}

// openVolume opens an agent's image. It is made when it is missing, and enlarged when more is declared than there is; it
// is never made smaller.
func (s *Storage) openVolume(ctx context.Context, a jail.Agent, uid int) (v volume, err error) {
	v = volume{name: a.Key() + volumeSuffix}
	want := (a.State + volumeBlock - 1) / volumeBlock * volumeBlock
	fd, err := s.volumes.Open(v.name, unix.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		if err := s.makeVolume(ctx, v.name, want, uid); err != nil {
			return v, err
		}
		v.fresh = true
		fd, err = s.volumes.Open(v.name, unix.O_RDWR, 0)
	}
	if err != nil {
		return v, err
	}
	v.image = os.NewFile(uintptr(fd), filepath.Join(s.volumes.Path(), v.name))
	defer func() {
		if err != nil {
			err = errors.Join(err, v.image.Close())
		}
	}()
	info, err := v.image.Stat()
	if err != nil {
		return v, err
	}
	v.size = info.Size()
	if v.has, err = formattedSize(v.image); err != nil {
		return v, problem.Wrap(err, problem.JailFailed, "restore "+v.name+" from a backup, or remove the state of the agent",
			"the volume of %s is damaged", a.Name)
	}
	switch {
	case v.size < want:
		if err := v.image.Truncate(want); err != nil {
			return v, jail.Shortage(err)
		}
		v.size, v.enlarged = want, true
	case v.size > want:
		s.o.Log.Info("the state of an agent is larger than declared and stays so", "agent", a.Key(), "bytes", v.size, "declared", want)
	}
	return v, nil
}

// Volumes are how large the volumes may become that there are, in bytes, by the keys of their agents: also of agents that are gone.
func (s *Storage) Volumes() (map[string]int64, error) {
	names, err := s.volumes.Names(maxVolumes)
	if err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	out := map[string]int64{}
	for _, name := range names {
		key, is := strings.CutSuffix(name, volumeSuffix)
		if !is || strings.HasPrefix(name, ".") {
			continue
		}
		var st unix.Stat_t
		err := unix.Fstatat(s.volumes.FD(), name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if errors.Is(err, unix.ENOENT) {
			continue // it has just been removed
		}
		if err != nil {
			return nil, fmt.Errorf("look at volume %s: %w", name, err)
		}
		out[key] = st.Size
	}
	return out, nil
}

// makeVolume formats an image under another name first: what has the right name is whole.
func (s *Storage) makeVolume(ctx context.Context, name string, size int64, uid int) (err error) {
	mkfs, err := findProgram("mkfs.ext4")
	if err != nil {
		return problem.Wrap(err, problem.ToolMissing, "install e2fsprogs", "volumes for agents need mkfs.ext4")
	}
	some, err := s.volumes.Names(maxVolumes)
	if err != nil {
		return err
	}
	tenant, ofTenant := jail.TenantOf(strings.TrimSuffix(name, volumeSuffix)), 0
	for _, other := range some {
		if jail.TenantOf(strings.TrimSuffix(other, volumeSuffix)) == tenant {
			ofTenant++
		}
	}
	if len(some) >= maxVolumes || ofTenant >= maxVolumesOfTenant {
		return problem.New(problem.PoolExhausted, "remove what agents have left: clawjail agent remove NAME",
			"there are %d volumes, %d of them of tenant %s, and no more than %d and %d may be kept", len(some), ofTenant, tenant, maxVolumes, maxVolumesOfTenant)
	}
	fresh := "." + name + volumeFresh
	if err := errors.Join(s.volumes.Remove(fresh), s.volumes.Create(fresh, nil, 0o600, -1)); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = jail.Shortage(errors.Join(err, s.volumes.Remove(fresh)))
		}
	}()
	fd, err := s.volumes.Open(fresh, unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	image := os.NewFile(uintptr(fd), filepath.Join(s.volumes.Path(), fresh))
	defer func() { err = errors.Join(err, image.Close()) }()
	dontCopyOnWrite(fd)
	if err := image.Truncate(size); err != nil {
		return err
	}
	journal := []string{"-J", "size=4"}
	if size < journaled {
		journal = []string{"-O", "^has_journal"}
	}
	owner := strconv.Itoa(uid)
	text, err := runOn(ctx, image, mkfs, append(journal, "-q", "-F", "-b", strconv.Itoa(volumeBlock), "-m", "0", "-i", "8192",
		"-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner="+owner+":"+owner)...)
	if err != nil {
		// mke2fs reports a full disk in words only (lib/et's text of ENOSPC).
		if bytes.Contains(text, []byte("No space left on device")) {
			err = errors.Join(unix.ENOSPC, err)
		}
		return fmt.Errorf("format: %w: %s", err, clipText(text))
	}
	if err := image.Sync(); err != nil {
		return err
	}
	return unix.Renameat(s.volumes.FD(), fresh, s.volumes.FD(), name)
}

// clipText is the beginning of what a tool printed.
func clipText(text []byte) string {
	return strings.TrimSpace(string(text[:min(len(text), 400)]))
}

// dontCopyOnWrite asks a file system that copies what is written, such as btrfs, not to: a file system inside writes in
// place all the time. Others do not know the request.
func dontCopyOnWrite(fd int) {
	if flags, err := unix.IoctlGetInt(fd, unix.FS_IOC_GETFLAGS); err == nil {
		_ = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, flags|fsNoCow) // EOPNOTSUPP: there is nothing to be asked
	}
}

// fsNoCow is FS_NOCOW_FL of linux/fs.h.
const fsNoCow = 0x00800000

// formattedSize reads from the superblock of an ext4 how large the file system was made
// (Documentation/filesystems/ext4/super.rst).
func formattedSize(image io.ReaderAt) (int64, error) {
	var super [1024]byte
	if _, err := image.ReadAt(super[:], 1024); err != nil {
		return 0, err
	}
	le := binary.LittleEndian
	if le.Uint16(super[0x38:]) != 0xef53 {
		return 0, errors.New("there is no ext4 in it")
	}
	blocks, shift := int64(le.Uint32(super[0x4:])), le.Uint32(super[0x18:])
	if le.Uint32(super[0x60:])&0x80 != 0 { // 64bit
		blocks |= int64(le.Uint32(super[0x150:])) << 32
	}
	if shift > 6 || blocks <= 0 || blocks > jail.MaxState {
		return 0, errors.New("its superblock makes no sense")
	}
	return blocks << (10 + shift), nil
}

// mountVolume mounts the file system of a loop device, detached. Space that is freed in it is given back to the host.
func mountVolume(device *os.File) (int, error) {
	return newMount("ext4", func(fs int) error {
		return errors.Join(
			unix.FsconfigSetString(fs, "source", device.Name()),
			unix.FsconfigSetString(fs, "errors", "remount-ro"),
			unix.FsconfigSetFlag(fs, "noinit_itable"),
			unix.FsconfigSetFlag(fs, "discard"))
	})
}

// extResize is EXT4_IOC_RESIZE_FS of ext4(5): to so many blocks, while it is mounted.
const extResize = 0x40086610

// short reports whether the file system is smaller than its image: enlarged just now, or by a process that was killed over
// it. A format leaves less than that at the end, where nothing fits into it.
func (v volume) short() bool { return !v.fresh && (v.enlarged || v.size-v.has >= 8<<20) }

// growMounted makes the file system as large as its image. The kernel does it by the journal.
func growMounted(device *os.File, dir *safepath.Folder, v volume) error {
	err := control(device, func(fd int) error { return unix.IoctlSetInt(fd, unix.LOOP_SET_CAPACITY, 0) })
	blocks := uint64(v.size / volumeBlock)
	if err == nil {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(dir.FD()), extResize, uintptr(unsafe.Pointer(&blocks))); errno != 0 {
			err = errno
		}
	}
	if err != nil {
		return jail.Shortage(fmt.Errorf("enlarge %s to %d bytes: %w", v.name, v.size, err))
	}
	return nil
}

// growUnmounted is for a host daemon that may not ask the kernel for it. Nothing may have the volume mounted.
func (s *Storage) growUnmounted(ctx context.Context, v volume) error {
	var st unix.Stat_t
	err := control(v.image, func(fd int) error { return unix.Fstat(fd, &st) })
	if err != nil {
		return err
	}
	if !waitFor(ctx, 2*time.Second, func() bool {
		var held *os.File
		if held, err = findLoop(st.Dev, st.Ino); held != nil {
			err = errors.Join(err, held.Close())
		}
		return held == nil || err != nil
	}) || err != nil {
		return errors.Join(fmt.Errorf("enlarge %s: it is still mounted: %w", v.name, jail.ErrBusy), err)
	}
	for _, step := range [][]string{{"e2fsck", "-f", "-p"}, {"resize2fs"}} {
		tool, err := findProgram(step[0])
		if err != nil {
			return problem.Wrap(err, problem.ToolMissing, "install e2fsprogs", "volumes for agents need %s", step[0])
		}
		text, err := runOn(ctx, v.image, tool, step[1:]...)
		var exit *exec.ExitError
		if errors.As(err, &exit) && step[0] == "e2fsck" && exit.ExitCode() == 1 {
			err = nil // it repaired something (e2fsck(8))
		}
		if err != nil {
			return fmt.Errorf("enlarge %s: %s: %w: %s", v.name, step[0], err, clipText(text))
		}
	}
	return nil
}

// runOn runs a tool of e2fsprogs on an open image.
func runOn(ctx context.Context, image *os.File, tool string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, tool, append(args, "/proc/self/fd/3")...)
	cmd.ExtraFiles = []*os.File{image}
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	cmd.Dir = "/"
	return cmd.CombinedOutput()
}

// checkState says what would keep the volume from being made.
func (s *Storage) checkState(a jail.Agent) error {
	fd, err := s.volumes.Open(a.Key()+volumeSuffix, unix.O_RDONLY, 0)
	if err == nil {
		return unix.Close(fd)
	}
	if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if _, err := findProgram("mkfs.ext4"); err != nil {
		return problem.Wrap(err, problem.ToolMissing, "install e2fsprogs", "volumes for agents need mkfs.ext4")
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(s.volumes.FD(), &st); err != nil {
		return fmt.Errorf("look for space: %w", err)
	}
	if int64(st.Bavail)*st.Bsize < spare {
		return jail.Shortage(fmt.Errorf("make a volume for %s: %w", a.Name, unix.ENOSPC))
	}
	return nil
}

// RemoveState removes the volume of an agent's state. A jail that still has it mounted keeps what it sees.
func (s *Storage) RemoveState(ctx context.Context, a jail.Agent) error {
	if err := errors.Join(jail.ValidAgentName(a.Tenant), jail.ValidAgentName(a.Name), ctx.Err()); err != nil {
		return err
	}
	unlock := s.locks.lock("state " + a.Key())
	defer unlock()
	name := a.Key() + volumeSuffix
	if err := errors.Join(s.volumes.Remove("."+name+volumeFresh), s.volumes.Remove(name)); err != nil {
		return fmt.Errorf("remove the state of %s: %w", a.Name, err)
	}
	return nil
}
