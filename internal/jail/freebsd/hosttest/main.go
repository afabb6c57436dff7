//go:build linux

package hosttest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// names are the commands of a simulated host, with the folders that they have on a real one.
func names() map[string]string {
	return map[string]string{
		"zfs": "/sbin", "jail": "/usr/sbin", "jls": "/usr/sbin", "jexec": "/usr/sbin", "ifconfig": "/sbin", "pfctl": "/sbin", "rctl": "/usr/bin",
		"mount": "/sbin", "umount": "/sbin", "mount_nullfs": "/sbin", "ps": "/bin", "sysctl": "/sbin", "kldstat": "/sbin", "mdo": "/usr/bin",
		"uname": "/usr/bin", "devfs": "/sbin", "netstat": "/usr/bin", "sudo": "/usr/local/bin",
	}
}

// Main becomes a command of a simulated host and ends the process, when it was started as one. Else it returns. A package
// whose tests use New calls it first in its TestMain.
func Main() {
	dir := filepath.Dir(filepath.Dir(os.Args[0]))
	name := filepath.Base(os.Args[0])
	if _, known := names()[name]; !known || filepath.Base(filepath.Dir(os.Args[0])) != "bin" {
		return
	}
	if _, err := os.Stat(filepath.Join(dir, stateFile)); err != nil {
		return
	}
	// Namespaces and credentials are of a thread, and what others see of a process is its first one.
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		if err := unix.Exec("/proc/self/exe", os.Args, os.Environ()); err != nil {
			fmt.Fprintln(os.Stderr, "simulator: start again:", err)
			os.Exit(70)
		}
	}
	os.Exit(act(dir, name, os.Args[1:]))
}

// command is one command that runs.
type command struct {
	*state
	lock  *os.File
	name  string
	args  []string
	out   bytes.Buffer
	errs  bytes.Buffer
	ended bool // its output was written and its lock given back
}

// broken is the status of a command when the simulator itself failed: no command of the host ends with it.
const broken = 70

func act(dir, name string, args []string) int {
	if err := record(dir, append([]string{name}, args...)); err != nil {
		fmt.Fprintln(os.Stderr, "simulator:", err)
		return broken
	}
	s, lock, err := open(dir)
	if err != nil {
		fmt.Fprintf(os.Stderr, "simulator: %s: %v\n", name, err)
		return broken
	}
	c := &command{state: s, lock: lock, name: name, args: args}
	act := c.perform
	if !c.permitted() {
		act = func() (int, error) { return c.fail(1, "Operation not permitted"), nil }
	}
	status, err := c.suffer(act)
	if err != nil {
		fmt.Fprintf(&c.errs, "simulator: %s %s: %v\n", name, strings.Join(args, " "), err)
		status = broken
	}
	if err := c.finish(); err != nil {
		fmt.Fprintf(os.Stderr, "simulator: %s: %v\n", name, err)
		return broken
	}
	return status
}

// permitted says whether whoever calls may do this. Where the simulator is setuid root, so that everybody can change the
// state that stands for the kernel, users are held to what users may.
func (c *command) permitted() bool {
	users := []string{"jls", "ps", "sysctl", "kldstat", "mdo", "uname", "netstat", "sudo"}
	return unix.Getuid() == 0 || unix.Geteuid() != 0 || slices.Contains(users, c.name)
}

// perform does what the command does. Its error is of the simulator; those of the command are a status.
func (c *command) perform() (int, error) {
	switch c.name {
	case "zfs":
		return c.zfs()
	case "jail":
		return c.jail()
	case "jls":
		return c.jls(), nil
	case "jexec":
		return c.jexec()
	case "ifconfig":
		return c.ifconfig()
	case "pfctl":
		return c.pfctl(), nil
	case "rctl":
		return c.rctl(), nil
	case "mount", "mount_nullfs":
		return c.mountCommand()
	case "umount":
		return c.umountCommand()
	case "ps":
		return c.ps(), nil
	case "sysctl":
		return c.sysctl(nil), nil
	case "kldstat":
		return c.kldstat(), nil
	case "mdo":
		return c.mdo()
	case "sudo":
		return c.sudo()
	case "uname":
		return c.uname(), nil
	case "devfs":
		return c.devfs()
	case "netstat":
		return c.netstat()
	}
	return broken, fmt.Errorf("no such command")
}

// finish writes the state and what the command said, and gives the lock back.
func (c *command) finish() error {
	if c.ended {
		return nil
	}
	c.ended = true
	if err := c.save(); err != nil {
		return err
	}
	if err := c.lock.Close(); err != nil {
		return err
	}
	// A reader that does not listen any more is no concern of a command.
	_, _ = io.Copy(os.Stdout, &c.out)
	_, _ = io.Copy(os.Stderr, &c.errs)
	return nil
}

// fail says why a command failed, in the way of err(3): with its name in front.
func (c *command) fail(status int, format string, args ...any) int {
	return c.say(status, c.name+": "+format, args...)
}

// say is fail without the name.
func (c *command) say(status int, format string, args ...any) int {
	fmt.Fprintf(&c.errs, format+"\n", args...)
	return status
}

// flags parses options as getopt(3) does: letters, those followed by ':' with a value. Its error is the letter that is none.
func flags(args []string, letters string) (set map[byte][]string, rest []string, bad byte) {
	set = map[byte][]string{}
	for len(args) > 0 {
		arg := args[0]
		if arg == "--" {
			return set, args[1:], 0
		}
		if len(arg) < 2 || arg[0] != '-' {
			break
		}
		args = args[1:]
		for i := 1; i < len(arg); i++ {
			at := strings.IndexByte(letters, arg[i])
			if at < 0 || arg[i] == ':' {
				return nil, nil, arg[i]
			}
			if at+1 == len(letters) || letters[at+1] != ':' {
				set[arg[i]] = append(set[arg[i]], "")
				continue
			}
			value := arg[i+1:]
			if value == "" {
				if len(args) == 0 {
					return nil, nil, arg[i]
				}
				value, args = args[0], args[1:]
			}
			set[arg[i]] = append(set[arg[i]], value)
			break
		}
	}
	return set, args, 0
}

// last is the value of an option that may be given again.
func last(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[len(values)-1]
}

// record appends to the log of commands.
func record(dir string, args []string) error {
	line, err := json.Marshal(logged{At: time.Now(), Command: args})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, logFile), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if _, err := f.Write(append(line, '\n')); err != nil {
		return err
	}
	return f.Close()
}

type logged struct {
	At      time.Time
	Command []string
}

func without[T comparable](list []T, gone T) []T {
	return slices.DeleteFunc(list, func(x T) bool { return x == gone })
}
