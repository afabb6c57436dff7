//go:build linux

package hosttest

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// sysctl is sysctl(8), of the host or of a jail with its own network.
func (c *command) sysctl(j *prison) int {
	set, rest, bad := flags(c.args, "niqaed")
	if bad != 0 || len(rest) == 0 && set['a'] == nil {
		return c.say(1, "usage: sysctl [-bdehiNnoqTtWx] [ -B <bufsize> ] [-f filename] name[=value] ...\n       sysctl [-bdehNnoqTtWx] [ -B <bufsize> ] -a")
	}
	if set['a'] != nil {
		rest = slices.Sorted(maps.Keys(c.Sysctls))
	}
	status := 0
	for _, arg := range rest {
		key, value, change := strings.Cut(arg, "=")
		old, known := c.Sysctls[key]
		if j != nil && key == "net.inet.tcp.msl" {
			old, known = strconv.Itoa(j.MSL), true
		}
		if !known {
			if set['i'] == nil {
				status = c.fail(1, "unknown oid '%s'", key)
			}
			continue
		}
		if change {
			switch {
			case key == "kern.racct.enable":
				status = c.fail(1, "oid 'kern.racct.enable' is a read only tunable\nsysctl: Tunable values are set in /boot/loader.conf")
				continue
			case j != nil && key != "net.inet.tcp.msl":
				status = c.fail(1, "%s=%s: Operation not permitted", key, value)
				continue
			case j != nil:
				n, err := strconv.Atoi(value)
				if err != nil || n <= 0 {
					status = c.fail(1, "invalid integer '%s'", value)
					continue
				}
				j.MSL = n
			default:
				c.Sysctls[key] = value
			}
			if set['q'] == nil {
				fmt.Fprintf(&c.out, "%s: %s -> %s\n", key, old, value)
			}
			continue
		}
		if set['n'] != nil {
			fmt.Fprintln(&c.out, old)
		} else {
			fmt.Fprintf(&c.out, "%s: %s\n", key, old)
		}
	}
	return status
}

// kldstat is kldstat(8) with -m, which asks for a module, and -n, which asks for a file.
func (c *command) kldstat() int {
	set, rest, bad := flags(c.args, "hqvi:m:n:")
	if bad != 0 || len(rest) > 0 {
		return c.say(1, "usage: kldstat [-d] [-h] [-q] [-v] [-i id] [-n filename]\n       kldstat [-d] [-q] [-m modname]")
	}
	for flag, what := range map[byte]string{'m': "module", 'n': "file"} {
		name := last(set[flag])
		if name == "" {
			continue
		}
		if !slices.Contains(c.Klds, strings.TrimSuffix(name, ".ko")) {
			if set['q'] == nil {
				c.fail(1, "can't find %s %s: No such file or directory", what, name)
			}
			return 1
		}
		if set['q'] == nil {
			fmt.Fprintf(&c.out, "Id  Refs Name\n%3d %4d %s\n", 400, 1, name)
		}
		return 0
	}
	fmt.Fprintln(&c.out, "Id Refs Address                Size Name")
	for i, k := range c.Klds {
		fmt.Fprintf(&c.out, "%2d    1 0xffffffff80200000  %6d %s.ko\n", i+1, 4096, k)
	}
	return 0
}

// mdo is mdo(1): this process becomes the command, as another user, when mac_do(4) is loaded and has a rule for that. Root
// needs neither. The caller is not root for it when the host's sysctl hosttest.uid says so.
func (c *command) mdo() (int, error) {
	set, rest, bad := flags(c.args, "u:i")
	if bad != 0 {
		return c.say(1, "usage: mdo [-u username] [-i] [--] [command [args]]"), nil
	}
	user := cmp.Or(last(set['u']), "root")
	uid, err := strconv.Atoi(user)
	if user == "root" {
		uid = 0
	} else if err != nil {
		return c.fail(1, "invalid username '%s': No such file or directory", user), nil
	}
	caller := unix.Getuid()
	if text := c.Sysctls["hosttest.uid"]; text != "" {
		if caller, err = strconv.Atoi(text); err != nil {
			return broken, err
		}
	}
	if caller != 0 && !(slices.Contains(c.Klds, "mac_do") && allows(c.Sysctls["security.mac.do.rules"], caller, uid)) {
		return c.fail(1, "calling setcred() failed: Operation not permitted"), nil
	}
	if len(rest) == 0 {
		rest = []string{"/bin/sh", "-i"}
	}
	return c.become(uid, rest)
}

// become ends this command and becomes another one, of a user.
func (c *command) become(uid int, argv []string) (int, error) {
	if unix.Geteuid() != 0 {
		return broken, fmt.Errorf("the simulator cannot make root of uid %d: it runs as root, with the sysctl hosttest.uid, or is setuid", unix.Geteuid())
	}
	if err := c.finish(); err != nil {
		return broken, err
	}
	file, err := argv[0], error(nil)
	if !strings.Contains(file, "/") {
		if file, err = exec.LookPath(file); err != nil {
			return late(c.name + ": exec failed: No such file or directory")
		}
	}
	if uid != unix.Getuid() {
		if err := (identity{given: true, uid: uid, gid: uid}).assume(); err != nil {
			return late(c.name+": calling setcred() failed: %v", err)
		}
	}
	err = unix.Exec(file, argv, os.Environ())
	return late(c.name+": exec failed: %v", errno(err))
}

// sudo is sudo(8) with -n: -l asks whether a command may be run, and without it this process becomes the command. The sysctl
// hosttest.sudo names the user who may run everything.
func (c *command) sudo() (int, error) {
	set, rest, bad := flags(c.args, "nl")
	if bad != 0 || len(rest) == 0 || set['n'] == nil {
		return c.say(1, "usage: sudo -n [-l] [--] command [args]"), nil
	}
	if caller := unix.Getuid(); caller != 0 && c.Sysctls["hosttest.sudo"] != strconv.Itoa(caller) {
		return c.say(1, "sudo: a password is required"), nil
	}
	if set['l'] != nil {
		return c.say(0, "%s", strings.Join(rest, " ")), nil
	}
	return c.become(0, rest)
}

// allows says whether rules of mac_do(4) let a user become another. Of the grammar only uid=, gid= of the caller's own group
// of the same number, uid= and any are understood; several rules are separated by ";" (15) or "," (14).
func allows(rules string, from, to int) bool {
	for _, rule := range strings.Split(rules, ";") {
		who, targets, ok := strings.Cut(strings.ReplaceAll(rule, " ", ""), ">")
		if !ok {
			if who, targets, ok = strings.Cut(rule, ":"); !ok { // the grammar of 14
				continue
			}
		}
		if who != fmt.Sprintf("uid=%d", from) && who != fmt.Sprintf("gid=%d", from) {
			continue
		}
		for _, t := range strings.Split(targets, ",") {
			if t == "any" || t == "uid=*" || t == "uid=any" || t == fmt.Sprintf("uid=%d", to) {
				return true
			}
		}
	}
	return false
}
