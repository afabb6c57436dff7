package cli

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// Programs are run as they are here, each in a process group that is its jail. Two are not: `request` prints what was asked for,
// and `ended CAUSE` ends as if something else had ended it.
func (k *keptAgents) Run(ctx context.Context, by identity.Principal, tenant, name string, r agent.ProcessRequest) (agent.Process, *jail.Running, error) {
	if _, err := k.Get(ctx, by, tenant, name); err != nil {
		return agent.Process{}, nil, err
	}
	if r.Jail != nil && r.Jail.Path == "/" {
		return agent.Process{}, nil, problem.New(problem.Forbidden, "leave the jail out", "none is ever started on the bare host")
	}
	out := agent.Process{ID: "pr_run", Tenant: by.TenantOr(tenant), Agent: name, Argv: r.Argv}
	switch r.Argv[0] {
	case "request":
		text, err := json.Marshal(r)
		if err != nil {
			return out, nil, err
		}
		running, err := runHere(ctx, []string{"/bin/echo", name, string(text)}, nil)
		return out, running, err
	case "ended":
		running, err := runHere(ctx, []string{"/bin/true"}, nil)
		if err == nil {
			running.Wait = func(context.Context) (jail.Exit, error) {
				return jail.Exit{Code: -1, Signal: syscall.SIGKILL.String(), Cause: jail.Cause(r.Argv[1])}, nil
			}
		}
		return out, running, err
	}
	running, err := runHere(ctx, r.Argv, r.Env)
	return out, running, err
}

// Start starts nothing, and has it listed as if it ran.
func (k *keptAgents) Start(ctx context.Context, by identity.Principal, tenant, name string, r agent.ProcessRequest) (agent.Process, error) {
	if _, err := k.Get(ctx, by, tenant, name); err != nil {
		return agent.Process{}, err
	}
	out := agent.Process{ID: "pr_" + path.Base(r.Argv[0]), Tenant: by.TenantOr(tenant), Agent: name, Argv: r.Argv, OwnJail: r.Jail == nil, StartedAt: time.Now(), StartedBy: by.Actor()}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.started = append(k.started, out)
	return out, nil
}

// Processes implements agent.Agents.
func (k *keptAgents) Processes(ctx context.Context, by identity.Principal, tenant, name string) ([]agent.Process, error) {
	if _, err := k.Get(ctx, by, tenant, name); err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.started), nil
}

// EndProcess implements agent.Agents.
func (k *keptAgents) EndProcess(ctx context.Context, by identity.Principal, tenant, name, id string) error {
	if _, err := k.Get(ctx, by, tenant, name); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for n := range k.started {
		if k.started[n].ID == id {
			k.started[n].Exit = &jail.Exit{Code: -1, Cause: jail.CauseDestroyed}
			return nil
		}
	}
	return problem.New(problem.NotFound, "", "there is no program %s", id)
}

// runHere runs a program, and ends it with ctx.
func runHere(ctx context.Context, argv []string, env map[string]string) (*jail.Running, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	var ours, theirs [3]*os.File
	for n := range ours {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		ours[n], theirs[n] = r, w
	}
	ours[0], theirs[0] = theirs[0], ours[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs[0], theirs[1], theirs[2]
	err := cmd.Start()
	for _, f := range theirs {
		_ = f.Close() // the program has it
	}
	running := &jail.Running{Stdio: &jail.Stdio{In: ours[0], Out: ours[1], Err: ours[2]}}
	if err != nil {
		running.Stdio.Close()
		return nil, err
	}
	running.End = func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // it may be gone
	alone := context.AfterFunc(ctx, running.End)
	running.Wait = func(context.Context) (jail.Exit, error) {
		_ = cmd.Wait() // the state says how
		alone()
		exit := jail.Exit{Code: cmd.ProcessState.ExitCode(), Cause: jail.CauseExited}
		if w, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && w.Signaled() {
			exit.Signal = w.Signal().String()
		}
		return exit, nil
	}
	return running, nil
}

// programBegan is `began FILE`: it waits until a program has written its process id there.
func programBegan(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: began FILE")
	}
	await(ts, "the program does not begin", func() bool { return processIn(ts, args[0]) > 0 })
}

// programGone is `gone FILE`: it waits until there is no process with the id that is there.
func programGone(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: gone FILE")
	}
	pid := processIn(ts, args[0])
	if pid <= 0 {
		ts.Fatalf("there is no process id in %s", args[0])
	}
	await(ts, "the program runs on", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
}

// processIn is the process id in a file, 0 when there is none yet.
func processIn(ts *testscript.TestScript, file string) (pid int) {
	text, err := os.ReadFile(ts.MkAbs(file))
	if err == nil && strings.HasSuffix(string(text), "\n") {
		pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		ts.Fatalf("%v", err)
	}
	return pid
}

func await(ts *testscript.TestScript, otherwise string, is func() bool) {
	for deadline := time.Now().Add(20 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			ts.Fatalf("%s", otherwise)
		}
	}
}
