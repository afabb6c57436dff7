//go:build linux

package hosttest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// attach mounts a dataset where it says.
func (c *command) attach(d *dataset) (int, error) {
	at, err := c.node(c.mountpoint(d))
	if err != nil {
		return broken, err
	}
	if err := os.MkdirAll(at, 0o755); err != nil {
		return broken, err
	}
	if err := c.sweep(at); err != nil {
		return broken, err
	}
	data := c.pool(d.ID, "data")
	if d.Origin == "" {
		err = unix.Mount(data, at, "", unix.MS_BIND, "")
	} else {
		o := c.dataset(d.Origin)
		if o == nil {
			return broken, fmt.Errorf("the origin %s of %s is gone", d.Origin, d.Name)
		}
		err = unix.Mount("overlay", at, "overlay", 0, "lowerdir="+c.pool(o.ID, "data")+",upperdir="+data+",workdir="+c.pool(d.ID, "work"))
	}
	if err != nil {
		return broken, fmt.Errorf("mount %s: %w", d.Name, err)
	}
	d.Mounted = at
	c.Mounts = append(c.Mounts, &mount{Special: d.Name, Node: at, Type: "zfs"})
	return 0, c.refresh(d)
}

// sweep unmounts what a command left at a place when it was killed before it could write that down.
func (s *state) sweep(at string) error {
	if s.at(at) != nil {
		return nil
	}
	for mounted(at) {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			return err
		}
	}
	return nil
}

// refresh makes a mounted dataset's properties those of its mount.
func (s *state) refresh(d *dataset) error {
	for _, other := range s.Datasets {
		if other.Mounted == "" || other != d && !below(other.Name, d.Name) {
			continue
		}
		flags := uintptr(0)
		options := []string{"rw"}
		if s.property(other, "readonly", false) == "on" {
			flags, options = unix.MS_RDONLY, []string{"ro"}
		}
		for _, p := range []struct {
			property, option string
			flag             uintptr
		}{{"atime", "noatime", unix.MS_NOATIME}, {"exec", "noexec", unix.MS_NOEXEC}, {"setuid", "nosuid", unix.MS_NOSUID}} {
			if s.property(other, p.property, false) == "off" {
				flags |= p.flag
				options = append(options, p.option)
			}
		}
		if err := remount(other.Mounted, flags); err != nil {
			return fmt.Errorf("change the mount of %s: %w", other.Name, err)
		}
		if m := s.at(other.Mounted); m != nil {
			m.Options = append(options, "nfsv4acls")
		}
	}
	return nil
}

// remount changes the flags of a mount. ZFS makes a dataset read-only whoever writes to it. Linux refuses while a file is open
// for writing, and a process that a caller's other thread is about to start has that caller's files until it runs its program.
func remount(node string, flags uintptr) error {
	var err error
	for range 200 {
		if err = unix.Mount("", node, "", unix.MS_REMOUNT|unix.MS_BIND|flags, ""); !errors.Is(err, unix.EBUSY) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return err
}

// detach unmounts a dataset. Forced it goes whatever uses it, and what is mounted below stays behind, as a mount on a folder
// that no path leads to.
func (c *command) detach(d *dataset, force bool) (int, error) {
	if !force && c.busy(d.Mounted) {
		return c.say(1, "cannot unmount '%s': pool or dataset is busy", d.Mounted), nil
	}
	if err := c.release(c.at(d.Mounted)); err != nil {
		return broken, err
	}
	d.Mounted = ""
	return 0, nil
}

// release unmounts, and forgets a mount.
func (s *state) release(m *mount) error {
	if mounted(m.Node) {
		if err := unix.Unmount(m.Node, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", m.Node, err)
		}
	}
	s.Mounts = without(s.Mounts, m)
	return nil
}

// at is the newest mount on a folder.
func (s *state) at(node string) *mount {
	for _, m := range slices.Backward(s.Mounts) {
		if m.Node == node {
			return m
		}
	}
	return nil
}

// busy says whether something keeps a mounted file system: another mounted on it, a jail whose root is there, dying or not, or
// a process that has its working folder, its program or an open file there.
func (s *state) busy(node string) bool {
	for _, m := range s.Mounts {
		if m.Node != node && within(m.Node, node) {
			return true
		}
	}
	for _, p := range s.Jails {
		if within(p.Path, node) {
			return true
		}
	}
	return len(s.users(node)) > 0
}

// users are the processes outside of jails that use something of a folder's file system.
func (s *state) users(node string) []int {
	var out []int
	for _, pid := range pids() {
		dir := fmt.Sprintf("/proc/%d", pid)
		links := []string{dir + "/cwd", dir + "/root", dir + "/exe"}
		files, err := os.ReadDir(dir + "/fd")
		if err != nil {
			continue
		}
		for _, f := range files {
			links = append(links, dir+"/fd/"+f.Name())
		}
		if slices.ContainsFunc(links, func(l string) bool {
			to, err := os.Readlink(l)
			return err == nil && within(to, node) && s.owner(to) == node
		}) {
			out = append(out, pid)
		}
	}
	return out
}

// owner is the mount that a path lies in.
func (s *state) owner(path string) string {
	best := ""
	for _, m := range s.Mounts {
		if within(path, m.Node) && len(m.Node) > len(best) {
			best = m.Node
		}
	}
	return best
}

// mounted says whether something is mounted on a folder.
func mounted(node string) bool {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 4 && f[4] == node {
			return true
		}
	}
	return false
}

