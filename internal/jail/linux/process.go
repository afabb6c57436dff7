//go:build linux

package linux

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
)

// BecomeSubreaper makes this process the parent of jails whose runtime has ended, so that their exit status can be
// had. The host daemon calls it once, before the first Start. Without it jails work, and end with an unknown status.
func BecomeSubreaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the parent of orphans: %w", err)
	}
	return nil
}

// isSubreaper reports whether BecomeSubreaper was called.
func isSubreaper() bool {
	var on int32
	_, _, errno := unix.Syscall(unix.SYS_PRCTL, unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&on)), 0)
	return errno == 0 && on == 1
}

// process is an open directory of /proc: what is read through it is about this process or fails, never about a later
// one that has the same number.
type process struct {
	dir *os.File
	pid int
}

// openProcess opens a process that is there and that is the one meant. Else the error is os.ErrProcessDone.
func openProcess(want jail.Process) (*process, error) {
	dir, err := os.Open("/proc/" + strconv.Itoa(want.PID))
	if errors.Is(err, os.ErrNotExist) {
		return nil, os.ErrProcessDone
	}
	if err != nil {
		return nil, err
	}
	p := &process{dir: dir, pid: want.PID}
	started, err := p.started()
	if err == nil && want.Started != 0 && started != want.Started {
		err = os.ErrProcessDone
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// Close forgets the process.
func (p *process) Close() { _ = p.dir.Close() } // a directory opened for reading

func (p *process) read(file string) ([]byte, error) {
	fd, err := unix.Openat(int(p.dir.Fd()), file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		f := os.NewFile(uintptr(fd), filepath.Join(p.dir.Name(), file))
		var b bytes.Buffer
		_, err = b.ReadFrom(f)
		if err = errors.Join(err, f.Close()); err == nil {
			return b.Bytes(), nil
		}
	}
	if gone(err) || errors.Is(err, unix.EINVAL) { // EINVAL: mountinfo of one that has ended and was not collected
		return nil, os.ErrProcessDone
	}
	return nil, &os.PathError{Op: "read", Path: filepath.Join(p.dir.Name(), file), Err: err}
}

// started is field 22 of /proc/<pid>/stat: when the process began, in clock ticks since the host did. The second
// field is in parentheses and may hold anything.
func (p *process) started() (uint64, error) {
	text, err := p.read("stat")
	if err != nil {
		return 0, err
	}
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(f) < 20 {
		return 0, fmt.Errorf("%s/stat is not understood", p.dir.Name())
	}
	return strconv.ParseUint(f[19], 10, 64)
}

// ended says whether the process has ended and was not collected yet.
func (p *process) ended() bool {
	text, err := p.read("status")
	return err != nil || strings.HasPrefix(statusField(text, "State"), "Z")
}

// parent is the number of the parent, or 0 when that cannot be read.
func (p *process) parent() int {
	text, err := p.read("status")
	if err != nil {
		return 0
	}
	n, err := strconv.Atoi(statusField(text, "PPid"))
	if err != nil {
		return 0
	}
	return n
}

func (p *process) mounts() ([]mount, error) {
	text, err := p.read("mountinfo")
	if err != nil {
		return nil, err
	}
	return parseMounts(bytes.NewReader(text))
}

// openInside opens a path as the process would, without following a link.
func (p *process) openInside(path string) (int, error) {
	root, err := unix.Openat(int(p.dir.Fd()), "root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(root) }()
	rel := cmp.Or(strings.TrimPrefix(path, "/"), ".")
	return unix.Openat2(root, rel, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS})
}

func (p *process) statfs(path string) (unix.Statfs_t, error) {
	var st unix.Statfs_t
	fd, err := p.openInside(path)
	if err != nil {
		return st, &os.PathError{Op: "open in jail", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	return st, unix.Fstatfs(fd, &st)
}

// pidfd opens a descriptor of a process after making sure that it is the one meant: the descriptor first, then the
// look, so that no other process can take its place in between.
func pidfd(want jail.Process) (*os.File, error) {
	fd, err := unix.PidfdOpen(want.PID, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil, os.ErrProcessDone
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", want.PID, err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	p, err := openProcess(want)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	p.Close()
	return f, nil
}

// signalFD signals the process of a descriptor. That it has ended is fine.
func signalFD(f *os.File, sig syscall.Signal) error {
	return control(f, func(fd int) error {
		if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
		return nil
	})
}

// control uses the descriptor of a file without taking it out of the poller.
func control(f *os.File, use func(fd int) error) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := c.Control(func(fd uintptr) { inner = use(int(fd)) }); err != nil {
		return err
	}
	return inner
}

// awaitEnd blocks until the process of a descriptor has ended. No thread is held meanwhile. After ctx has ended the
// descriptor is only good for being closed.
func awaitEnd(ctx context.Context, f *os.File) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(woken)
		_ = f.SetReadDeadline(time.Unix(1, 0)) // a closed file has woken the reader already
	})
	err = c.Read(func(fd uintptr) bool {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, 0)
		return err == nil && n == 1
	})
	if !stop() {
		<-woken
	}
	if ctx.Err() != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		return ctx.Err()
	}
	return err
}

// exitOf collects the status of a child that has ended. known is false when it runs still, is not a child of this
// process, or was collected before.
func exitOf(f *os.File, pid int) (code int, signal string, known bool, err error) {
	err = control(f, func(fd int) error {
		// Only looked at first: a child that has ended keeps its number until it is collected, so that the
		// number then means this one and no other.
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PIDFD, fd, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if errors.Is(err, unix.ECHILD) || err == nil && info.Signo == 0 {
			return nil
		}
		if err != nil {
			return err
		}
		var status unix.WaitStatus
		if _, err := unix.Wait4(pid, &status, unix.WNOHANG, nil); err != nil {
			return err
		}
		known = true
		if code = status.ExitStatus(); status.Signaled() {
			code, signal = 128+int(status.Signal()), status.Signal().String()
		}
		return nil
	})
	if !known {
		code = -1
	}
	return code, signal, known, err
}
