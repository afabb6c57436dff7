// Package instance runs a private clawjail beside the one of the machine: with an id, folders, addresses and a
// port of its own, sharing only the templates. The self-test, the benchmarks and the tests of the whole are
// made with it. It starts the real program as its own processes; nothing is faked.
package instance

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/base/freeport"
	"github.com/clawjail/clawjail/internal/base/pace"
	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/inventory"
	"github.com/clawjail/clawjail/internal/jail"
)

const (
	// startLimit bounds a start on an ordinary machine, and stopLimit an end there.
	startLimit, stopLimit = 30 * time.Second, 60 * time.Second
	// killedLimit bounds there how long a process that was killed holds what it had.
	killedLimit = 10 * time.Second
)

// Options say what to run.
type Options struct {
	// Binary is the program, bin/clawjail.
	Binary string
	// Parent is the folder that the data goes below: on the file system that is to be tried. Default: the
	// data folder of the machine's own installation.
	Parent string
	// Templates is the folder of the templates. Default: those of the machine's own installation.
	Templates string
	// UIDBase must differ between instances that run at the same time. Default 1879300000.
	UIDBase uint32
	// Port is where it listens on loopback. Default: one that is free.
	Port uint16
	// Settings is YAML that is appended to the configuration.
	Settings string
	// Pace is how slow this machine is: limits of time grow with it. See [pace.Measure].
	Pace pace.Pace
	// Output gets all that the processes print. May be nil.
	Output io.Writer
}

// Instance is a private clawjail.
type Instance struct {
	Options
	ConfigFile string
	Config     config.Config

	mu  sync.Mutex
	cmd *exec.Cmd     // of `clawjail up`, nil when it does not run
	end chan struct{} // closed when cmd has ended
	log texts.Tail
}

// New makes the folders and the configuration of an instance. Remove takes them away.
func New(o Options) (_ *Instance, err error) {
	system := config.Default()
	o.Parent = cmp.Or(o.Parent, system.DataDir)
	o.Templates = cmp.Or(o.Templates, system.TemplatesDir)
	o.UIDBase = cmp.Or(o.UIDBase, 1_879_300_000)
	if err := os.MkdirAll(o.Parent, 0o755); err != nil {
		return nil, fmt.Errorf("make a private instance: %w", err)
	}
	data, err := os.MkdirTemp(o.Parent, "private-")
	if err != nil {
		return nil, fmt.Errorf("make a private instance: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(data))
		}
	}()
	if err := os.Chmod(data, 0o755); err != nil {
		return nil, err
	}
	if o.Port == 0 {
		if o.Port, err = freePort(); err != nil {
			return nil, err
		}
	}
	run := "/run/clawjail-" + filepath.Base(data)
	text := fmt.Sprintf("data_dir: %s\nrun_dir: %s\ntemplates_dir: %s\nlisten: 127.0.0.1:%d\nuid_base: %d\n%s",
		filepath.Join(data, "data"), run, o.Templates, o.Port, o.UIDBase, o.Settings)
	i := &Instance{Options: o, ConfigFile: filepath.Join(data, "clawjail.yml")}
	if err := os.WriteFile(i.ConfigFile, []byte(text), 0o644); err != nil {
		return nil, err
	}
	if i.Config, err = config.Load(i.ConfigFile); err != nil {
		return nil, err
	}
	return i, nil
}

func freePort() (uint16, error) {
	for range 1000 {
		if port, free := freeport.Nth(rand.Uint32()); free {
			return port, nil
		}
	}
	return 0, errors.New("make a private instance: no port is free")
}

// Start runs `clawjail up`, which builds no template, and returns when both halves answer.
func (i *Instance) Start(ctx context.Context) error {
	cmd := i.Command(context.WithoutCancel(ctx), "up", "--no-build")
	// Ctrl-C reaches only the caller, which then stops the instance.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stdout = io.Writer(&i.log)
	if i.Output != nil {
		cmd.Stdout = io.MultiWriter(&i.log, i.Output)
	}
	cmd.Stderr = cmd.Stdout // one and the same, so that lines do not mix
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start clawjail: %w", err)
	}
	end := make(chan struct{})
	i.mu.Lock()
	i.cmd, i.end = cmd, end
	i.mu.Unlock()
	go func() { // Stop and Kill wait for it
		_ = cmd.Wait() // how it ended is in its log
		close(end)
	}()
	if err := i.await(ctx, end, i.answers); err != nil {
		return errors.Join(err, i.Kill())
	}
	return nil
}

// answers says whether both halves do.
func (i *Instance) answers(ctx context.Context) bool {
	c, err := i.Client()
	if err != nil {
		return false
	}
	defer c.CloseIdle()
	info, err := c.Info(ctx)
	return err == nil && info.Host != nil
}

// await waits until the instance is ready, for as long as this machine may take, unless it ends.
func (i *Instance) await(ctx context.Context, end <-chan struct{}, ready func(context.Context) bool) error {
	limit := i.Pace.Longer(startLimit)
	for late := time.Now().Add(limit); ; {
		if ready(ctx) {
			return nil
		}
		select {
		case <-end:
			return fmt.Errorf("clawjail ended at once:\n%s", i.Log())
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(late) {
			return fmt.Errorf("clawjail is not ready after %s:\n%s", limit, i.Log())
		}
	}
}

// Command is a clawjail command for this instance.
func (i *Instance) Command(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, i.Binary, append([]string{"--config", i.ConfigFile}, args...)...)
}