// mountCommand is mount(8) and mount_nullfs(8).
func (c *command) mountCommand() (int, error) {
	if c.name == "mount_nullfs" {
		set, rest, bad := flags(c.args, "o:")
		if bad != 0 || len(rest) != 2 {
			return c.say(1, "usage: mount_nullfs [-o options] target mount-point"), nil
		}
		return c.mountOf("nullfs", split(set['o']), rest[0], rest[1])
	}
	set, rest, bad := flags(c.args, "o:t:p")
	if bad != 0 {
		return c.say(1, "usage: mount [-adflnpruvw] [-F fstab] [-o options] [-t ufs | external_type]"), nil
	}
	switch {
	case set['p'] != nil && len(rest) == 0:
		c.listMounts()
		return 0, nil
	case len(c.args) == 0:
		for _, m := range c.Mounts {
			fmt.Fprintf(&c.out, "%s on %s (%s, local)\n", m.Special, m.Node, strings.Join(append([]string{m.Type}, m.Options...), ", "))
		}
		return 0, nil
	case len(rest) != 2 || set['t'] == nil:
		return c.say(1, "usage: mount [-adflnpruvw] [-F fstab] [-o options] [-t ufs | external_type]"), nil
	}
	return c.mountOf(last(set['t']), split(set['o']), rest[0], rest[1])
}

// listMounts prints what fstab(5) would say: fields are filled up with tabs, and with a blank where that is too late.
func (c *command) listMounts() {
	tabs := func(text string) string {
		switch n := len(text); {
		case n < 8:
			return text + "\t\t\t"
		case n < 16:
			return text + "\t\t"
		case n < 24:
			return text + "\t"
		}
		return text + " "
	}
	for _, m := range c.Mounts {
		options := strings.Join(m.Options, ",")
		if len(options) < 8 {
			options += "\t"
		} else {
			options += " "
		}
		fmt.Fprintf(&c.out, "%s%s%s\t%s\t0 0\n", tabs(m.Special), tabs(m.Node), m.Type, options)
	}
}

func split(options []string) []string {
	var out []string
	for _, o := range options {
		out = append(out, strings.Split(o, ",")...)
	}
	return out
}

// mountOf mounts a file system of a type.
func (c *command) mountOf(kind string, options []string, special, path string) (int, error) {
	program := "mount_" + kind
	if kind == "tmpfs" || kind == "devfs" {
		program = "mount" // they have no program of their own, mount(8) mounts them itself
	}
	at, err := c.node(path)
	if err != nil {
		return broken, err
	}
	info, err := os.Stat(at)
	if err != nil {
		return c.say(1, "%s: %s: %v", program, path, errno(err)), nil
	}
	if !info.IsDir() && kind != "nullfs" {
		return c.say(1, "%s: %s: Not a directory", program, path), nil
	}
	m := &mount{Special: special, Node: at, Type: kind, Options: []string{"rw"}}
	flag, data, bad := c.mountOptions(m, options)
	if bad != "" {
		return c.say(1, "%s: %s: Invalid argument", program, bad), nil
	}
	switch kind {
	case "tmpfs":
		err = unix.Mount("tmpfs", at, "tmpfs", flag, strings.Join(data, ","))
	case "devfs":
		err = devfs(at)
	case "nullfs":
		from, bad := c.node(special)
		if bad != nil {
			return broken, bad
		}
		source, bad := os.Stat(from)
		switch {
		case bad != nil:
			return c.say(1, "mount_nullfs: %s: %v", special, errno(bad)), nil
		case source.IsDir() != info.IsDir():
			return c.say(1, "mount_nullfs: %s: Not a directory", path), nil
		case within(from, at) || within(at, from):
			return c.say(1, "mount_nullfs: %s: Resource deadlock avoided", path), nil
		}
		m.Special = from
		if err = unix.Mount(from, at, "", unix.MS_BIND, ""); err == nil {
			err = unix.Mount("", at, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NODEV|flag, "")
		}
	default:
		return c.say(1, "mount: %s: Operation not supported by device", special), nil
	}
	if err != nil {
		return broken, fmt.Errorf("mount %s on %s: %w", kind, at, err)
	}
	c.Mounts = append(c.Mounts, m)
	return 0, nil
}

