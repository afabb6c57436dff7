//go:build linux

package hosttest

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const jailUsage = "usage: jail [-dhilqv] [-J jid_file] [-u username] [-U username]\n            -[cmr] param=value ... [command=command ...]\n" +
	"       jail [-dqv] [-f file] -[cmr] [jail]\n       jail [-qv] [-f file] -[rR] ['*' | jail ...]\n       jail [-dhilqv] [-J jid_file] [-u username] [-U username]\n" +
	"            path hostname [ip[,...]] command ..."

// defaultMSL is net.inet.tcp.msl of a new network stack, in milliseconds.
const defaultMSL = 30000

func (c *command) jail() (int, error) { return c.jailUntil("", Fault{}) }

// jailUntil is jail(8), which fails after a stage when one is named.
func (c *command) jailUntil(stage string, f Fault) (int, error) {
	set, rest, bad := flags(c.args, "cdf:hiJ:lmn:p:qrRs:u:U:v")
	create, remove := set['c'] != nil, set['r'] != nil || set['R'] != nil
	if bad != 0 || create == remove || set['m'] != nil || len(rest) == 0 {
		return c.say(1, jailUsage), nil
	}
	for _, not := range []byte("dhJlnps") {
		if set[not] != nil {
			return broken, fmt.Errorf("-%c is not modelled", not)
		}
	}
	if remove {
		return c.jailRemove(set, rest)
	}
	if len(rest) == 1 && !strings.Contains(rest[0], "=") {
		file := cmp.Or(last(set['f']), "/etc/jail.conf")
		text, err := os.ReadFile(file)
		if err != nil {
			return c.fail(1, "%s: %v", file, errno(err)), nil
		}
		blocks, err := parseConf(string(text))
		if err != nil {
			return c.fail(1, "%s: %v", file, err), nil
		}
		p := blocks[rest[0]]
		if p == nil {
			return c.fail(1, "%q not found", rest[0]), nil
		}
		return c.jailCreate(p, rest[0], set, stage, f)
	}
	p := params{}
	for i, arg := range rest {
		if arg == "command" || strings.HasPrefix(arg, "command=") {
			if first := strings.TrimPrefix(arg, "command="); arg != "command" {
				p["command"] = append(p["command"], first)
			}
			p["command"] = append(p["command"], rest[i+1:]...)
			break
		}
		name, value, given := strings.Cut(arg, "=")
		if p[name] == nil {
			p[name] = []string{}
		}
		if given {
			p[name] = append(p[name], strings.Split(value, ",")...)
		}
	}
	for flag, name := range map[byte]string{'u': "exec.system_jail_user", 'U': "exec.jail_user"} {
		if set[flag] != nil {
			p[name] = set[flag]
		}
	}
	return c.jailCreate(p, "", set, stage, f)
}

// jailCreate makes a jail: file systems, the jail, its interfaces, its command. A failed step undoes those before it, backwards.
func (c *command) jailCreate(p params, label string, set map[byte][]string, stage string, f Fault) (int, error) {
	warn := func(format string, args ...any) int {
		if label != "" {
			format = label + ": " + format
		}
		return c.fail(1, format, args...)
	}
	if complaint := p.check(); complaint != "" {
		return warn("%s", complaint), nil
	}
	name := p.value("name")
	if name != "" && c.prison(name, false) != nil {
		return c.fail(1, "%q already exists", name), nil
	}
	if !p.on("persist") && len(p["command"]) == 0 {
		return warn("no persist, exec.start or command"), nil
	}
	path := p.value("path")
	if !strings.HasPrefix(path, "/") {
		return warn("path %s: not an absolute pathname", path), nil
	}
	path, err := c.node(path)
	if err != nil {
		return broken, err
	}
	if info, err := os.Stat(path); err != nil {
		return warn("path %s: %v", path, errno(err)), nil
	} else if !info.IsDir() {
		return warn("path %s: Not a directory", path), nil
	}
	var undo []func() error
	back := func(status int) (int, error) {
		for _, u := range slices.Backward(undo) {
			if err := u(); err != nil {
				return broken, err
			}
		}
		return status, nil
	}
	stopped := func(at string) bool {
		if stage == at {
			c.errs.WriteString(c.words(f.Stderr))
			return true
		}
		return false
	}
	if p.on("mount.devfs") {
		ruleset := cmp.Or(p.value("devfs_ruleset"), "4")
		dev := filepath.Join(path, "dev")
		if status, err := c.mountOf("devfs", []string{"ruleset=" + ruleset}, "devfs", dev); status != 0 || err != nil {
			return warn("/sbin/mount -t devfs -oruleset=%s . %s: failed", ruleset, dev), err
		}
		undo = append(undo, func() error { return c.release(c.at(dev)) })
	}
	if stopped("mounted") {
		return back(f.Status)
	}
	c.NextJID++
	jid := c.NextJID
	j := &prison{JID: jid, Name: cmp.Or(name, strconv.Itoa(jid)), Path: path, Persist: true, MSL: defaultMSL, VNet: p.on("vnet") || p.value("vnet") == "new", Params: map[string]string{}}
	for k, v := range p {
		j.Params[k] = strings.Join(v, ",")
	}
	if err := c.makeSpaces(j, p.value("ip4") == "inherit"); err != nil {
		return broken, err
	}
	c.Jails = append(c.Jails, j)
	if j.VNet {
		c.Ifaces = append(c.Ifaces, &iface{Name: "lo0", Driver: "lo", VNet: jid, Groups: []string{"lo"}})
	}
	undo = append(undo, func() error { return c.remove(j) })
	if err := c.enforce(j.Name); err != nil {
		return broken, err
	}
	quiet := set['q'] != nil || set['i'] != nil
	if label != "" && !quiet {
		fmt.Fprintf(&c.out, "%s: created\n", label)
	}
	if set['i'] != nil {
		fmt.Fprintln(&c.out, jid)
	}
	if stopped("created") {
		return back(f.Status)
	}
	for _, i := range p["vnet.interface"] {
		if status := c.toVNet(i, j); status != 0 {
			warn("/sbin/ifconfig %s vnet %s: failed", i, cmp.Or(name, strconv.Itoa(jid)))
			return back(1)
		}
	}
	if stopped("vnet") {
		return back(f.Status)
	}
	if len(p["command"]) > 0 {
		return c.jailCommand(j, p, warn)
	}
	return 0, nil
}

