package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
)

// shells is a driver, and the part of a keeper that starts programs. Its jails are process groups of this machine, which do for
// pipes, ends and what is left behind.
type shells struct {
	jail.Keeper

	gate *gate

	mu      sync.Mutex
	number  int
	all     map[jail.Name]*shell
	specs   []jail.Spec
	entered []jail.Name  // of ExecIn
	last    jail.Program // that was started
	order   []string
	refuse  map[string]error // by step
	begins  func(netip.Addr) // when a program is about to begin
}

type shell struct {
	cmd  *exec.Cmd
	done chan struct{}
	exit jail.Exit
	addr netip.Addr
}

func (d *shells) fails(step string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.order = append(d.order, step)
	return d.refuse[step]
}

func start(p jail.Program) (*shell, *jail.Stdio, error) {
	var ends [6]*os.File
	for n := range 3 {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, nil, err
		}
		ends[2*n], ends[2*n+1] = r, w
	}
	s := &shell{done: make(chan struct{}), cmd: exec.Command(p.Argv[0], p.Argv[1:]...)}
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = ends[0], ends[3], ends[5]
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	for k, v := range p.Env {
		s.cmd.Env = append(s.cmd.Env, k+"="+v)
	}
	err := s.cmd.Start()
	for _, theirs := range []*os.File{ends[0], ends[3], ends[5]} {
		_ = theirs.Close() // the program has it
	}
	stdio := &jail.Stdio{In: ends[1], Out: ends[2], Err: ends[4]}
	if err != nil {
		stdio.Close()
		return nil, nil, err
	}
	go func() {
		_ = s.cmd.Wait() // the state says how
		s.exit = jail.Exit{Code: s.cmd.ProcessState.ExitCode(), Cause: jail.CauseExited}
		if w := s.cmd.ProcessState.Sys().(syscall.WaitStatus); w.Signaled() {
			s.exit.Code, s.exit.Signal = -1, w.Signal().String()
		}
		close(s.done)
	}()
	return s, stdio, nil
}

func (s *shell) kill() {
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) // gone already
	<-s.done
}

func (d *shells) CreateWith(ctx context.Context, spec jail.Spec, ready func(jail.Name, jail.Lease) error) (*jail.Jail, error) {
	if err := errors.Join(ctx.Err(), spec.Validate(), d.fails("create")); err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.number++
	name := jail.Name(fmt.Sprintf("atest%05d", 90000+d.number))
	lease := jail.Lease{Addr: netip.AddrFrom4([4]byte{10, 9, 0, byte(d.number)})}
	d.mu.Unlock()
	if err := errors.Join(ready(name, lease), d.fails("begin")); err != nil {
		return nil, err
	}
	if d.begins != nil {
		d.begins(lease.Addr)
	}
	s, stdio, err := start(spec.Program)
	if err != nil {
		return nil, err
	}
	s.addr = lease.Addr
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all[name], d.specs, d.last = s, append(d.specs, spec), spec.Program
	return &jail.Jail{Name: name, Lease: lease, Stdio: stdio}, nil
}

func (d *shells) find(name jail.Name) *shell {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.all[name]
}

func (d *shells) Wait(ctx context.Context, name jail.Name) (jail.Exit, error) {
	s := d.find(name)
	if s == nil {
		return jail.Exit{}, jail.ErrNotFound
	}
	select {
	case <-s.done:
		return s.exit, nil
	case <-ctx.Done():
		return jail.Exit{}, ctx.Err()
	}
}

func (d *shells) Destroy(_ context.Context, name jail.Name) error {
	s := d.find(name)
	if s == nil {
		return nil
	}
	// The address may be somebody else's in a moment.
	if _, known := d.gate.at(s.addr); known {
		return errors.New("the gateway still knows the address")
	}
	if err := d.fails("destroy"); err != nil {
		return err
	}
	s.kill()
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.all, name)
	return nil
}

func (d *shells) ExecIn(_ context.Context, name jail.Name, p jail.Program) (*jail.Running, error) {
	if err := d.fails("exec"); err != nil {
		return nil, err
	}
	s, stdio, err := start(p)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.entered, d.last = append(d.entered, name), p
	d.mu.Unlock()
	return &jail.Running{Stdio: stdio, End: s.kill, Wait: func(ctx context.Context) (jail.Exit, error) {
		select {
		case <-s.done:
			return s.exit, nil
		case <-ctx.Done():
			return jail.Exit{}, ctx.Err()
		}
	}}, nil
}

// left says what of the jails, and of what the gateway knows, is still there.
func (d *shells) left() (out []string) {
	d.mu.Lock()
	for name := range d.all {
		out = append(out, string(name))
	}
	d.mu.Unlock()
	d.gate.mu.Lock()
	defer d.gate.mu.Unlock()
	for addr := range d.gate.callers {
		out = append(out, addr.String())
	}
	return out
}

// newPrograms is an installation whose jails run programs, with the agents writer and other.
func newPrograms(t testing.TB) (*land, *shells) {
	t.Helper()
	d := &shells{all: map[jail.Name]*shell{}, refuse: map[string]error{}}
	l := newLand(t, func(o *Options) {
		d.Keeper, d.gate = o.Keeper, o.Gateway.(*gate)
		o.Keeper, o.Driver = d, d
		o.Now = time.Now
	})
	for _, name := range []string{"writer", "other"} {
		_, _, err := l.who.CreateAgent(l.ctx, l.admin, "default", name, identity.NeverExpires)
		l.must(err)
	}
	return l, d
}

// keepOne declares a jail of an agent's.
func (l *land) keepOne(name string, env map[string]string) {
	l.t.Helper()
	l.must(l.keeper.Keep(l.ctx, jail.Kept{Restart: jail.RestartAlways, Spec: jail.Spec{
		Kind: jail.KindAgent, Lifetime: jail.LifetimeKeep, Template: "clawbot", Agent: &jail.Agent{Tenant: "default", Name: name, State: 1 << 20, Token: true},
		Program: jail.Program{Argv: []string{"/bin/true"}, Wire: jail.WireStdio, Env: env},
		Limits:  limitsOfProgram(l.Service.o.Agents.Limits, noLimits(), time.Hour),
	}}, "token"))
}
