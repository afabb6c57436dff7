//go:build linux

package linux

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/safepath"
)

// An agent is the same user in every jail and another one on the host for each. Its user namespace says so of processes, and
// a map of each mount says it of files: what belongs to the owner of a folder belongs to the agent in its jail.
//
// All other ids are the same on both sides, the host's root among them: the files of a template belong to whom they belong
// to, and the runtime can work in the namespace. Nothing in a jail can become one of them. That takes a capability in the
// namespace, of which no program has one, or a setuid program, of which none works.

// jailIDs are those that have a number in a jail.
const jailIDs = 1 << 16

// span is a piece of a map of ids.
type span struct{ from, to, count uint32 }

// swapped maps ids below end to themselves, and one to another that nobody else is mapped to.
func swapped(from, to, end uint32) []span {
	var out []span
	next := uint32(0)
	same := func(until uint32) {
		if until > next {
			out = append(out, span{next, next, until - next})
		}
		next = until + 1
	}
	for _, id := range []uint32{min(from, to), max(from, to)} {
		if id < end {
			same(id)
		}
	}
	if next < end {
		same(end)
	}
	return append(out, span{from, to, 1})
}

// jailMap is the map of a jail's user namespace.
func jailMap(inside, host uint32) (out []specs.LinuxIDMapping) {
	for _, s := range swapped(inside, host, jailIDs) {
		out = append(out, specs.LinuxIDMapping{ContainerID: s.from, HostID: s.to, Size: s.count})
	}
	return out
}

// owner is whom the files of a folder belong to.
type owner struct{ uid, gid uint32 }

// ownerOf is whom what an agent makes in a folder belongs to: the owner of the folder. Of root's folders it is the agents'
// own number, so that nothing an agent makes is ever root's.
func ownerOf(f *safepath.Folder) (owner, error) {
	var st unix.Stat_t
	if err := unix.Fstat(f.FD(), &st); err != nil {
		return owner{}, &os.PathError{Op: "look at", Path: f.Path(), Err: err}
	}
	o := owner{st.Uid, st.Gid}
	if o.uid == 0 {
		o = owner{jail.AgentUID, jail.AgentUID}
	}
	if o.gid == 0 {
		o.gid = o.uid
	}
	return o, nil
}

// userMaps makes the maps of mounts. The kernel takes one in the form of a user namespace; those that were made are kept for
// the next jail with the same number.
type userMaps struct {
	mu   sync.Mutex
	made map[userMap]*os.File // guarded by mu
}

// userMap maps the owner of files to a user of the host.
type userMap struct {
	of owner
	to uint32
}

// maxUserMaps bounds those that are kept: each is a descriptor.
const maxUserMaps = 256

// restrict adds a map to the attributes of a detached mount.
func (m *userMaps) restrict(tree int, name string, want userMap) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	ns := m.made[want]
	if ns == nil {
		if len(m.made) >= maxUserMaps {
			m.forget()
		}
		var err error
		if ns, err = want.namespace(); err != nil {
			return problem.Wrap(err, problem.JailFailed, "let root make user namespaces: sysctl user.max_user_namespaces",
				"the kernel makes no user namespace for the mount of %s", name)
		}
		if m.made == nil {
			m.made = map[userMap]*os.File{}
		}
		m.made[want] = ns
	}
	err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		return problem.Wrap(err, problem.Unsupported,
			"move it to a file system that can: ext4, xfs or btrfs, or tmpfs from Linux 6.3 on",
			"the file system of %s cannot map the owner of files to the agent's user", name)
	}
	if err != nil {
		return &os.PathError{Op: "map the owner of", Path: name, Err: err}
	}
	return nil
}

// TryMap says why agents cannot have folders of the file system that a folder is on: it cannot map the owner of files to
// another user.
func TryMap(folder string) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, folder, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return &os.PathError{Op: "open", Path: folder, Err: err}
	}
	defer func() { _ = unix.Close(tree) }() // it was never attached
	var maps userMaps
	defer maps.close()
	return maps.restrict(tree, folder, userMap{owner{jail.AgentUID, jail.AgentUID}, jail.AgentUID + 1})
}

func (m *userMaps) forget() {
	for k, f := range m.made {
		_ = f.Close() // mounts keep what they use
		delete(m.made, k)
	}
}

// close gives the descriptors back. Mounts keep their maps.
func (m *userMaps) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget()
}

func (u userMap) pieces(from uint32) (out []syscall.SysProcIDMap) {
	for _, s := range swapped(from, u.to, math.MaxInt32) {
		out = append(out, syscall.SysProcIDMap{ContainerID: int(s.from), HostID: int(s.to), Size: int(s.count)})
	}
	return out
}

// namespace makes a user namespace for the map of a mount.
func (u userMap) namespace() (*os.File, error) {
	// The thread that traces its process is the one that may end it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return emptyNamespace(u.pieces(u.of.uid), u.pieces(u.of.gid))
}

// ownNamespace makes the user namespace of a jail, which belongs to a user that only this jail has: what the kernel counts by
// user (watches of files, signals that wait, queues of messages) it counts for the owner of the namespace as well.
func ownNamespace(p jail.Profile) (ns *os.File, err error) {
	pieces := func(inside uint32) (out []syscall.SysProcIDMap) {
		for _, m := range jailMap(inside, p.Host) {
			out = append(out, syscall.SysProcIDMap{ContainerID: int(m.ContainerID), HostID: int(m.HostID), Size: int(m.Size)})
		}
		return out
	}
	err = OnDiscardedThread(func() error {
		// The thread becomes the user, and may do all that root may.
		if err := unix.Prctl(unix.PR_SET_SECUREBITS, secureNoSetuidFixup, 0, 0, 0); err != nil {
			return fmt.Errorf("keep capabilities: %w", err)
		}
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(p.NamespaceOwner()), ^uintptr(0)); errno != 0 {
			return fmt.Errorf("become user %d: %w", p.NamespaceOwner(), errno)
		}
		ns, err = emptyNamespace(pieces(p.UID), pieces(p.GID))
		return err
	})
	return ns, err
}

// secureNoSetuidFixup keeps the capabilities of a thread that becomes another user (SECBIT_NO_SETUID_FIXUP).
const secureNoSetuidFixup = 1 << 2

// emptyNamespace makes a user namespace that nothing is in. It needs a process for as long as it is opened: one that is stopped
// before its first instruction, and ended. The calling thread is locked, and the kernel ends the process with it.
func emptyNamespace(users, groups []syscall.SysProcIDMap) (*os.File, error) {
	p, err := os.StartProcess("/proc/self/exe", []string{"clawjail-map"}, &os.ProcAttr{Dir: "/", Env: []string{}, Sys: &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER, UidMappings: users, GidMappings: groups, GidMappingsEnableSetgroups: true,
		Ptrace: true, Pdeathsig: syscall.SIGKILL}})
	if err != nil {
		return nil, fmt.Errorf("make a user namespace: %w", err)
	}
	ns, err := os.Open(filepath.Join("/proc", fmt.Sprint(p.Pid), "ns/user"))
	if kerr := p.Kill(); kerr != nil {
		err = errors.Join(err, kerr)
	}
	if _, werr := p.Wait(); werr != nil && !errors.Is(werr, syscall.ECHILD) {
		err = errors.Join(err, werr)
	}
	if err != nil && ns != nil {
		_ = ns.Close()
		ns = nil
	}
	return ns, err
}
