//go:build linux

package hosttest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// jexec is jexec(8): this process becomes the program, in the jail. /usr/sbin/chroot, /usr/bin/nc and /sbin/sysctl of the jail
// are the simulator's own, because a template for tests has none of FreeBSD's.
func (c *command) jexec() (int, error) {
	set, rest, bad := flags(c.args, "d:lnu:U:")
	if bad != 0 || len(rest) < 1 || set['u'] != nil && set['U'] != nil || set['l'] != nil && set['u'] == nil && set['U'] == nil && len(rest) < 1 {
		return c.say(1, "usage: jexec [-l] [-d working_directory] [-u username | -U username] jail [command ...]"), nil
	}
	j := c.prison(rest[0], false)
	if j == nil {
		if _, err := strconv.Atoi(rest[0]); err == nil {
			return c.fail(1, "jail %s not found", rest[0]), nil
		}
		return c.fail(1, "jail %q not found", rest[0]), nil
	}
	argv := rest[1:]
	if len(argv) == 0 {
		argv = []string{"/bin/sh", "-i"}
	}
	who := identity{}
	if user := last(append(set['u'], set['U']...)); user != "" {
		var complaint string
		if who, complaint = passwd(filepath.Join(j.Path, "etc/passwd"), user); complaint != "" {
			return c.fail(1, "%s", complaint), nil
		}
	}
	env := os.Environ()
	if set['l'] != nil {
		env = []string{"PATH=/sbin:/bin:/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin", "HOME=" + who.home, "SHELL=/bin/sh", "USER=" + who.name}
	}
	dir := "/"
	if d := last(set['d']); d != "" {
		dir = d
	}
	// Inside /sbin/sysctl only knows the jail's own network.
	if argv[0] == "/sbin/sysctl" || argv[0] == "sysctl" {
		c.name, c.args = "sysctl", argv[1:]
		return c.sysctl(j), nil
	}
	limits, groups := c.limitsOf(j.Name), openGroups(c.group(j.Name))
	if err := c.enter(j); err != nil {
		return broken, err
	}
	if err := c.finish(); err != nil { // the jail knows of this process: now others may go on
		return broken, err
	}
	if limit, ok := limits["openfiles/process"]; ok {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			return broken, err
		}
	}
	if err := pivot(j.Path, dir); err != nil {
		return late("jexec: %v", err)
	}
	return become(argv, who, env, groups)
}

// late says why it failed when the output was closed already.
func late(format string, args ...any) (int, error) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	return 1, nil
}

// enter puts this process into the jail. It is the jail's from here on, whatever happens next.
func (c *command) enter(j *prison) error {
	me, err := look(os.Getpid())
	if err != nil {
		return err
	}
	j.Entered = append(slices.DeleteFunc(j.Entered, func(e entered) bool {
		q, err := look(e.PID)
		return err != nil || q.started != e.Start
	}), entered{me.pid, me.started})
	for kind, flag := range map[string]int{"uts": unix.CLONE_NEWUTS, "net": unix.CLONE_NEWNET} {
		f, err := os.Open(c.space(j, kind))
		if errors.Is(err, os.ErrNotExist) && kind == "net" {
			continue // it has the host's
		}
		if err != nil {
			return err
		}
		err = unix.Setns(int(f.Fd()), flag)
		if err := errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("enter %s of jail %s: %w", kind, j.Name, err)
		}
	}
	return nil
}

// pivot makes a folder of the host the root of this process, with what is mounted in it, and leaves no way out.
func pivot(root, dir string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if !mounted(root) {
		if err := unix.Mount(root, root, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return err
		}
	}
	if err := unix.Chdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root %s: %w", root, err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return err
	}
	return unix.Chdir(dir)
}

// identity is a user that a program runs as.
type identity struct {
	given      bool
	name, home string
	uid, gid   int
	groups     []int
	noNewPrivs bool
}

func passwd(file, user string) (identity, string) {
	text, err := os.ReadFile(file)
	if err != nil && user == "root" {
		return identity{given: true, name: "root", home: "/root"}, ""
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Split(strings.TrimSpace(line), ":"); len(f) >= 7 && f[0] == user {
			uid, _ := strconv.Atoi(f[2]) // a number, or root's: a test wrote it
			gid, _ := strconv.Atoi(f[3])
			return identity{given: true, name: user, home: f[len(f)-2], uid: uid, gid: gid, groups: []int{gid}}, ""
		}
	}
	return identity{}, user + ": no such user"
}

