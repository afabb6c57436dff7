package jailtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// The parts of the host that agents' jails have, on a host that is a few maps.

// Token returns the token that a jail has in its folder, and whether it has one.
func (h *Host) Token(n jail.Name) (string, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t, ok := h.tokens[n]
	return t, ok
}

// States lists the keys of the agents that have a volume.
func (h *Host) States() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []string
	for k := range h.states {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

func (s storage) Check(_ context.Context, spec jail.Spec) error {
	if spec.Root == "" && !slices.Contains(s.Host.Templates, spec.Template) {
		return problem.New(problem.TemplateMissing, "build it", "there is no template %s", spec.Template)
	}
	return nil
}

func (s storage) Mount(_ context.Context, p jail.Placement) error {
	if err := s.before("storage.place"); err != nil {
		return err
	}
	s.Host.mu.Lock()
	defer s.Host.mu.Unlock()
	delete(s.Host.tokens, p.Name)
	if a := p.Spec.Agent; a != nil && a.State > 0 {
		s.Host.states[a.Key()] = max(s.Host.states[a.Key()], a.State)
	}
	return nil
}

func (s storage) Token(_ context.Context, n jail.Name, _ uint32, token []byte) error {
	if err := s.before("storage.token"); err != nil {
		return err
	}
	s.Host.mu.Lock()
	defer s.Host.mu.Unlock()
	s.Host.tokens[n] = string(token)
	return nil
}

func (s storage) RemoveState(_ context.Context, a jail.Agent) error {
	if err := s.before("storage.remove_state"); err != nil {
		return err
	}
	s.Host.mu.Lock()
	defer s.Host.mu.Unlock()
	delete(s.Host.states, a.Key())
	return nil
}

// Exec starts an ordinary child process in a process group of its own, which ends with it.
func (r runtime) Exec(_ context.Context, _ jail.Placement, _ jail.Process, prog jail.Program, stdio [3]*os.File) (jail.Execution, error) {
	if err := r.before("runtime.exec"); err != nil {
		return nil, err
	}
	cmd := exec.Command(prog.Argv[0], prog.Argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdio[0], stdio[1], stdio[2]
	cmd.Env = os.Environ()
	for k, v := range prog.Env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", prog.Argv[0], err)
	}
	x := &execution{pid: cmd.Process.Pid, done: make(chan struct{})}
	go func() {
		defer close(x.done)
		err := cmd.Wait()
		_ = syscall.Kill(-x.pid, syscall.SIGKILL) // what is left of its group; mostly nothing
		x.exit = jail.Exit{Code: cmd.ProcessState.ExitCode(), Cause: jail.CauseExited, At: time.Now()}
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			if ws := exit.Sys().(syscall.WaitStatus); ws.Signaled() {
				x.exit.Code, x.exit.Signal = 128+int(ws.Signal()), ws.Signal().String()
			}
		}
	}()
	return x, nil
}

type execution struct {
	pid  int
	done chan struct{}
	exit jail.Exit // read after done
}

func (x *execution) Wait(ctx context.Context) (jail.Exit, error) {
	select {
	case <-x.done:
		return x.exit, nil
	case <-ctx.Done():
		return jail.Exit{}, ctx.Err()
	}
}

func (x *execution) End(ctx context.Context) error {
	if wake.Closed(x.done) {
		return nil
	}
	_ = syscall.Kill(-x.pid, syscall.SIGKILL) // it may end in between
	_, err := x.Wait(ctx)
	return err
}

// Dial connects to the host's own loopback: jails here have no network of their own.
func (r runtime) Dial(ctx context.Context, _ jail.Placement, _ jail.Process, port uint16) (*os.File, error) {
	if err := r.before("runtime.dial"); err != nil {
		return nil, err
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
	if err != nil {
		return nil, err
	}
	f, err := c.(*net.TCPConn).File()
	return f, errors.Join(err, c.Close())
}
