package jailspawn

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jailspawn/command"
	"github.com/clawjail/clawjail/internal/jailspawn/helper"
	"github.com/clawjail/clawjail/internal/jailspawn/process"
	"github.com/clawjail/clawjail/internal/jailspawn/staged"
	"github.com/clawjail/clawjail/internal/problem"
)

// Run runs a program and waits for its end, which comes when ctx ends at the latest. Nothing of it is left then, staged
// files among it; an error says when that could not be done.
func (s *Spawner) Run(ctx context.Context, c JailConfig, prog jail.Program, stdio Stdio) (exit process.Exit, err error) {
	if err := s.validate(c, prog); err != nil {
		return exit, err
	}
	if err := s.Probe(ctx, c).Err(); err != nil {
		return exit, err
	}
	if c.IP4 == IP4Inherit {
		s.o.Log.Warn("a program runs in a jail on the network of the host", "path", c.Path, "user", c.User)
	}
	if s.o.Mode == ModeHelper {
		return s.runHelped(ctx, c, prog, stdio)
	}
	h := process.Held{Jail: c.Name, Run: s.privileged, Commands: s.o.Commands}
	if c.root() == "" {
		return s.hold(ctx, h, command.Enter(c.Name, c.User, unstaged(prog)...), stdio)
	}
	st, err := s.newStage(ctx, c.root(), c.User, s.o.StageDir, c.Name == "", prog)
	if err != nil {
		return exit, err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	if c.Name != "" {
		return s.hold(ctx, h, command.Enter(c.Name, c.User, st.launch()...), stdio)
	}
	h.Jail = command.EphemeralName(st.id)
	h.Ephemeral = &command.Ephemeral{Name: h.Jail, Path: c.Path, User: c.User, HostNetwork: c.IP4 == IP4Inherit}
	exit, err = s.hold(ctx, h, h.Ephemeral.Create(st.launch()...), stdio)
	if err != nil {
		return exit, err
	}
	return st.reported(exit)
}

// unstaged is what runs a program that nothing can be staged for: in the home of its user, with what every program is given.
// It has no variables of its own, which would be in these arguments.
func unstaged(prog jail.Program) []string {
	return append([]string{command.Shell, "-c", "set -eu\n" + string(prog.EnvScript()) + "cd\nexec \"$@\"\n", command.Shell}, prog.Argv...)
}

// reported is what the program of an ephemeral jail said of its own end. It is silent when it was killed.
func (s *stage) reported(exit process.Exit) (process.Exit, error) {
	dir, err := s.folder.Folder(s.id)
	if err != nil {
		return exit, reach(err)
	}
	status, there, err := staged.StatusOf(dir)
	if err := errors.Join(err, dir.Close()); err != nil {
		return exit, reach(err)
	}
	switch {
	case there:
		return process.Exit{Code: status}, nil
	case exit.Code == 0:
		return process.Exit{Code: -1, Signal: syscall.SIGKILL}, nil
	}
	return exit, nil
}

// privileged runs a command with the rights of root.
func (s *Spawner) privileged(ctx context.Context, argv []string) error {
	argv, err := s.wrap(argv)
	if err != nil {
		return err
	}
	// Not by its name when it is wrapped by nothing: it is a path by now.
	runner := s.o.Commands
	if s.o.Mode == ModeNone {
		runner.Places, runner.Dir = map[string]string{argv[0]: argv[0]}, ""
	}
	_, err = runner.Run(ctx, argv[0], argv[1:]...)
	return err
}

func (s *Spawner) hold(ctx context.Context, h process.Held, argv []string, stdio Stdio) (process.Exit, error) {
	argv, err := s.wrap(argv)
	if err != nil {
		return process.Exit{}, err
	}
	file := argv[0]
	if s.o.Mode != ModeNone {
		if file, err = s.o.Commands.Path(argv[0]); err != nil {
			return process.Exit{}, missing(err, argv[0])
		}
	}
	cmd := exec.Command(file, argv[1:]...) // Hold ends it, with all that it started
	cmd.Env = s.environment()
	cmd.Dir = "/"
	stdio.connect(cmd)
	exit, err := h.Hold(ctx, cmd)
	if err != nil {
		return exit, problem.Wrap(err, problem.JailFailed, "look at the processes of the jail: ps -J "+h.Jail, "the program could not be started, or not be ended")
	}
	return exit, nil
}

// environment is what mdo, sudo and jexec get. None of it is the program's.
func (s *Spawner) environment() []string {
	return []string{"PATH=/sbin:/bin:/usr/sbin:/usr/bin", "LC_ALL=C"}
}

// connect gives a command the streams. A nil file would be a reader that is not nil.
func (s Stdio) connect(cmd *exec.Cmd) {
	if s.In != nil {
		cmd.Stdin = s.In
	}
	if s.Out != nil {
		cmd.Stdout = s.Out
	}
	if s.Err != nil {
		cmd.Stderr = s.Err
	}
}

// runHelped runs a program by the setuid helper, which ends it when the other end of its pipe closes: also when this
// process is killed.
func (s *Spawner) runHelped(ctx context.Context, c JailConfig, prog jail.Program, stdio Stdio) (exit process.Exit, err error) {
	verb, name, place, err := s.helperPlace(c)
	if err != nil {
		return exit, err
	}
	st, err := s.newStage(ctx, place.Root, place.As, place.Stage, verb == helper.VerbRun, prog)
	if err != nil {
		return exit, err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	held, lifeline, err := os.Pipe()
	if err != nil {
		return exit, err
	}
	defer func() { _ = held.Close() }()
	cmd := exec.Command(s.o.Helper, verb, name, st.id)
	cmd.Env, cmd.Dir = s.environment(), "/"
	stdio.connect(cmd)
	cmd.ExtraFiles = []*os.File{held} // helper.Lifeline
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return exit, errors.Join(fmt.Errorf("start the helper: %w", err), lifeline.Close())
	}
	stop := context.AfterFunc(ctx, func() { _ = lifeline.Close() }) // the helper sees it
	defer stop()
	err = cmd.Wait()
	_ = lifeline.Close() // it may be closed
	var status *exec.ExitError
	if err != nil && !errors.As(err, &status) {
		return exit, err
	}
	return process.Exit{Code: cmd.ProcessState.ExitCode()}, nil
}

// helperPlace finds what was asked for in the helper's configuration.
func (s *Spawner) helperPlace(c JailConfig) (verb, name string, p helper.Place, err error) {
	config, err := helper.LoadConfig(s.o.HelperConfig)
	if err != nil {
		return "", "", p, problem.Wrap(err, problem.BadConfig, "let root correct "+s.o.HelperConfig, "the configuration of the helper cannot be used")
	}
	verb, name = helper.VerbEnter, c.Name
	if c.Name == "" {
		verb = helper.VerbRun
		for n, one := range config.Roots {
			if one.Root == c.Path {
				name = n
			}
		}
		p = config.Roots[name]
	} else {
		p = config.Jails[name]
	}
	if p.Root == "" || c.User != "" && c.User != p.As || c.Name != "" && c.RootPath != "" && c.RootPath != p.Root || p.HostNetwork != (c.IP4 == IP4Inherit) {
		return "", "", p, problem.New(problem.Forbidden, "leave --user and --root-path out, and let root list it in "+s.o.HelperConfig,
			"the helper's configuration has no such jail, or another user, root or network for it")
	}
	return verb, name, p, nil
}
