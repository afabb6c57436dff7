package template

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

// toolPath is where programs of the host are looked for, whatever the caller's PATH says: they run as root.
const toolPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// command is one program to run. It runs in mount, process, IPC and host-name namespaces of its own, so that whatever it
// mounts or leaves running goes with it, also when this process is killed.
type command struct {
	argv []string
	env  []string
	// chroot, when not empty, is the root filesystem to run in, without any network. Its /proc, /dev and /run must be
	// real folders.
	chroot string
	// binds are folders of the host that are seen read-only inside the chroot, below /run/clawjail-build.
	binds map[string]string
	// unprivileged runs the program as the jail's user, unable to gain privileges. For what comes out of an image.
	unprivileged bool
	// stdout, when not nil, receives what the program answers; else that goes with what it says.
	stdout io.Writer
}

// buildMount is where binds appear.
const buildMount = "/run/clawjail-build"

// isolate is run by the host's shell in the new namespaces: its own /proc, and when there is a chroot a minimal /dev
// and an empty /run in it, which are not those of the tree and so leave nothing behind. The shell stays as the first
// process of the process namespace; when it ends, the kernel kills whatever is left in there. Descriptor 3 is the output
// once more, for tools that report their status: apt keeps the descriptor of its choice from the programs that it runs,
// so that must not be their standard output.
const isolate = `set -eu
exec 3>&1
mount -t proc -o nosuid,nodev,noexec proc /proc
root=$1; user=$2; shift 2
if [ -n "$root" ]; then
  mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
  mount -t tmpfs -o mode=755,size=64k,nosuid,noexec dev "$root/dev"
  for d in null zero full random urandom tty; do
    : >"$root/dev/$d"
    mount --bind "/dev/$d" "$root/dev/$d"
  done
  mkdir "$root/dev/pts" "$root/dev/shm"
  mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,nosuid,noexec devpts "$root/dev/pts"
  mount -t tmpfs -o mode=1777,size=64m,nosuid,nodev shm "$root/dev/shm"
  ln -s pts/ptmx "$root/dev/ptmx"
  ln -s /proc/self/fd "$root/dev/fd"
  ln -s /proc/self/fd/0 "$root/dev/stdin"
  ln -s /proc/self/fd/1 "$root/dev/stdout"
  ln -s /proc/self/fd/2 "$root/dev/stderr"
  mount -t tmpfs -o mode=755,size=64m,nosuid,nodev run "$root/run"
  mkdir "$root/run/lock"; chmod 1777 "$root/run/lock"
fi
while [ "$1" != -- ]; do
  mkdir -p "$root$2"
  mount --bind "$1" "$root$2"
  mount -o remount,bind,ro,nosuid,nodev "$root$2"
  shift 2
done
shift
umask 022
if [ -z "$root" ]; then
  "$@"
elif [ -n "$user" ]; then
  setpriv --no-new-privs chroot --groups= --userspec="$user" "$root" "$@"
else
  chroot "$root" "$@"
fi
exit $?
`

// chrootEnv is the whole environment inside a chroot: nothing of the host's.
func chrootEnv() []string {
	return []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/nonexistent", "LC_ALL=C.UTF-8", "TERM=dumb",
		"DEBIAN_FRONTEND=noninteractive", "DEBCONF_NONINTERACTIVE_SEEN=true",
	}
}

// hostEnv is what host tools that download get: the proxies and certificates that this host needs.
func (s *Store) hostEnv() []string {
	env := []string{"PATH=" + toolPath, "HOME=/nonexistent", "LC_ALL=C.UTF-8", "TERM=dumb", "DEBIAN_FRONTEND=noninteractive"}
	for _, name := range []string{
		"http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
		"SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE",
	} {
		if value := s.getenv(name); value != "" {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// lookTool finds a program of the host.
func lookTool(name, debianPackage string) (string, error) {
	for dir := range strings.SplitSeq(toolPath, ":") {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", problem.New(problem.ToolMissing, "install it: apt-get install "+debianPackage, "the program %s is not installed", name)
}

// run runs a command to its end. A cancelled context kills it with everything that it has started.
func (o *output) run(ctx context.Context, c command) error {
	args := []string{"-c", isolate, "sh", c.chroot, ""}
	if c.unprivileged {
		args[4] = fmt.Sprintf("%d:%d", jailUser, jailUser)
	}
	for host, inside := range c.binds {
		args = append(args, host, inside)
	}
	args = append(args, "--")
	args = append(args, c.argv...)

	cmd := exec.CommandContext(ctx, "/bin/sh", args...)
	cmd.Env, cmd.Dir = c.env, "/"
	cmd.Stdout, cmd.Stderr = o, o
	if c.stdout != nil {
		cmd.Stdout = c.stdout
	}
	cmd.SysProcAttr = isolation(c.chroot != "")
	// Processes that are killed with their namespace can hold the pipe for a moment longer.
	cmd.WaitDelay = 10 * time.Second

	// The death signal is sent when the thread that started the child ends, so that thread must stay until Wait.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	if err == nil {
		return nil
	}
	name := filepath.Base(c.argv[0])
	if ctxErr := ctx.Err(); ctxErr != nil {
		return fmt.Errorf("run %s: %w", name, context.Cause(ctx))
	}
	if errors.Is(err, syscall.EPERM) {
		return problem.Wrap(err, problem.NoRoot, "run it as root", "starting %s in its own namespaces was not permitted", name)
	}
	return &toolError{tool: name, err: err, lines: o.lines()}
}

// toolError is a program that failed, with the last lines of what it printed.
type toolError struct {
	tool  string
	err   error
	lines []string
}

func (e *toolError) Error() string {
	if len(e.lines) == 0 {
		return fmt.Sprintf("%s: %v", e.tool, e.err)
	}
	return fmt.Sprintf("%s: %v; its last lines:\n\t%s", e.tool, e.err, strings.Join(e.lines, "\n\t"))
}

func (e *toolError) Unwrap() error { return e.err }

// diskFull reports whether the tool said that the disk was full. The texts are strerror(ENOSPC) and strerror(EDQUOT) of
// the C library, and what apt-get prints before it downloads.
func (e *toolError) diskFull() bool {
	for _, line := range e.lines {
		for _, text := range []string{"No space left on device", "Disk quota exceeded", "You don't have enough free space in"} {
			if strings.Contains(line, text) {
				return true
			}
		}
	}
	return false
}
