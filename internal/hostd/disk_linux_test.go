package hostd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest"
)

// disk is a host that outlives any process: what jails leave are files in a folder, and their programs are real
// processes in sessions of their own. It is for tests that kill the host daemon.
type disk struct {
	dir  string
	pool *jail.Pool
}

func newDisk(dir string) (disk, error) {
	for _, k := range jail.ResourceKinds() {
		if err := os.MkdirAll(filepath.Join(dir, string(k)), 0o755); err != nil {
			return disk{}, err
		}
	}
	pool, err := jail.NewPool(netip.MustParsePrefix("10.99.0.0/24"), 1_879_100_000)
	return disk{dir: dir, pool: pool}, err
}

func (d disk) parts() jail.Parts {
	return jail.Parts{Storage: diskStorage{d}, Network: diskNetwork{d}, Firewall: diskFirewall{d}, Runtime: diskRuntime{d}, Limiter: diskLimiter{d}, Means: jail.AllMeans()}
}

func (d disk) path(k jail.ResourceKind, id string) string { return filepath.Join(d.dir, string(k), id) }

func (d disk) put(k jail.ResourceKind, id string, content string) error {
	return os.WriteFile(d.path(k, id), []byte(content), 0o600)
}

func (d disk) remove(k jail.ResourceKind, id string) error { return absent(os.Remove(d.path(k, id))) }

// list reads the things of some kinds. An id is a jail's name, or the index of a lease.
func (d disk) list(kinds ...jail.ResourceKind) (out []jail.HostResource, err error) {
	for _, k := range kinds {
		entries, err := os.ReadDir(filepath.Join(d.dir, string(k)))
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			t := jail.HostResource{Kind: k, Index: -1, ID: e.Name()}
			if n, err := strconv.Atoi(e.Name()); err == nil {
				t.Index = n
			} else {
				t.Name = jail.Name(e.Name())
			}
			out = append(out, t)
		}
	}
	return out, nil
}

type diskStorage struct{ disk }

func (s diskStorage) Clone(_ context.Context, n jail.Name, _ jail.Spec) (string, error) {
	return "/", errors.Join(s.put(jail.ResourceClone, string(n), ""), s.put(jail.ResourceMount, string(n), ""))
}
func (s diskStorage) Unmount(_ context.Context, n jail.Name, _ bool) error {
	return s.remove(jail.ResourceMount, string(n))
}
func (s diskStorage) Destroy(_ context.Context, n jail.Name) error {
	return s.remove(jail.ResourceClone, string(n))
}
func (s diskStorage) List(context.Context) ([]jail.HostResource, error) {
	return s.list(jail.ResourceClone, jail.ResourceMount)
}

func (s diskStorage) Mount(_ context.Context, p jail.Placement) error {
	if p.Spec.Agent.State == 0 {
		return nil
	}
	return os.WriteFile(filepath.Join(s.dir, "state-"+p.Spec.Agent.Key()), nil, 0o600)
}
func (s diskStorage) Token(_ context.Context, n jail.Name, _ uint32, token []byte) error {
	return os.WriteFile(filepath.Join(s.dir, "token-"+string(n)), token, 0o600)
}
func (s diskStorage) Check(context.Context, jail.Spec) error { return nil }
func (s diskStorage) RemoveState(_ context.Context, a jail.Agent) error {
	return absent(os.Remove(filepath.Join(s.dir, "state-"+a.Key())))
}

type diskNetwork struct{ disk }

func (n diskNetwork) Reserve(context.Context) (jail.Lease, error) { return n.pool.Take() }
func (n diskNetwork) Attach(_ context.Context, _ jail.Name, l jail.Lease) (string, error) {
	id := strconv.Itoa(l.Index)
	return "", errors.Join(n.put(jail.ResourceNamespace, id, ""), n.put(jail.ResourceInterface, id, ""))
}
func (n diskNetwork) Detach(_ context.Context, _ jail.Name, l jail.Lease) error {
	id := strconv.Itoa(l.Index)
	return errors.Join(n.remove(jail.ResourceInterface, id), n.remove(jail.ResourceNamespace, id))
}
func (n diskNetwork) Release(l jail.Lease) { n.pool.Release(l.Index) }
func (n diskNetwork) List(context.Context) ([]jail.HostResource, error) {
	return n.list(jail.ResourceInterface, jail.ResourceNamespace)
}
func (n diskNetwork) RemoveResource(_ context.Context, t jail.HostResource) error {
	return n.remove(t.Kind, t.ID)
}

type diskFirewall struct{ disk }

