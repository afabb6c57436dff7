package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jailspawn"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
)

// ExitStatus is the status of a program that was run for the user, which becomes the command's own. It is no mistake, and
// nothing is said about it.
type ExitStatus int

// Error implements error.
func (e ExitStatus) Error() string { return fmt.Sprintf("the program ended with status %d", int(e)) }

// signalled is added to the number of a signal that ended a program, as shells do.
const signalled = 128

// spawning is what the command line says of a program.
type spawning struct {
	agent, jail, root       string
	env, mounts             []string
	request                 op.ProcessRequest
	limits                  op.ProcessLimits
	detach, asJSON          bool
	user, rootPath, network string
}

func newSpawnCommand(p *program) *cobra.Command {
	var s spawning
	cmd := &cobra.Command{
		Use:   "spawn [flags] -- PROGRAM [ARGUMENT…]",
		Short: "Run a program in a jail, with its stdin, stdout and stderr here",
		Long: "Runs a program in a jail for an agent: in a new one of a template, in one whose root is a folder of the host, or in the agent's " +
			"own. Bytes pass through untouched. The command's status is the program's, or 128 and the number of the signal that ended it. Ctrl-C ends " +
			"the program, with everything that it started. Words after -- are the program and its arguments.\n\n" +
			"With --detach the program runs on by itself, what it prints is kept, and its id is printed. Nothing is ever run outside a jail.",
		Example: "  clawjail spawn --agent writer -- python3 -c 'print(1)'\n" +
			"  tar c . | clawjail spawn --agent writer --template clawbot -- tar t\n" +
			"  clawjail spawn --jail writer -- /bin/sh -c 'ls -l /state'\n" +
			"  clawjail spawn --agent writer --mount /srv/project:/workspace:ro --ttl 10m --detach -- /workspace/run.sh",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage(cmd, "%s needs a program", cmd.CommandPath())
			}
			return nil
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveNoFileComp // programs are those of the jail
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := s.read(cmd, args); err != nil {
				return err
			}
			if mode, direct, err := p.spawnMode(cmd.Context()); err != nil || direct {
				if err != nil {
					return err
				}
				return p.spawnDirect(cmd, &s, mode)
			}
			c, err := p.client()
			if err != nil {
				return err
			}
			name, err := s.whose(cmd.Context(), c)
			if err != nil {
				return err
			}
			if s.detach {
				return s.start(cmd, c, name)
			}
			return attach(cmd, c, name, false, s.request)
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // what comes behind the program is the program's
	f.StringVar(&s.agent, "agent", "", "the `agent` that it is a program of; the only one there is when it is left out")
	f.StringVar(&s.jail, "jail", "", "run it in the jail of this `agent`, which runs")
	f.StringVar(&s.root, "root", "", "make a jail whose root is this `folder`, beneath jail_roots of the configuration")
	f.StringVar(&s.request.Template, "template", "", "make a jail of this `template` (default clawbot)")
	p.templateFlag(cmd)
	f.StringArrayVar(&s.env, "env", nil, "a variable for it, `NAME=VALUE`")
	f.StringVar(&s.request.Dir, "dir", "", "the working `directory`, inside the jail (default /state)")
	f.StringArrayVar(&s.mounts, "mount", nil, "a folder beneath workspace_roots that it sees, `SOURCE:TARGET[:ro]`")
	f.StringVar(&s.request.TTL, "ttl", "", "how long it may run, such as 10m (default 1h)")
	f.StringVar(&s.limits.Memory, "memory", "", "memory of its new jail, such as 1GiB")
	f.Float64Var(&s.limits.CPU, "cpu", 0, "processors of its new jail, such as 1.5")
	f.IntVar(&s.limits.Tasks, "tasks", 0, "processes and threads of its new jail")
	f.StringVar(&s.user, "user", "", "the `user` of the jail that it runs as, which a host without its daemon must be told; with it there is one, agent")
	f.StringVar(&s.rootPath, "root-path", "", "without a host daemon: the `folder` of the host that is the root of the jail named by --jail")
	f.StringVar(&s.network, "network", "", "of a new jail: `none`, which is the default without a host daemon; there it may be inherit, for that of the host, when allow_host_network of the configuration says so")
	f.BoolVar(&s.detach, "detach", false, "let it run on, and print its id")
	f.BoolVar(&s.asJSON, "json", false, "with --detach, print it as JSON")
	p.tenantFlag(cmd, &s.request.Tenant)
	p.completeFlag(cmd, "agent", agentNames)
	p.completeFlag(cmd, "jail", agentNames)
	return cmd
}