// jailCommand runs the command of a jail to its end. The jail ends with its last process unless it persists.
func (c *command) jailCommand(j *prison, p params, warn func(string, ...any) int) (int, error) {
	dir, persist := c.Dir, p.on("persist")
	if err := c.save(); err != nil {
		return broken, err
	}
	if err := c.lock.Close(); err != nil {
		return broken, err
	}
	args := []string{}
	if user := cmp.Or(p.value("exec.jail_user")); user != "" {
		args = append(args, "-U", user)
	}
	cmd := exec.Command(filepath.Join(dir, "bin", "jexec"), append(append(args, strconv.Itoa(j.JID)), p["command"]...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = os.Environ()
	if p.on("exec.clean") {
		cmd.Env = []string{"PATH=/bin:/usr/bin:/usr/local/bin", "USER=root", "HOME=/root", "SHELL=/bin/sh"}
		if term := os.Getenv("TERM"); term != "" {
			cmd.Env = append(cmd.Env, "TERM="+term)
		}
	}
	run := cmd.Run()
	var err error
	if c.state, c.lock, err = open(dir); err != nil {
		return broken, err
	}
	status := 0
	if run != nil {
		status = warn("%s: failed", strings.Join(p["command"], " "))
	}
	if k := c.prison(strconv.Itoa(j.JID), false); k != nil {
		k.Persist = persist
	}
	return status, c.pass()
}

// jailRemove is jail -r and -R.
func (c *command) jailRemove(set map[byte][]string, names []string) (int, error) {
	status := 0
	configured := map[string]params{}
	noted := len(names) > 1
	if file := last(set['f']); set['R'] == nil && file != "" {
		text, err := os.ReadFile(file)
		if err == nil {
			if configured, err = parseConf(string(text)); err != nil {
				return c.fail(1, "%s: %v", file, err), nil
			}
			noted = true
		}
	}
	for _, name := range names {
		j := c.prison(name, false)
		if j == nil {
			if set['q'] == nil {
				c.fail(1, "%q not found", name)
			}
			status = 1
			continue
		}
		if err := c.remove(j); err != nil {
			return broken, err
		}
		if noted && set['q'] == nil {
			fmt.Fprintf(&c.out, "%s: removed\n", name)
		}
		if configured[name].on("mount.devfs") {
			if m := c.at(filepath.Join(j.Path, "dev")); m != nil {
				if err := c.release(m); err != nil {
					return broken, err
				}
			}
		}
	}
	return status, nil
}

// makeSpaces makes the namespaces that a jail's processes are in, and keeps them by files.
func (s *state) makeSpaces(j *prison, shared bool) error {
	if err := os.MkdirAll(filepath.Join(s.Dir, "ns"), 0o700); err != nil {
		return err
	}
	kinds := map[string]int{"uts": unix.CLONE_NEWUTS, "net": unix.CLONE_NEWNET}
	if shared {
		delete(kinds, "net")
	}
	for kind, flag := range kinds {
		if err := unix.Unshare(flag); err != nil {
			return fmt.Errorf("unshare %s: %w", kind, err)
		}
		file := s.space(j, kind)
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			return err
		}
		if err := unix.Mount("/proc/self/ns/"+kind, file, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	return unix.Sethostname([]byte(cmp.Or(j.Params["host.hostname"], j.Name)))
}

// remove is jail_remove(2): the processes end, and the jail stays for as long as something still holds it.
func (s *state) remove(j *prison) error {
	if err := s.kill(j); err != nil {
		return err
	}
	wait := time.Duration(0)
	if s.Dying == "msl" && j.VNet {
		wait = 2 * time.Duration(j.MSL) * time.Millisecond
	} else if s.Dying != "msl" {
		var err error
		if wait, err = duration(s.Dying); err != nil {
			return err
		}
	}
	j.Until = time.Now().Add(wait)
	if wait > 0 {
		return nil
	}
	return s.bury(j)
}

// bury is the end of a dying jail: its interfaces return to the host, without the groups that they were put into.
func (s *state) bury(j *prison) error {
	s.Ifaces = slices.DeleteFunc(s.Ifaces, func(i *iface) bool { return i.VNet == j.JID && i.Driver == "lo" })
	for _, i := range s.Ifaces {
		if i.VNet == j.JID {
			i.leave()
		}
	}
	s.Jails = without(s.Jails, j)
	if err := dropGroup(s.group(j.Name)); err != nil {
		return err
	}
	for _, kind := range []string{"uts", "net"} {
		file := s.space(j, kind)
		if err := unix.Unmount(file, unix.MNT_DETACH); err != nil && err != unix.EINVAL && err != unix.ENOENT {
			return err
		}
		if err := missingIsFine(os.Remove(file)); err != nil {
			return err
		}
	}
	return nil
}

// jls is jls(8).
func (c *command) jls() int {
	set, rest, bad := flags(c.args, "adj:hNnqsv")
	if bad != 0 {
		return c.fail(1, "usage: jls [-dhNnqv] [-j jail] [param ...]")
	}
	dying := set['d'] != nil || set['a'] != nil
	found := c.Jails
	if id := last(set['j']); id != "" {
		j := c.prison(id, dying)
		if j == nil {
			if _, err := strconv.Atoi(id); err == nil {
				return c.fail(1, "jail %s not found", id)
			}
			return c.fail(1, "jail %q not found", id)
		}
		found = []*prison{j}
	}
	if len(rest) == 0 {
		if set['n'] != nil || set['h'] != nil || set['v'] != nil || set['s'] != nil {
			return c.say(broken, "simulator: jls without parameters is modelled without -n, -h, -s and -v only")
		}
		fmt.Fprintf(&c.out, "   JID  IP Address      Hostname                      Path\n")
		rest = nil
	}
	for _, p := range rest {
		if known()[p] == "" && p != "dying" && p != "lastjid" {
			return c.fail(1, "unknown parameter: %s", p)
		}
	}
	if set['h'] != nil {
		fmt.Fprintln(&c.out, strings.Join(rest, " "))
	}
	for _, j := range found {
		if j.dying() && !dying {
			continue
		}
		if rest == nil {
			fmt.Fprintf(&c.out, "%6d  %-15.15s %-29.29s %.74s\n", j.JID, "", cmp.Or(j.Params["host.hostname"], j.Name), j.Path)
			continue
		}
		var row []string
		for _, p := range rest {
			row = append(row, j.show(p, set['n'] != nil, set['q'] != nil))
		}
		fmt.Fprintln(&c.out, strings.Join(row, " "))
	}
	return 0
}

// show prints a parameter as jls(8) does: booleans by name with -n, and quoted where a reader would lose it with -q.
func (j *prison) show(name string, named, quoted bool) string {
	if name == "dying" || known()[name] == "bool" {
		on := j.dying()
		if name != "dying" {
			_, on = j.Params[name]
		}
		if name == "persist" {
			on = j.Persist
		}
		switch {
		case !named:
			return strconv.FormatBool(on)
		case on:
			return name
		}
		dot := strings.LastIndex(name, ".") + 1
		return name[:dot] + "no" + name[dot:]
	}
	value := j.Params[name]
	switch name {
	case "jid":
		value = strconv.Itoa(j.JID)
	case "name":
		value = j.Name
	case "path":
		value = j.Path
	case "host.hostname":
		value = cmp.Or(value, j.Name)
	case "securelevel":
		value = cmp.Or(value, "-1")
	case "enforce_statfs":
		value = cmp.Or(value, "2")
	case "children.max":
		value = cmp.Or(value, "0")
	}
	switch {
	case value == "":
		value = `""`
	case quoted && strings.Contains(value, "'"):
		value = `"` + value + `"`
	case quoted && strings.Contains(value, `"`):
		value = "'" + value + "'"
	case quoted && strings.ContainsAny(value, " \t"):
		value = `"` + value + `"`
	}
	if named {
		return name + "=" + value
	}
	return value
}
