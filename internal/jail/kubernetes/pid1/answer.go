//go:build linux

package pid1

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/libp2p/go-yamux/v5"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/cgroup"
	"github.com/clawjail/clawjail/internal/jail/kubernetes/shim"
	"github.com/clawjail/clawjail/internal/jail/linux"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// ReadyName is what the first process of a pod is called when it is ready. Only it can change its name.
	ReadyName = "clawjail-ready"
	// requestLimit is how long a stream may take to say what it is for.
	requestLimit = 10 * time.Second
	// maxStdio bounds the streams that no program has been named for.
	maxStdio = 64
	// probeLimit is how long something is tried to be reached that must not be.
	probeLimit = 2 * time.Second
)

// answer does what is asked with one stream.
func (s *pod) answer(ctx context.Context, st *yamux.Stream) {
	var r shim.Request
	_ = st.SetReadDeadline(time.Now().Add(requestLimit)) // fails when it has ended, which is seen next
	err := shim.ReadMessage(st, &r)
	_ = st.SetReadDeadline(time.Time{})
	if err == nil && r.Do == shim.DoStdio {
		s.keepStdio(st)
		return
	}
	defer func() { _ = st.Close() }()
	var answer shim.Reply
	if err == nil {
		switch r.Do {
		case shim.DoPrepare:
			answer.Report, err = s.prepare(ctx, r.Prepare)
		case shim.DoReady:
			err = s.ready()
		case shim.DoUsage:
			answer.Usage, err = usage()
		case shim.DoEnd:
			defer s.talk()()
			s.children.end(time.Duration(r.GraceMS) * time.Millisecond)
			s.finish(0)
		case shim.DoToken:
			err = putToken(r.Token)
		case shim.DoDial:
			s.dial(ctx, st, r.Port)
			return
		case shim.DoRun:
			defer s.talk()()
			if err = s.run(st, r.Run); err == nil {
				return
			}
		default:
			err = problem.New(problem.Unsupported, "use the clawjail-shim of the same version as the control plane", "%q is not known here", r.Do)
		}
	}
	if err != nil {
		answer = shim.Reply{Refused: shim.RefusalOf(err)}
	}
	// The other side closes the stream when it has read that. The connection ends with this process.
	if shim.WriteMessage(st, answer) == nil {
		_, _ = io.Copy(io.Discard, st)
	}
}

// keepStdio keeps a stream for a program that is named later.
func (s *pod) keepStdio(st *yamux.Stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.stdio) >= maxStdio {
		_ = st.Reset() // a request that names the stream gets an error
		return
	}
	s.stdio[st.StreamID()] = st
	s.changed.Broadcast()
}

// prepare confines this process and what it starts, as far as that can be done from within, and says how all of it is confined.
func (s *pod) prepare(ctx context.Context, how *shim.Prepare) (*shim.Report, error) {
	if how == nil {
		return nil, problem.New(problem.BadRequest, "", "it is not said how the pod should be confined")
	}
	s.mu.Lock()
	begun := s.begun
	s.mu.Unlock()
	if begun {
		return nil, problem.New(problem.Conflict, "", "a program runs in the pod, so that what is seen there says nothing")
	}
	filtered, err := linux.ConfineSelf(how.Profile.Limits.Files, how.Profile.Seccomp)
	if err != nil {
		return nil, err
	}
	var report shim.Report
	if report.Observed, report.Host, err = linux.ObserveSelf(how.Profile); err != nil {
		return nil, err
	}
	report.Observed.SeccompFilter = report.Observed.SeccompFilter && filtered
	groups, err := cgroup.Of(jail.Process{PID: os.Getpid()})
	if err != nil {
		return nil, err
	}
	report.Observed.Memory, report.Observed.MilliCPU, report.Observed.Tasks = groups.Limits()
	if report.Addresses, err = addresses(); err != nil {
		return nil, err
	}
	if report.Reached, err = reached(ctx, how.Probes); err != nil {
		return nil, err
	}
	if how.Sandbox {
		if report.Unsandboxed, err = s.unsandboxed(ctx); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	s.prepared = true
	s.mu.Unlock()
	return &report, nil
}

// unsandboxed tries to start a program in new user, process and network namespaces with a new root, as Chromium does, and says why it cannot.
func (s *pod) unsandboxed(ctx context.Context) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer closeAll(null)
	files := []uintptr{null.Fd(), null.Fd(), null.Fd()}
	_, ended, err := s.children.start(self, []string{self, "version"}, &syscall.ProcAttr{Files: files,
		Sys: &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET, Chroot: "/"}})
	if err != nil {
		return plain(err), nil
	}
	select {
	case status := <-ended:
		if status != 0 {
			return fmt.Sprintf("the program ended with %v", status), nil
		}
		return "", nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// ready changes the name of this process, which the probe of Kubernetes looks at.
func (s *pod) ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.prepared {
		return errUnprepared()
	}
	_, err := s.comm.WriteString(ReadyName)
	return err
}

func errUnprepared() error {
	return problem.New(problem.Conflict, "", "the pod has not said how it is confined")
}

// Ready says whether the first process of the pod is ready.
func Ready() (bool, error) {
	name, err := os.ReadFile("/proc/1/comm")
	return string(name) == ReadyName+"\n", err
}

func usage() (*jail.Usage, error) {
	groups, err := cgroup.Of(jail.Process{PID: os.Getpid()})
	if err != nil {
		return nil, err
	}
	u := groups.Usage()
	return &u, nil
}

// dial connects a stream with a port on the loopback.
func (s *pod) dial(ctx context.Context, st *yamux.Stream, port uint16) {
	var d net.Dialer
	var conn net.Conn
	var errs []error
	for _, host := range []string{"127.0.0.1", "::1"} {
		c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
		if err == nil {
			conn = c
			break
		}
		errs = append(errs, err)
	}
	if conn == nil {
		refused := shim.RefusalOf(problem.Wrap(errors.Join(errs...), problem.UpstreamUnreachable, "look whether the program listens there", "nothing answers on port %d of the pod's loopback", port))
		_ = shim.WriteMessage(st, shim.Reply{Refused: refused}) // it fails only when the control plane does not read any more
		return
	}
	defer func() { _ = conn.Close() }()
	if err := shim.WriteMessage(st, shim.Reply{}); err != nil {
		return
	}
	var both sync.WaitGroup
	both.Go(func() {
		_, err := io.Copy(conn, st)
		if err != nil {
			_ = conn.Close() // the other direction ends, too
			return
		}
		_ = conn.(*net.TCPConn).CloseWrite()
	})
	both.Go(func() {
		if _, err := io.Copy(st, conn); err != nil {
			_ = st.Reset()
			return
		}
		_ = st.CloseWrite()
	})
	both.Wait()
}

func failed(what string, err error) error {
	return problem.Wrap(err, problem.JailFailed, "look whether it is in the image", "%s: %s", what, plain(err))
}

// plain is the reason of the kernel's alone.
func plain(err error) string {
	var path *os.PathError
	if errors.As(err, &path) {
		return fmt.Sprintf("%s: %v", path.Path, path.Err)
	}
	return err.Error()
}
