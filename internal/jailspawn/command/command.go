// Package command writes the command lines by which programs get into jails, and out of them.
//
// It decides nothing and runs nothing. Every word that comes from elsewhere passes one of its checks first: a name never
// begins with a dash, has no dot (a child jail) and is no number (a jail's id), and a path has nothing that jail(8) reads.
package command

import (
	"path"
	"slices"
	"strconv"
	"strings"
)

const (
	// Kill and Shell are programs of the jail, by their paths in it.
	Kill  = "/bin/kill"
	Shell = "/bin/sh"
	// idLength is that of the random name of what is staged: 128 bits.
	idLength = 32
	// mark begins the names of ephemeral jails.
	mark = "cjs"
	// devfsRules is the ruleset for jails that every FreeBSD has in /etc/defaults/devfs.rules (devfsrules_jail).
	devfsRules = "4"
)

func within(text, allowed string) bool { return strings.Trim(text, allowed) == "" }

const (
	lower  = "abcdefghijklmnopqrstuvwxyz"
	upper  = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	digits = "0123456789"
)

// ValidName says whether a jail may be named so on a command line.
func ValidName(s string) bool {
	return s != "" && len(s) <= 64 && within(s[:1], lower+upper+digits) && only(s, lower+upper+digits+"_-") && !only(s, digits)
}

// ValidShortName is the narrower grammar of the setuid helper.
func ValidShortName(s string) bool {
	return s != "" && len(s) <= 31 && only(s, lower+digits) && !only(s, digits)
}

// ValidUser says whether a user of a jail may be named so. Those of uid 0 are never.
func ValidUser(s string) bool {
	return s != "" && len(s) <= 32 && within(s[:1], lower+"_") && only(s, lower+digits+"_-") && s != "root" && s != "toor"
}

// ValidPath says whether a folder may be the root of a jail.
func ValidPath(s string) bool {
	return len(s) > 1 && len(s) <= 900 && s[0] == '/' && path.Clean(s) == s && only(s, lower+upper+digits+"/._-")
}

// ValidID says whether it is the name of something that is staged.
func ValidID(s string) bool { return len(s) == idLength && only(s, digits+"abcdef") }

func only(s, allowed string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return !strings.ContainsRune(allowed, r) })
}

// Enter runs a program in a jail that runs: in a clean environment, as a user of the jail (jexec(8)).
func Enter(name, user string, argv ...string) []string {
	return append([]string{"jexec", "-l", "-U", user, name}, argv...)
}

// Ephemeral is a jail that exists for one program.
type Ephemeral struct {
	Name, Path, User string
	// HostNetwork is the network of the host instead of none.
	HostNetwork bool
}

// EphemeralName is the name of the jail that is made for what is staged under an id.
func EphemeralName(id string) string { return mark + id[:8] }

// Create makes an ephemeral jail and runs a program in it. command takes all that follows (jail(8)), so it is last.
//
// Two things are not as one would think (usr.sbin/jail/command.c): jail(8) ends with status 1 whatever the status of a
// program that failed, and it leaves /dev mounted when the program ends well. Its caller sees to both.
func (e Ephemeral) Create(argv ...string) []string {
	network := "disable"
	if e.HostNetwork {
		network = "inherit"
	}
	return append([]string{
		"jail", "-q", "-c", "name=" + e.Name, "path=" + e.Path, "host.hostname=" + e.Name, "ip4=" + network, "ip6=" + network,
		"mount.devfs", "devfs_ruleset=" + devfsRules, "enforce_statfs=2", "securelevel=3", "children.max=0",
		"sysvmsg=new", "sysvsem=new", "sysvshm=new", "exec.clean", "exec.jail_user=" + e.User, "command=" + argv[0],
	}, argv[1:]...)
}

// Remove ends a jail with every process in it.
func Remove(name string) []string { return []string{"jail", "-R", name} }

// Unmount unmounts the devices of an ephemeral jail.
func (e Ephemeral) Unmount() []string { return []string{"umount", path.Join(e.Path, "dev")} }

// Look asks whether there is a jail: it fails when not.
func Look(name string) []string { return []string{"jls", "-j", name, "jid"} }

// End kills processes from inside their jail: a number that is another's by now, outside, is not found there.
func End(name string, pids []int) []string {
	argv := []string{"jexec", name, Kill, "-KILL"}
	for _, pid := range pids {
		argv = append(argv, strconv.Itoa(pid))
	}
	return argv
}

// Processes lists every process: its id, its parent's and its state. Each column has an -o of its own: what follows a = is the
// header, up to the end of the argument (bin/ps/keyword.c).
func Processes() []string {
	return []string{"ps", "-ax", "-o", "pid=", "-o", "ppid=", "-o", "stat="}
}

// Descendants finds, in what Processes prints, all that descend from a process and run. Those that not names are left out
// with what descends from them.
func Descendants(text string, of int, not ...int) []int {
	children, ended := map[int][]int{}, map[int]bool{}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 3 {
			continue
		}
		pid, err := strconv.Atoi(words[0])
		parent, err2 := strconv.Atoi(words[1])
		if err != nil || err2 != nil || pid <= 1 || pid == parent {
			continue
		}
		children[parent] = append(children[parent], pid)
		ended[pid] = strings.HasPrefix(words[2], "Z")
	}
	var out []int
	seen := map[int]bool{of: true}
	for next := []int{of}; len(next) > 0; next = next[1:] {
		for _, pid := range children[next[0]] {
			if seen[pid] || slices.Contains(not, pid) {
				continue
			}
			seen[pid] = true
			next = append(next, pid)
			if !ended[pid] {
				out = append(out, pid)
			}
		}
	}
	slices.Sort(out)
	return out
}
