// Package jailtest holds what every driver is tested with: the conformance suite that all of them pass, and a
// driver whose host is a few maps, for tests of what stands on top of a driver.
package jailtest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/jail"
)

// ErrCrashed is what every operation of a crashed Memory view returns.
var ErrCrashed = errors.New("the process is gone")

// Host is what outlives a process: the things that jails leave on a machine, and the journal on its disk. The
// programs of its jails are ordinary child processes, not confined in any way.
type Host struct {
	mu        sync.Mutex
	resources map[jail.HostResource]bool
	records   map[jail.Name]jail.Record
	procs     map[jail.Name]*process
	busy      map[jail.Name]int // how many times Destroy still answers ErrBusy
	tokens    map[jail.Name]string
	states    map[string]int64 // bytes, by the agent's key
	// Templates that exist. Set before use.
	Templates []string
}

type process struct {
	cmd  *exec.Cmd
	pid  int
	done chan struct{}
	code int
	sig  string
}

// NewHost makes a host that knows the template "tiny".
func NewHost() *Host {
	return &Host{resources: map[jail.HostResource]bool{}, records: map[jail.Name]jail.Record{},
		procs: map[jail.Name]*process{}, busy: map[jail.Name]int{},
		tokens: map[jail.Name]string{}, states: map[string]int64{}, Templates: []string{"tiny"}}
}

// Plant puts something on the host that only a reaper will remove.
func (h *Host) Plant(t jail.HostResource) { h.set(t, true) }

// Take removes something that somebody still needs.
func (h *Host) Take(t jail.HostResource) { h.set(t, false) }

// MakeBusy lets the clone of a jail be busy for the next n attempts to destroy it.
func (h *Host) MakeBusy(n jail.Name, times int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.busy[n] = times
}

// Resources lists what is on the host, the journal's records included.
func (h *Host) Resources() []jail.HostResource {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []jail.HostResource
	for t := range h.resources {
		out = append(out, t)
	}
	for n := range h.records {
		out = append(out, jail.HostResource{Kind: jail.ResourceRecord, Name: n, Index: -1, ID: string(n)})
	}
	return out
}

// Runs reports whether the program of a jail is running.
func (h *Host) Runs(n jail.Name) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.procs[n]
	if p == nil {
		return false
	}
	return !wake.Closed(p.done)
}

func (h *Host) set(t jail.HostResource, there bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if there {
		h.resources[t] = true
	} else {
		delete(h.resources, t)
	}
}

func (h *Host) list(kinds ...jail.ResourceKind) []jail.HostResource {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []jail.HostResource
	for t := range h.resources {
		if slices.Contains(kinds, t.Kind) {
			out = append(out, t)
		}
	}
	return out
}

// Memory is one process's view of a Host: the five parts and the journal. After Crash nothing it is asked to
// do happens any more, as if the process had been killed.
type Memory struct {
	Host *Host
	Pool *jail.Pool
	// Before is called with the name of each operation that changes the host ("storage.clone", …). An error
	// is returned in place of doing it. May be nil.
	Before func(operation string) error
	// Seen changes what Observe reports. May be nil.
	Seen func(*jail.Observed)

	mu      sync.Mutex
	crashed bool
}

// NewMemory makes a view with an address pool of its own.
func NewMemory(h *Host) *Memory {
	pool, err := jail.NewPool(netip.MustParsePrefix("10.99.0.0/24"), 1_879_100_000)
	if err != nil {
		panic(err) // the arguments are constants
	}
	return &Memory{Host: h, Pool: pool}
}

// Options are for a Lifecycle on this host.
func (m *Memory) Options() jail.Options {
	return jail.Options{
		Installation: "test",
		Parts:        jail.Parts{Storage: storage{m}, Network: network{m}, Firewall: firewall{m}, Runtime: runtime{m}, Limiter: limiter{m}, Means: jail.AllMeans()},
		Pool:         m.Pool,
		Journal:      journal{m},
	}
}

// Crash makes every later operation of this view fail without an effect.
func (m *Memory) Crash() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.crashed = true
}

func (m *Memory) gone() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.crashed
}

func (m *Memory) before(op string) error {
	if m.Before != nil {
		if err := m.Before(op); err != nil {
			return err
		}
	}
	if m.gone() {
		return ErrCrashed
	}
	return nil
}

// change puts a thing on the host or takes it away.
func (m *Memory) change(op string, t jail.HostResource, there bool) error {
	if err := m.before(op); err != nil {
		return err
	}
	m.Host.set(t, there)
	return nil
}

func (m *Memory) list(kinds ...jail.ResourceKind) ([]jail.HostResource, error) {
	if m.gone() {
		return nil, ErrCrashed
	}
	return m.Host.list(kinds...), nil
}