// mountOptions sorts options into flags, which mount(8) lists, and what a tmpfs is told, which nothing lists.
func (c *command) mountOptions(m *mount, options []string) (flag uintptr, data []string, bad string) {
	flag = unix.MS_NODEV
	for _, o := range options {
		key, value, _ := strings.Cut(o, "=")
		switch key {
		case "rw":
		case "ro", "rdonly":
			flag |= unix.MS_RDONLY
			m.Options[0] = "ro"
		case "nosuid":
			flag |= unix.MS_NOSUID
			m.Options = append(m.Options, key)
		case "noexec":
			flag |= unix.MS_NOEXEC
			m.Options = append(m.Options, key)
		case "noatime":
			flag |= unix.MS_NOATIME
			m.Options = append(m.Options, key)
		case "ruleset":
			if m.Type != "devfs" || !slices.Contains(c.Rulesets, value) {
				return 0, nil, o
			}
		case "size", "mode", "uid", "gid", "inodes":
			if m.Type != "tmpfs" {
				return 0, nil, o
			}
			switch key {
			case "size":
				n, good := size(value)
				if !good {
					return 0, nil, o
				}
				value = strconv.FormatInt(n, 10)
			case "inodes":
				key = "nr_inodes"
			}
			data = append(data, key+"="+value)
		default:
			return 0, nil, o
		}
	}
	return flag, data, ""
}

// devfs mounts what a devfs shows with a ruleset of the harmless devices.
func devfs(at string) error {
	if err := unix.Mount("devfs", at, "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=755,size=65536"); err != nil {
		return err
	}
	for name, minor := range map[string]uint32{"null": 3, "zero": 5, "random": 8, "urandom": 9} {
		if err := unix.Mknod(filepath.Join(at, name), unix.S_IFCHR|0o666, int(unix.Mkdev(1, minor))); err != nil {
			return err
		}
		if err := os.Chmod(filepath.Join(at, name), 0o666); err != nil {
			return err
		}
	}
	// The tree of a jail has folders for mounts on it; a program of Linux expects /dev/shm, a driver for FreeBSD mounts none.
	return os.Mkdir(filepath.Join(at, "fd"), 0o755)
}

// umountCommand is umount(8).
func (c *command) umountCommand() (int, error) {
	set, rest, bad := flags(c.args, "f")
	if bad != 0 || len(rest) != 1 {
		return c.say(1, "usage: umount [-fNnv] special ... | node ... | fsid ..."), nil
	}
	path := filepath.Clean(rest[0])
	m := c.at(path)
	if m == nil {
		if _, err := os.Stat(path); err != nil {
			return c.fail(1, "%s: statfs: %v\numount: %s: unknown file system", rest[0], errno(err), rest[0]), nil
		}
		return c.fail(1, "%s: not a file system root directory", rest[0]), nil
	}
	if set['f'] == nil && (c.busy(m.Node) || m.Type == "zfs" && len(c.users(m.Node)) > 0) {
		return c.fail(1, "unmount of %s failed: Device busy", m.Node), nil
	}
	for _, d := range c.Datasets {
		if d.Mounted == m.Node && m.Type == "zfs" {
			d.Mounted = ""
		}
	}
	return 0, c.release(m)
}

// errno is what strerror(3) of FreeBSD says of an error.
func errno(err error) string {
	var no unix.Errno
	if !errors.As(err, &no) {
		return err.Error()
	}
	switch no {
	case unix.ENOENT:
		return "No such file or directory"
	case unix.ENOTDIR:
		return "Not a directory"
	case unix.EACCES:
		return "Permission denied"
	case unix.EPERM:
		return "Operation not permitted"
	case unix.EBUSY:
		return "Device busy"
	case unix.EEXIST:
		return "File exists"
	}
	return no.Error()
}
