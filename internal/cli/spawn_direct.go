package cli

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jailspawn"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
)

// systemWithJails is where a program can be run in a jail without a host daemon.
const systemWithJails = "freebsd"

// spawnMode says whether a program is run without the control plane, and how then. It is, where CLAWJAIL_PRIV_MODE names
// another way, and on FreeBSD when no host daemon answers.
func (p *program) spawnMode(ctx context.Context) (mode jailspawn.Mode, direct bool, err error) {
	named := p.getenv(jailspawn.ModeVariable)
	if named == "" && runtime.GOOS != systemWithJails {
		return jailspawn.ModeHostd, false, nil
	}
	mode, err = jailspawn.ChooseMode(named, func() bool { return p.hostAnswers(ctx) })
	if err != nil || mode == jailspawn.ModeHostd {
		return mode, false, err
	}
	if runtime.GOOS != systemWithJails {
		return mode, false, problem.New(problem.Unsupported, "unset "+jailspawn.ModeVariable+": here the host daemon makes jails (sudo clawjail up)",
			"a jail without a host daemon (%s=%s) works on FreeBSD only", jailspawn.ModeVariable, mode)
	}
	return mode, true, nil
}

// hostAnswers says whether there is a host daemon. That this user may not speak to it is an answer too: the control plane may.
func (p *program) hostAnswers(ctx context.Context) bool {
	if p.getenv(urlVariable) != "" {
		return true
	}
	c, err := p.config()
	if err != nil {
		return true // then the other way says what is wrong with it
	}
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", hostd.SocketPath(c))
	if err != nil {
		return errors.Is(err, os.ErrPermission)
	}
	_ = conn.Close() // nothing was said
	return true
}

// spawnDirect runs a program in a jail without the control plane.
func (p *program) spawnDirect(cmd *cobra.Command, s *spawning, mode jailspawn.Mode) error {
	if err := s.readDirect(cmd); err != nil {
		return err
	}
	o, err := p.directOptions(mode, slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		return err
	}
	return runDirect(cmd, s, o)
}

// directOptions are those of a caller on the host itself.
func (p *program) directOptions(mode jailspawn.Mode, log *slog.Logger) (jailspawn.Options, error) {
	c, err := p.config()
	return jailspawn.Options{
		Mode: mode, StageDir: p.getenv(jailspawn.StageVariable), AllowHostNetwork: c.Agents.AllowHostNetwork, UID: os.Getuid(), Log: log,
	}, err
}

// readDirect refuses what only a control plane can do.
func (s *spawning) readDirect(cmd *cobra.Command) error {
	if s.jail == "" && s.root == "" {
		return usage(cmd, "there is no host daemon here: say which jail, --jail NAME or --root PATH")
	}
	if s.agent != "" && s.agent != s.jail || s.request.Template != "" || len(s.mounts) > 0 || s.limits != (op.ProcessLimits{}) || s.detach || s.request.TTL != "" || s.request.Tenant != "" {
		return usage(cmd, "there is no host daemon here, which agents, templates, mounts, limits, --ttl and --detach need: start it, or leave them out")
	}
	return nil
}

// runDirect runs a program with the stdio of this process.
func runDirect(cmd *cobra.Command, s *spawning, o jailspawn.Options) error {
	// Signals that end this process would leave the program behind.
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGHUP, syscall.SIGQUIT)
	defer stop()
	j := s.request.Jail
	config := jailspawn.JailConfig{Name: j.Name, Path: j.Path, RootPath: j.RootPath, User: j.User, IP4: j.IP4}
	program := jail.Program{Argv: s.request.Argv, Env: s.request.Env, Dir: s.request.Dir}
	in, _ := cmd.InOrStdin().(*os.File)
	exit, err := jailspawn.New(o).Run(ctx, config, program, jailspawn.Stdio{In: in, Out: file(cmd.OutOrStdout(), os.Stdout), Err: file(cmd.ErrOrStderr(), os.Stderr)})
	switch {
	case err != nil:
		return err
	case ctx.Err() != nil:
		return ExitStatus(signalled + int(syscall.SIGINT))
	case exit.Signal != 0:
		return ExitStatus(signalled + int(exit.Signal))
	case exit.Code < 0 || exit.Code > 255:
		return ExitStatus(exitFailure)
	case exit.Code != 0:
		return ExitStatus(exit.Code)
	}
	return nil
}

// file is the file behind a writer, which a program gets as it is.
func file(w io.Writer, otherwise *os.File) *os.File {
	if f, ok := w.(*os.File); ok {
		return f
	}
	return otherwise
}
