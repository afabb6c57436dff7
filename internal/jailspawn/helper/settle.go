package helper

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jailspawn/process"
)

// started is the name that the helper starts itself by in a clean environment. A start by it without one is refused, so that
// it never starts itself more than once.
const started = "clawjail-spawn: clean"

// cleanEnvironment is all that the helper itself ever has. The last is put there by Go's runtime in every setuid program.
func cleanEnvironment() []string {
	return []string{"PATH=/sbin:/bin:/usr/sbin:/usr/bin", "LC_ALL=C", "GOTRACEBACK=none"}
}

// again starts the helper anew in a clean environment, with the real user id as it is. It returns only when it cannot.
func again(args []string) error {
	if args[0] == started {
		return errors.New("its environment is not clean after it was cleaned")
	}
	self := "/proc/self/exe" // this very file, whatever its name stands for by now
	if runtime.GOOS != "linux" {
		path, err := os.Executable()
		if err != nil {
			return err
		}
		if err := Trusted(path); err != nil { // a name for it elsewhere, a hard link, could be somebody's
			return fmt.Errorf("start anew: %w", err)
		}
		self = path
	}
	return fmt.Errorf("start anew: %w", syscall.Exec(self, append([]string{started}, args[1:]...), cleanEnvironment()))
}

// settle makes the process root's alone: nothing of the caller is left in it but the descriptors 0 to 3.
func settle() error {
	syscall.Umask(0o077)
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := standardDescriptors(); err != nil {
		return err
	}
	if err := limits(); err != nil {
		return fmt.Errorf("set limits: %w", err)
	}
	// Groups first, then the group, then the user: with root's effective id each sets the real, effective and saved one.
	if err := syscall.Setgroups([]int{0}); err != nil {
		return fmt.Errorf("leave groups: %w", err)
	}
	if err := syscall.Setgid(0); err != nil {
		return fmt.Errorf("change group: %w", err)
	}
	if err := syscall.Setuid(0); err != nil {
		return fmt.Errorf("change user: %w", err)
	}
	groups, err := os.Getgroups()
	if err != nil {
		return err
	}
	if os.Getuid() != 0 || os.Geteuid() != 0 || os.Getgid() != 0 || os.Getegid() != 0 || len(groups) > 1 || len(groups) == 1 && groups[0] != 0 {
		return errors.New("the process is not root's alone")
	}
	if err := process.Hide(); err != nil { // last: on some systems a change of ids takes it back
		return fmt.Errorf("hide the memory: %w", err)
	}
	return nil
}

// standardDescriptors sees to it that 0 to 2 are open: what is opened next would be taken for one of them.
func standardDescriptors() error {
	for fd := range 3 {
		var st unix.Stat_t
		err := unix.Fstat(fd, &st)
		if err == nil {
			continue
		}
		got, err := unix.Open(os.DevNull, unix.O_RDWR, 0)
		if err != nil {
			return err
		}
		if got != fd {
			return fmt.Errorf("descriptor %d is closed and cannot be opened", fd)
		}
	}
	return nil
}

// limits takes back what a caller may have set so that something fails half way.
func limits() error {
	const endless = unix.RLIM_INFINITY
	for resource, limit := range map[int]uint64{
		unix.RLIMIT_CORE: 0, unix.RLIMIT_NOFILE: 1024, unix.RLIMIT_FSIZE: endless, unix.RLIMIT_CPU: endless, unix.RLIMIT_DATA: endless, unix.RLIMIT_AS: endless,
	} {
		if err := setLimit(resource, limit); err != nil {
			return err
		}
	}
	return unix.Setpriority(unix.PRIO_PROCESS, 0, 0)
}

// note writes one line to the system's log, when there is one: who, what, which. No more of what the caller said than names.
func note(what string, uid int, which string) {
	const authInfo = 10<<3 | 6 // LOG_AUTHPRIV, LOG_INFO (syslog(3))
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(fd) }() // nothing to do about it
	unix.CloseOnExec(fd)
	_ = unix.SetNonblock(fd, true) // a log that is full is not waited for
	text := fmt.Appendf(nil, "<%d>clawjail-spawn[%d]: uid %d: %s: %s", authInfo, os.Getpid(), uid, what, oneLine(which))
	for _, path := range []string{"/var/run/log", "/dev/log"} {
		if unix.Sendto(fd, text, 0, &unix.SockaddrUnix{Name: path}) == nil {
			return
		}
	}
}

// oneLine keeps a text from being taken for more than one line, and from ruling a terminal.
func oneLine(text string) string {
	out := []byte(text)
	for n, c := range out {
		if c < ' ' || c > '~' {
			out[n] = '?'
		}
	}
	return string(out[:min(len(out), 300)])
}
