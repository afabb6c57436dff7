//go:build linux

package spawntest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/testenv"
)

// User is the jail's user, and UID the number.
const (
	User = "clawdie"
	UID  = 65534
	// Home is that user's home, in the jail.
	Home = "/home/clawdie"
)

// Host is a folder with commands, a jail's root, and what the commands were given.
type Host struct {
	t testing.TB
	// Base is the folder of everything; root's alone, and everybody may enter it.
	Base, Commands, Root, records string
}

// New makes a host. It needs root.
func New(t testing.TB) *Host {
	t.Helper()
	testenv.Need(t, testenv.Root)
	base, err := os.MkdirTemp("", "spawn")
	if err != nil {
		t.Fatal(err)
	}
	h := &Host{t: t, Base: base, Commands: base + "/commands", Root: base + "/jails/mcp0", records: base + "/records"}
	t.Cleanup(func() {
		h.script("end", `for p in /proc/[0-9]*; do [ "$p/root" -ef "`+h.Root+`" ] && kill -9 "${p#/proc/}"; done`)
		_ = exec.Command(h.Commands + "/end").Run() // nothing may be left to kill
		if err := os.RemoveAll(base); err != nil {
			t.Error(err)
		}
	})
	for _, dir := range []string{base, h.Commands, filepath.Dir(h.Root), h.Root, h.records, h.Root + "/etc", h.Root + "/home", h.Root + Home, h.Root + "/dev"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(h.Root+Home, UID, UID); err != nil {
		t.Fatal(err)
	}
	h.Write(h.Root+"/etc/passwd", "root:*:0:0:x:/root:/bin/sh\n"+User+":*:65534:65534:x:"+Home+":/bin/sh\nodd:*:0:0:x:/home/odd:/bin/sh\n")
	for _, name := range []string{"sh", "sleep", "cat", "mv", "env", "setsid", "ls", "true", "id"} {
		Install(t, h.Root, name)
	}
	if err := unix.Mknod(h.Root+"/dev/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(h.Root+"/dev/null", 0o666); err != nil {
		t.Fatal(err)
	}
	h.commands()
	h.Set("jail.mcp0", h.Root+"\n")
	return h
}

// Write writes a file of root's.
func (h *Host) Write(path, text string) {
	h.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

// libraries is what ldd has said of a program.
var libraries sync.Map

// Install copies a program into a jail's root, with what it is linked to.
func Install(t testing.TB, root, name string) {
	t.Helper()
	program := testenv.Tool(t, name)
	known, ok := libraries.Load(program)
	if !ok {
		out, err := exec.Command("ldd", program).Output()
		if err != nil {
			t.Fatal(err)
		}
		known = string(out)
		libraries.Store(program, known)
	}
	files := []string{program}
	for _, word := range strings.Fields(known.(string)) {
		if strings.HasPrefix(word, "/") {
			files = append(files, word)
		}
	}
	for n, file := range files {
		to := root + file
		if n == 0 {
			to = root + "/bin/" + name
		}
		data, err := os.ReadFile(file)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(to), 0o755)
		}
		if err == nil {
			err = os.WriteFile(to, data, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func (h *Host) script(name, text string) {
	h.t.Helper()
	path := h.Commands + "/" + name
	if err := os.RemoveAll(path); err != nil { // it may be a link to the real one
		h.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		h.t.Fatal(err)
	}
}

func (h *Host) commands() {
	rec := h.records
	log := func(name string) string { return `echo "` + name + ` $*" >>` + rec + "/log\n" }
	look := `env >` + rec + `/env; cat /proc/$$/status >` + rec + `/status; ls -l /proc/$$/fd >` + rec + `/fds; pwd >` + rec +
		`/cwd; umask >` + rec + `/umask; cat /proc/$$/limits >` + rec + `/limits; cat /proc/$PPID/limits >` + rec + `/parent-limits; cat /proc/$PPID/status >` + rec + "/parent\n"
	enter := `chroot --userspec=65534:65534 `
	h.script("jexec", log("jexec")+`if [ "$1" = -l ]; then
`+look+`shift 4; exec `+enter+h.Root+` "$@"
fi
shift; exec "$@"`)
	h.script("jail", log("jail")+`if [ "$1" = -R ]; then
	[ -e `+rec+`/jail.$2 ] || { echo "jail: jail_remove: $2: No such process" >&2; exit 1; }
	path=$(cat `+rec+`/jail.$2); rm -f `+rec+`/jail.$2
	# The kernel does it at once, so that none that is born meanwhile gets away.
	left=1; while [ $left = 1 ]; do left=0; for p in /proc/[0-9]*; do [ "$p/root" -ef "$path" ] && kill -9 "${p#/proc/}" && left=1; done; done
	exit 0
fi
`+look+`while :; do case $1 in
	path=*) path=${1#path=};;
	name=*) name=${1#name=};;
	command=*) break;;
esac; shift; done
echo "$path" >`+rec+`/jail.$name
first=${1#command=}; shift
`+enter+`"$path" "$first" "$@"; s=$?
rm -f `+rec+`/jail.$name
[ $s = 0 ] || { echo "jail: $first $*: failed" >&2; exit 1; }`)
	h.script("jls", `[ -e `+rec+`/jail."$2" ] && echo 1`)
	h.script("umount", log("umount"))
	h.script("mdo", log("mdo")+`[ -e `+rec+`/mdo-refuses ] && { echo "mdo: calling setcred() failed: Operation not permitted" >&2; exit 1; }
shift 2; exec "$@"`)
	h.script("sudo", log("sudo")+`[ -e `+rec+`/sudo-refuses ] && { echo "sudo: a password is required" >&2; exit 1; }
[ "$2" = -l ] && exit 0
shift 2; exec "$@"`)
	h.script("kldstat", `[ ! -e `+rec+`/no-mac_do ]`)
	h.script("sysctl", `case $2 in *.enabled) echo 1;; *) cat `+rec+`/rules;; esac`)
	h.Write(rec+"/rules", "uid=1001>uid=0,gid=*,+gid=*\n")
	if err := os.Symlink(testenv.Tool(h.t, "ps"), h.Commands+"/ps"); err != nil {
		h.t.Fatal(err)
	}
}

// Record is what a command left under a name: log, env, status, fds, cwd, umask, limits, parent, parent-limits.
func (h *Host) Record(name string) string {
	data, err := os.ReadFile(h.records + "/" + name)
	if err != nil && !os.IsNotExist(err) {
		h.t.Error(err)
	}
	return string(data)
}

// Set makes a record, such as mdo-refuses, sudo-refuses, no-mac_do and rules, that commands look at.
func (h *Host) Set(name, text string) { h.Write(h.records+"/"+name, text) }

// Inside lists the processes in the jail.
func (h *Host) Inside() (pids []string) {
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		h.t.Fatal(err)
	}
	for _, p := range all {
		if root, err := os.Readlink(p + "/root"); err == nil && root == h.Root {
			pids = append(pids, filepath.Base(p))
		}
	}
	return pids
}

// Staged lists what is in the stage.
func (h *Host) Staged() []string {
	names, err := filepath.Glob(h.Root + Home + "/.cache/clawjail/stage/*")
	if err != nil {
		h.t.Fatal(err)
	}
	return names
}