// become turns this process into a program of the jail, which is entered.
func become(argv []string, who identity, env []string, groups []*os.File) (int, error) {
	for argv[0] == "/usr/sbin/chroot" || argv[0] == "chroot" {
		set, rest, bad := flags(argv[1:], "G:g:u:n")
		if bad != 0 || len(rest) < 1 {
			return late("usage: chroot [-g group] [-G group,group,...] [-u user] [-n] newroot [command]")
		}
		who.given, who.noNewPrivs = true, set['n'] != nil
		for flag, to := range map[byte]*int{'u': &who.uid, 'g': &who.gid} {
			if text := last(set[flag]); text != "" {
				n, err := strconv.Atoi(text)
				if err != nil {
					return late("chroot: no such %s `%s'", map[byte]string{'u': "user", 'g': "group"}[flag], text)
				}
				*to = n
			}
		}
		who.groups = nil
		for _, list := range set['G'] {
			for _, text := range strings.Split(list, ",") {
				n, err := strconv.Atoi(text)
				if err != nil {
					return late("chroot: no such group `%s'", text)
				}
				who.groups = append(who.groups, n)
			}
		}
		if err := unix.Chroot(rest[0]); err != nil {
			return late("chroot: %s: %v", rest[0], errno(err))
		}
		if err := unix.Chdir("/"); err != nil {
			return late("chroot: %s: %v", rest[0], errno(err))
		}
		if argv = rest[1:]; len(argv) == 0 {
			argv = []string{"/bin/sh", "-i"}
		}
	}
	if err := who.assume(); err != nil {
		return late("jexec: %v", err)
	}
	if argv[0] == "/usr/bin/nc" || argv[0] == "nc" {
		return relay(argv[1:]), nil
	}
	file := argv[0]
	if !strings.Contains(file, "/") {
		found, err := exec.LookPath(file)
		if err != nil {
			return late("jexec: execvp: %s: No such file or directory", file)
		}
		file = found
	}
	if err := joinGroups(groups); err != nil {
		return late("jexec: %v", err)
	}
	err := unix.Exec(file, argv, env)
	return late("jexec: execvp: %s: %v", argv[0], errno(err))
}

// assume changes the credentials. Nothing of root's
// rights over the machine stays with those who are not root: a jail has none.
func (w identity) assume() error {
	if !w.given {
		return nil
	}
	if w.noNewPrivs {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return err
		}
	}
	if w.uid != 0 {
		for capability := uintptr(0); capability <= 63; capability++ {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0); err != nil {
				break // past the last
			}
		}
	}
	if err := syscall.Setgroups(w.groups); err != nil {
		return fmt.Errorf("setgroups: %w", err)
	}
	if err := syscall.Setresgid(w.gid, w.gid, w.gid); err != nil {
		return fmt.Errorf("setgid: %w", err)
	}
	if err := syscall.Setresuid(w.uid, w.uid, w.uid); err != nil {
		return fmt.Errorf("setuid: %w", err)
	}
	return nil
}

// relay is nc(1): it connects and passes bytes on in both directions, and with -N the end of its input too.
func relay(args []string) int {
	set, rest, bad := flags(args, "46nNvw:")
	if bad != 0 || len(rest) != 2 {
		fmt.Fprintln(os.Stderr, "usage: nc [-46DdEFhklMNnrStUuvz] [-e policy] [-I length] [-i interval] [-O length] [-P proxy_username] [-p source_port] [-s source] [destination] [port]")
		return 1
	}
	conn, err := net.Dial("tcp", net.JoinHostPort(rest[0], rest[1]))
	if err != nil {
		if set['v'] != nil {
			fmt.Fprintf(os.Stderr, "nc: connect to %s port %s (tcp) failed: Connection refused\n", rest[0], rest[1])
		}
		return 1
	}
	if set['v'] != nil {
		fmt.Fprintf(os.Stderr, "Connection to %s %s port [tcp/*] succeeded!\n", rest[0], rest[1])
	}
	go func() {
		_, _ = io.Copy(conn, os.Stdin) // its end is the end of this direction, whatever the reason
		if set['N'] != nil {
			_ = conn.(*net.TCPConn).CloseWrite() // likewise
		}
	}()
	_, err = io.Copy(os.Stdout, conn)
	if err != nil {
		return 1
	}
	return 0
}