// read checks what was said, as far as that can be without asking.
func (s *spawning) read(cmd *cobra.Command, args []string) error {
	if s.jail != "" && (s.root != "" || s.request.Template != "" || len(s.mounts) > 0 || s.limits != (op.ProcessLimits{})) {
		return usage(cmd, "a jail that runs has its root, mounts and limits already: give --jail alone")
	}
	if s.root != "" && s.request.Template != "" {
		return usage(cmd, "a jail is made of a folder or of a template: give --root or --template")
	}
	if s.jail != "" && s.agent != "" && s.jail != s.agent {
		return usage(cmd, "a program in the jail of %s is one of %s: leave --agent out", s.jail, s.jail)
	}
	if s.network != "" && s.jail != "" {
		return usage(cmd, "a jail that runs has its network already: leave --network out")
	}
	if _, known := networks()[s.network]; !known {
		return usage(cmd, "--network %q: it is none or inherit", s.network)
	}
	if s.asJSON && !s.detach {
		return usage(cmd, "standard output is the program's: --json is for --detach")
	}
	s.request.Argv = args
	for _, text := range s.env {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return usage(cmd, "--env takes NAME=VALUE") // not what was given: it may be a value alone
		}
		if s.request.Env == nil {
			s.request.Env = map[string]string{}
		}
		s.request.Env[name] = value
	}
	if s.limits != (op.ProcessLimits{}) {
		s.request.Limits = &s.limits
	}
	if s.jail+s.root+s.rootPath+s.user+s.network == "" && len(s.mounts) == 0 {
		return nil
	}
	s.request.Jail = &op.ProcessJail{Name: s.jail, Path: s.root, RootPath: s.rootPath, User: s.user, IP4: networks()[s.network]}
	for _, text := range s.mounts {
		m, ok := mountOf(text)
		if !ok {
			return usage(cmd, "--mount %q: write SOURCE:TARGET or SOURCE:TARGET:ro, both absolute", text)
		}
		s.request.Jail.Mounts = append(s.request.Jail.Mounts, m)
	}
	return nil
}

// networks are what --network may say.
func networks() map[string]string {
	return map[string]string{"": "", "none": jailspawn.IP4Disable, "inherit": jailspawn.IP4Inherit}
}

// mountOf reads SOURCE:TARGET[:ro|:rw].
func mountOf(text string) (op.ProcessMount, bool) {
	parts := strings.Split(text, ":")
	if len(parts) < 2 || len(parts) > 3 || !strings.HasPrefix(parts[0], "/") || !strings.HasPrefix(parts[1], "/") {
		return op.ProcessMount{}, false
	}
	m := op.ProcessMount{Source: parts[0], Target: parts[1]}
	if len(parts) == 3 {
		m.ReadOnly = parts[2] == "ro"
		return m, m.ReadOnly || parts[2] == "rw"
	}
	return m, true
}

// whose is the agent that the program is one of.
func (s *spawning) whose(ctx context.Context, c *client.Client) (string, error) {
	if s.jail != "" {
		return s.jail, nil
	}
	if s.agent != "" {
		return s.agent, nil
	}
	all, err := client.Call(ctx, c, op.ListAgents(), op.OfTenant{Tenant: s.request.Tenant})
	if err != nil {
		return "", err
	}
	agents := all.Agents
	switch len(agents) {
	case 0:
		return "", problem.New(problem.NotFound, "make one: clawjail agent create NAME", "there is no agent to run the program for")
	case 1:
		s.request.Tenant = agents[0].Tenant
		return agents[0].Name, nil
	}
	return "", problem.New(problem.BadUsage, "clawjail spawn --agent "+agents[0].Name+" -- …; the others: clawjail agent ls",
		"there are %d agents: name one with --agent", len(agents))
}

// start starts a program that runs on.
func (s *spawning) start(cmd *cobra.Command, c *client.Client, name string) error {
	started, err := client.Call(cmd.Context(), c, op.StartProcess(), op.NewProcess{Name: name, Body: op.With(s.request)})
	if err != nil {
		return err
	}
	if s.asJSON {
		return writeJSON(cmd.OutOrStdout(), started)
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), started.ID)
	return err
}

// attach runs a program with the stdio of this one. `clawjail agent exec` is it with exec.
func attach(cmd *cobra.Command, c *client.Client, name string, exec bool, r op.ProcessRequest) error {
	out, err := c.Attach(cmd.Context(), name, exec, r, client.Streams{In: cmd.InOrStdin(), Out: cmd.OutOrStdout(), Err: cmd.ErrOrStderr()})
	switch {
	case errors.Is(err, syscall.EPIPE), errors.Is(err, io.ErrClosedPipe), errors.Is(err, os.ErrClosed):
		return ExitStatus(signalled + int(syscall.SIGPIPE)) // the reader has gone: the status that every program has then
	case err != nil && cmd.Context().Err() != nil:
		return ExitStatus(signalled + int(syscall.SIGINT))
	case err != nil:
		return err
	case out.Exit == nil:
		return errors.New("the control plane does not say how the program ended")
	}
	return ended(cmd, *out.Exit)
}

// ended is the status of a program that has ended. Why it was ended, when it was, is said.
func ended(cmd *cobra.Command, exit jail.Exit) error {
	switch exit.Cause {
	case jail.CauseExited, "":
	case jail.CauseWallClock:
		report(cmd.ErrOrStderr(), problem.New(problem.LimitWallClock, "give it more time: --ttl", "the program's time was up"))
	case jail.CauseMemory:
		report(cmd.ErrOrStderr(), problem.New(problem.LimitMemory, "give its jail more: --memory", "the program ran out of memory"))
	default:
		report(cmd.ErrOrStderr(), problem.New(problem.JailFailed, "look at the audit log: clawjail audit tail", "the program was ended from outside"))
	}
	if n := signalNumber(exit.Signal); n > 0 {
		return ExitStatus(signalled + n)
	}
	if exit.Code == 0 {
		if exit.Cause == jail.CauseExited || exit.Cause == "" {
			return nil
		}
		return ExitStatus(exitFailure)
	}
	if exit.Code < 0 || exit.Code > 255 {
		return ExitStatus(exitFailure)
	}
	return ExitStatus(exit.Code)
}

// signalNumber is the number of a signal by what this system calls it, 0 for none.
func signalNumber(text string) int {
	if text == "" {
		return 0
	}
	for n := range 65 {
		if syscall.Signal(n).String() == text {
			return n
		}
	}
	return int(syscall.SIGKILL) // of another system: it was ended all the same
}