func (f diskFirewall) Add(_ context.Context, _ jail.Table, l jail.Lease) error {
	return f.put(jail.ResourceTableMember, strconv.Itoa(l.Index), "")
}
func (f diskFirewall) Remove(_ context.Context, _ jail.Table, l jail.Lease) error {
	return f.remove(jail.ResourceTableMember, strconv.Itoa(l.Index))
}
func (f diskFirewall) Ensure(context.Context) error { return nil }
func (f diskFirewall) List(context.Context) ([]jail.HostResource, error) {
	return f.list(jail.ResourceTableMember)
}
func (f diskFirewall) RemoveResource(_ context.Context, t jail.HostResource) error {
	return f.remove(t.Kind, t.ID)
}

type diskLimiter struct{ disk }

func (l diskLimiter) Apply(_ context.Context, n jail.Name, _ string, _ jail.Limits) error {
	return l.put(jail.ResourceCgroup, string(n), "")
}
func (l diskLimiter) Remove(_ context.Context, n jail.Name) error {
	return l.remove(jail.ResourceCgroup, string(n))
}
func (l diskLimiter) Usage(context.Context, jail.Name, jail.Process) (jail.Usage, error) {
	return jail.Usage{}, nil
}
func (l diskLimiter) List(context.Context) ([]jail.HostResource, error) {
	return l.list(jail.ResourceCgroup)
}

type diskRuntime struct{ disk }

func (r diskRuntime) Start(_ context.Context, p jail.Placement, stdio [3]*os.File) (jail.Process, error) {
	if err := errors.Join(r.put(jail.ResourceStaged, string(p.Name), ""), r.put(jail.ResourceRuntimeState, string(p.Name), "")); err != nil {
		return jail.Process{}, err
	}
	cmd := exec.Command(p.Spec.Program.Argv[0], p.Spec.Program.Argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdio[0], stdio[1], stdio[2]
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // it outlives the host daemon
	if err := cmd.Start(); err != nil {
		return jail.Process{}, fmt.Errorf("start the program: %w", err)
	}
	pid := cmd.Process.Pid
	started, _ := startTime(pid)
	if err := r.put(jail.ResourceProcess, string(p.Name), fmt.Sprintf("%d %d", pid, started)); err != nil {
		return jail.Process{}, err
	}
	return jail.Process{PID: pid, Started: started}, cmd.Process.Release()
}

func (r diskRuntime) Observe(_ context.Context, p jail.Placement, _ jail.Process) (jail.Observed, error) {
	return jailtest.Confined(p.Profile), nil
}

func (r diskRuntime) Wait(ctx context.Context, _ jail.Name, p jail.Process) (int, string, error) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for alive(p) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return -1, "", ctx.Err()
		}
	}
	return -1, "", nil
}

func (r diskRuntime) Terminate(_ context.Context, _ jail.Name, p jail.Process) error {
	if alive(p) {
		_ = unix.Kill(p.PID, unix.SIGTERM) // it may end in between
	}
	return nil
}

// Kill also finds a process that is in no record: the one that was started in the moment before the kill.
func (r diskRuntime) Kill(_ context.Context, n jail.Name, p jail.Process) error {
	data, err := os.ReadFile(r.path(jail.ResourceProcess, string(n)))
	if err == nil {
		if _, err := fmt.Sscanf(string(data), "%d %d", &p.PID, &p.Started); err != nil {
			return err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if alive(p) {
		_ = unix.Kill(p.PID, unix.SIGKILL) // it may end in between
		return jail.ErrBusy                // asked again until it is gone
	}
	return r.remove(jail.ResourceProcess, string(n))
}

func (r diskRuntime) Stop(_ context.Context, n jail.Name) error {
	return errors.Join(r.remove(jail.ResourceStaged, string(n)), r.remove(jail.ResourceRuntimeState, string(n)))
}

func (r diskRuntime) List(context.Context) ([]jail.HostResource, error) {
	return r.list(jail.ResourceProcess, jail.ResourceRuntimeState, jail.ResourceStaged)
}

// startTime is field 22 of /proc/<pid>/stat; a zombie has ended.
func startTime(pid int) (uint64, bool) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	_, rest, found := strings.Cut(string(data), ") ") // the program's name may hold anything else
	fields := strings.Fields(rest)
	if !found || len(fields) < 20 || fields[0] == "Z" {
		return 0, false
	}
	started, err := strconv.ParseUint(fields[19], 10, 64)
	return started, err == nil
}

func alive(p jail.Process) bool {
	if p.PID <= 0 {
		return false
	}
	started, ok := startTime(p.PID)
	return ok && started == p.Started
}

func (diskRuntime) Exec(context.Context, jail.Placement, jail.Process, jail.Program, [3]*os.File) (jail.Execution, error) {
	return nil, errors.New("nothing is executed here")
}
func (diskRuntime) Dial(context.Context, jail.Placement, jail.Process, uint16) (*os.File, error) {
	return nil, errors.New("nothing is dialled here")
}

func (diskRuntime) Begin(context.Context, jail.Placement, jail.Process) error { return nil }