func named(k jail.ResourceKind, n jail.Name) jail.HostResource {
	return jail.HostResource{Kind: k, Name: n, Index: -1, ID: string(n)}
}

func indexed(k jail.ResourceKind, l jail.Lease) jail.HostResource {
	return jail.HostResource{Kind: k, Index: l.Index, ID: l.Addr.String()}
}

type storage struct{ *Memory }

func (s storage) Clone(_ context.Context, n jail.Name, spec jail.Spec) (string, error) {
	if err := s.Check(context.Background(), spec); err != nil {
		return "", err
	}
	if err := s.change("storage.clone", named(jail.ResourceClone, n), true); err != nil {
		return "", err
	}
	return "/", s.change("storage.mount", named(jail.ResourceMount, n), true)
}

func (s storage) Unmount(_ context.Context, n jail.Name, _ bool) error {
	return s.change("storage.unmount", named(jail.ResourceMount, n), false)
}

func (s storage) Destroy(_ context.Context, n jail.Name) error {
	s.Host.mu.Lock()
	busy := s.Host.busy[n]
	if busy > 0 {
		s.Host.busy[n]--
	}
	s.Host.mu.Unlock()
	if busy > 0 {
		return jail.ErrBusy
	}
	return s.change("storage.destroy", named(jail.ResourceClone, n), false)
}

func (s storage) List(context.Context) ([]jail.HostResource, error) {
	return s.list(jail.ResourceClone, jail.ResourceMount)
}

type network struct{ *Memory }

func (w network) Reserve(context.Context) (jail.Lease, error) {
	if w.gone() {
		return jail.Lease{}, ErrCrashed
	}
	return w.Pool.Take()
}

func (w network) Attach(_ context.Context, _ jail.Name, l jail.Lease) (string, error) {
	if err := w.change("network.namespace", indexed(jail.ResourceNamespace, l), true); err != nil {
		return "", err
	}
	return "", w.change("network.attach", indexed(jail.ResourceInterface, l), true)
}

func (w network) Detach(_ context.Context, _ jail.Name, l jail.Lease) error {
	return errors.Join(w.change("network.detach", indexed(jail.ResourceInterface, l), false),
		w.change("network.unbind", indexed(jail.ResourceNamespace, l), false))
}

func (w network) Release(l jail.Lease) { w.Pool.Release(l.Index) }

func (w network) List(context.Context) ([]jail.HostResource, error) {
	return w.list(jail.ResourceInterface, jail.ResourceNamespace)
}

func (w network) RemoveResource(_ context.Context, t jail.HostResource) error {
	return w.change("network.remove", t, false)
}

type firewall struct{ *Memory }

func (f firewall) Add(_ context.Context, _ jail.Table, l jail.Lease) error {
	return f.change("firewall.add", indexed(jail.ResourceTableMember, l), true)
}

func (f firewall) Remove(_ context.Context, _ jail.Table, l jail.Lease) error {
	return f.change("firewall.remove", indexed(jail.ResourceTableMember, l), false)
}

func (f firewall) Ensure(context.Context) error { return f.before("firewall.ensure") }

func (f firewall) List(context.Context) ([]jail.HostResource, error) {
	return f.list(jail.ResourceTableMember)
}

func (f firewall) RemoveResource(_ context.Context, t jail.HostResource) error {
	return f.change("firewall.drop", t, false)
}

type limiter struct{ *Memory }

func (l limiter) Apply(_ context.Context, n jail.Name, _ string, _ jail.Limits) error {
	return l.change("limiter.apply", named(jail.ResourceCgroup, n), true)
}

func (l limiter) Remove(_ context.Context, n jail.Name) error {
	return l.change("limiter.remove", named(jail.ResourceCgroup, n), false)
}

func (l limiter) Usage(context.Context, jail.Name, jail.Process) (jail.Usage, error) {
	return jail.Usage{Tasks: 1}, nil
}

func (l limiter) List(context.Context) ([]jail.HostResource, error) {
	return l.list(jail.ResourceCgroup)
}

type runtime struct{ *Memory }