// Run runs a clawjail command to its end and returns what it printed.
func (i *Instance) Run(ctx context.Context, args ...string) (string, error) {
	var out, errs bytes.Buffer
	cmd := i.Command(ctx, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("clawjail %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// Client is a client with the instance's admin key.
func (i *Instance) Client() (*client.Client, error) {
	key, err := os.ReadFile(hostd.AdminKeyPath(i.Config))
	if err != nil {
		return nil, fmt.Errorf("read the admin key: %w", err)
	}
	return client.New(&url.URL{Scheme: "http", Host: i.Config.Listen.String()}, strings.TrimSpace(string(key))), nil
}

// Log is the end of what the processes printed.
func (i *Instance) Log() string { return i.log.String() }

// Stop ends the instance as an operator does, with every jail.
func (i *Instance) Stop(ctx context.Context) error {
	i.mu.Lock()
	cmd, end := i.cmd, i.end
	i.cmd = nil
	i.mu.Unlock()
	if cmd == nil {
		return nil
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop clawjail: %w", err)
	}
	select {
	case <-end:
		return nil
	case <-time.After(i.Pace.Longer(stopLimit)):
	case <-ctx.Done():
	}
	return errors.Join(fmt.Errorf("clawjail did not stop:\n%s", i.Log()), cmd.Process.Kill())
}

// Processes are the process ids of the supervisor and of both halves.
func (i *Instance) Processes() ([]int, error) {
	i.mu.Lock()
	cmd := i.cmd
	i.mu.Unlock()
	if cmd == nil {
		return nil, nil
	}
	return descendants(cmd.Process.Pid)
}

// descendants are a process and those of its children that are clawjail's own.
func descendants(pid int) ([]int, error) {
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil, err
	}
	out := []int{pid}
	for _, l := range lists {
		text, err := os.ReadFile(l)
		if err != nil {
			continue // the thread has ended
		}
		for _, f := range strings.Fields(string(text)) {
			var child int
			if _, err := fmt.Sscan(f, &child); err == nil {
				out = append(out, child)
			}
		}
	}
	return out, nil
}

// Kill ends all of the instance's own processes at once with SIGKILL, and none of its jails.
func (i *Instance) Kill() error {
	i.mu.Lock()
	cmd, end := i.cmd, i.end
	i.cmd = nil
	i.mu.Unlock()
	if cmd == nil {
		return nil
	}
	// Stopped, it cannot start a half again while they are being killed.
	errs := []error{cmd.Process.Signal(syscall.SIGSTOP)}
	pids, err := descendants(cmd.Process.Pid)
	errs = append(errs, err)
	// The supervisor last: a half that sees its end would end in good order, with every jail.
	for _, pid := range slices.Backward(pids) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, err)
		}
	}
	<-end
	for _, pid := range pids {
		errs = append(errs, awaitEnd(pid, i.Pace.Longer(killedLimit)))
	}
	return errors.Join(errs...)
}

// awaitEnd waits until a process that was killed holds nothing any more: no port, and no lock.
func awaitEnd(pid int, limit time.Duration) error {
	for late := time.Now().Add(limit); time.Now().Before(late); time.Sleep(time.Millisecond) { // the kernel tells only its parent
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return nil
		}
		// A process is a zombie when its first thread has ended, and holds its files until the last one has.
		threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid)) // none: it is gone
		if _, state, found := strings.Cut(string(text), ") "); found && (state[0] == 'Z' || state[0] == 'X') && len(threads) < 2 {
			return nil
		}
	}
	return fmt.Errorf("process %d was killed and has not ended", pid)
}

// Scope is what of the host belongs to the instance. The zero Scope before the first Start.
func (i *Instance) Scope() (inventory.Scope, error) {
	var made struct {
		ID     jail.Installation `json:"id"`
		Subnet netip.Prefix      `json:"subnet"`
	}
	text, err := os.ReadFile(filepath.Join(i.Config.DataDir, "installation.json"))
	if errors.Is(err, os.ErrNotExist) {
		return inventory.Scope{Data: i.Config.DataDir, Run: i.Config.RunDir}, nil
	}
	if err != nil {
		return inventory.Scope{}, err
	}
	if err := json.Unmarshal(text, &made); err != nil {
		return inventory.Scope{}, fmt.Errorf("read installation.json: %w", err)
	}
	return inventory.Scope{Installation: made.ID, Data: i.Config.DataDir, Run: i.Config.RunDir,
		Subnet: made.Subnet, UIDBase: i.UIDBase, UIDs: 1 << (32 - max(made.Subnet.Bits(), 16))}, nil
}

// Uninstall removes what all jails of the instance share: bridge, firewall tables, groups.
func (i *Instance) Uninstall(ctx context.Context) error {
	s, err := i.Scope()
	if err != nil || s.Installation == "" {
		return err
	}
	pool, err := jail.NewPool(s.Subnet, i.UIDBase)
	if err != nil {
		return err
	}
	return hostd.Uninstall(ctx, i.Config, s.Installation, pool)
}

// Remove takes the folders away, the append-only file of the host daemon included. It refuses while something is
// mounted below them, rather than to remove what is mounted there.
func (i *Instance) Remove(ctx context.Context) error {
	s, err := i.Scope()
	if err != nil {
		return err
	}
	left, err := inventory.Take(ctx, s)
	if err != nil {
		return err
	}
	for _, t := range left {
		if t.Kind == "mount" {
			return fmt.Errorf("%s is still mounted", t.ID)
		}
	}
	if err := checkpoint.Unprotect(hostd.CheckpointsPath(i.Config)); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(i.Config.RunDir), os.RemoveAll(filepath.Dir(i.ConfigFile)))
}