func (r runtime) Start(_ context.Context, p jail.Placement, stdio [3]*os.File) (jail.Process, error) {
	if err := r.change("runtime.stage", named(jail.ResourceStaged, p.Name), true); err != nil {
		return jail.Process{}, err
	}
	if err := r.change("runtime.state", named(jail.ResourceRuntimeState, p.Name), true); err != nil {
		return jail.Process{}, err
	}
	if err := r.before("runtime.start"); err != nil {
		return jail.Process{}, err
	}
	cmd := exec.Command(p.Spec.Program.Argv[0], p.Spec.Program.Argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdio[0], stdio[1], stdio[2]
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return jail.Process{}, fmt.Errorf("start %s: %w", p.Spec.Program.Argv[0], err)
	}
	proc := &process{cmd: cmd, pid: cmd.Process.Pid, done: make(chan struct{})}
	r.Host.mu.Lock()
	r.Host.procs[p.Name] = proc
	r.Host.resources[named(jail.ResourceProcess, p.Name)] = true
	r.Host.mu.Unlock()
	go func() {
		err := cmd.Wait()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			proc.code = exit.ExitCode()
			if ws := exit.Sys().(syscall.WaitStatus); ws.Signaled() {
				proc.sig = ws.Signal().String()
			}
		}
		r.Host.set(named(jail.ResourceProcess, p.Name), false)
		close(proc.done)
	}()
	return jail.Process{PID: proc.pid}, nil
}

func (r runtime) Observe(_ context.Context, p jail.Placement, _ jail.Process) (jail.Observed, error) {
	o := Confined(p.Profile)
	if r.Seen != nil {
		r.Seen(&o)
	}
	return o, nil
}

// Begin has nothing to do: the program has begun with Start, because nothing confines it anyway.
func (r runtime) Begin(context.Context, jail.Placement, jail.Process) error {
	return r.before("runtime.begin")
}

// Confined is what a host reports of a jail that is exactly as its profile declares.
func Confined(p jail.Profile) jail.Observed {
	return jail.Observed{
		UIDs: []uint32{p.Host, p.Host, p.Host, p.Host}, GIDs: []uint32{p.Host, p.Host, p.Host, p.Host},
		InsideUID: p.UID, InsideGID: p.GID, NamespaceOwner: p.NamespaceOwner(),
		NoNewPrivileges: p.NoNewPrivileges, SeccompFilter: true, AppArmor: p.AppArmor, ReadOnlyRoot: p.ReadOnlyRoot,
		Tmpfs: slices.Clone(p.Tmpfs), Binds: slices.Clone(p.Binds), Memory: p.Limits.Memory, MilliCPU: p.Limits.MilliCPU,
		Tasks: p.Limits.Tasks, Files: p.Limits.Files,
	}
}

func (r runtime) proc(n jail.Name) *process {
	r.Host.mu.Lock()
	defer r.Host.mu.Unlock()
	return r.Host.procs[n]
}

func (r runtime) Wait(ctx context.Context, n jail.Name, _ jail.Process) (int, string, error) {
	p := r.proc(n)
	if p == nil {
		return -1, "", nil
	}
	select {
	case <-p.done:
		return p.code, p.sig, nil
	case <-ctx.Done():
		return -1, "", ctx.Err()
	}
}

func (r runtime) signal(n jail.Name, s syscall.Signal) {
	if p := r.proc(n); p != nil {
		if !wake.Closed(p.done) { // else its number may be somebody else's by now
			_ = syscall.Kill(-p.pid, s) // it may end in between
		}
	}
}

func (r runtime) Terminate(_ context.Context, n jail.Name, _ jail.Process) error {
	if err := r.before("runtime.terminate"); err != nil {
		return err
	}
	r.signal(n, syscall.SIGTERM)
	return nil
}

func (r runtime) Kill(_ context.Context, n jail.Name, _ jail.Process) error {
	if err := r.before("runtime.kill"); err != nil {
		return err
	}
	r.signal(n, syscall.SIGKILL)
	if p := r.proc(n); p != nil {
		<-p.done
	}
	r.Host.set(named(jail.ResourceProcess, n), false) // a planted one
	return nil
}

func (r runtime) Stop(_ context.Context, n jail.Name) error {
	return errors.Join(r.change("runtime.unstage", named(jail.ResourceStaged, n), false),
		r.change("runtime.stop", named(jail.ResourceRuntimeState, n), false))
}

func (r runtime) List(context.Context) ([]jail.HostResource, error) {
	return r.list(jail.ResourceProcess, jail.ResourceRuntimeState, jail.ResourceStaged)
}

type journal struct{ *Memory }

func (j journal) Put(_ context.Context, r jail.Record) error {
	if err := j.before("journal.put"); err != nil {
		return err
	}
	j.Host.mu.Lock()
	defer j.Host.mu.Unlock()
	j.Host.records[r.Name] = r
	return nil
}

func (j journal) Delete(_ context.Context, n jail.Name) error {
	if err := j.before("journal.delete"); err != nil {
		return err
	}
	j.Host.mu.Lock()
	defer j.Host.mu.Unlock()
	delete(j.Host.records, n)
	return nil
}

func (j journal) Load(context.Context) (out []jail.Record, _ []jail.Name, _ error) {
	j.Host.mu.Lock()
	defer j.Host.mu.Unlock()
	for _, r := range j.Host.records {
		out = append(out, r)
	}
	return out, nil, nil
}
