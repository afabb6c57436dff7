package cli

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/backup"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/doctor"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/supportbundle"
)

const (
	// tallied is how many rows of the audit log are counted: the newest.
	tallied = 1000
	// maxLines is how many lines of a log may be asked for.
	maxLines = 100_000
)

// supporting is what was said about a support bundle.
type supporting struct {
	plain bool
	lines int
	logs  []string
}

func newSupportBundleCommand(p *program) *cobra.Command {
	var s supporting
	cmd := &cobra.Command{
		Use:   "support-bundle [FILE]",
		Short: "Collect diagnostics in one file, without secrets",
		Long: "Writes a tar in gzip with versions, what `status` and `doctor` say, the configuration, logs of the daemons, what clawjail has on this machine, " +
			"numbers, and how many rows of each kind the audit log has. Keys, tokens, passwords, cookies and secrets are not in it, nor what agents and " +
			"pages said. Names of hosts, people, tenants and agents are replaced, the same one by the same word everywhere. manifest.json says what is in each file. " +
			"Look through it before you give it to anybody.\n\n" +
			"Without FILE it is clawjail-support-DATE.tar.gz here. As root it has the most; while nothing runs it has less, and says what is missing.",
		Example: "  sudo clawjail support-bundle\n  sudo clawjail support-bundle --log up.log bundle.tar.gz",
		Args:    arguments(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if s.lines < 1 || s.lines > maxLines {
				return usage(cmd, "--lines %d is not between 1 and %d", s.lines, maxLines)
			}
			file := "clawjail-support-" + p.now().UTC().Format("20060102-150405") + ".tar.gz"
			if len(args) > 0 {
				file = args[0]
			}
			return p.supportBundle(cmd, file, s)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&s.plain, "plain-names", false, "keep the names of hosts, people, tenants and agents")
	f.IntVar(&s.lines, "lines", 1000, "`number` of lines of each log")
	f.StringArrayVar(&s.logs, "log", nil, "`file` with a log of the daemons, where it is not in the journal")
	return cmd
}

func (p *program) supportBundle(cmd *cobra.Command, file string, s supporting) (err error) {
	ctx := cmd.Context()
	examined, err := p.doctorOptions(ctx)
	if err != nil {
		return err
	}
	m := supportMachine(examined.Config, p.version, s)
	m.ConfigErr = examined.ConfigErr
	out, err := backup.NewOutput(file) // whole or not at all, its owner's alone, and never in the place of another
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	names, known := m.Names(), m.Known()
	for _, name := range []string{keyVariable, oldKeyVariable} {
		if key := p.getenv(name); key != "" {
			known = append(known, []byte(key))
		}
	}
	api, apiErr := p.client()
	if apiErr == nil {
		defer api.CloseIdle()
		supportNames(ctx, api, names)
	}
	sources := append([]supportbundle.Source{
		supportbundle.JSON("status.json", "clawjail status --json", func(ctx context.Context) (any, error) { return p.status(ctx) }),
		supportbundle.JSON("doctor.json", "clawjail doctor --json", func(ctx context.Context) (any, error) {
			return doctor.Run(ctx, examined, doctor.ThisHost(examined)), nil
		}),
	}, m.Sources()...)
	sources = append(sources, supportAsked(api, apiErr, hostd.NewClient(hostd.SocketPath(examined.Config), nil))...)
	made, err := supportbundle.Write(ctx, out, supportbundle.Options{Version: p.version, Sources: sources, Now: p.now,
		Mask: supportbundle.NewMask(known, names, s.plain)})
	if err != nil {
		return err
	}
	if err := out.Keep(); err != nil {
		return err
	}
	lines := []string{fmt.Sprintf("wrote %s; look through it before you give it to anybody", printable(file))}
	for _, f := range made.Files {
		if f.Missing != "" {
			lines = append(lines, fmt.Sprintf("not in it, or not all: %s (%s)", f.Name, printable(f.Missing)))
		}
	}
	for _, what := range made.LeftOut {
		lines = append(lines, "left out: "+what)
	}
	for _, line := range lines {
		if err := said(cmd, "%s", line); err != nil {
			return err
		}
	}
	return nil
}

func supportMachine(c config.Config, version string, s supporting) supportbundle.Machine {
	m := supportbundle.Machine{Config: c, Version: version, Lines: s.lines, Logs: s.logs, Systemd: "/run/systemd/system",
		Units: []string{"/etc/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system"},
		Command: func(ctx context.Context, name string, args ...string) (string, error) {
			out, err := exec.CommandContext(ctx, name, args...).Output()
			return string(out), err
		},
		Secrets: []string{backup.VaultKeyPath(c), hostd.RelayKeyPath(c), c.TLS.Key},
	}
	keys, err := filepath.Glob(filepath.Join(hostd.ControlDir(c), "*.key"))
	if err == nil { // a pattern that is good
		m.Secrets = append(m.Secrets, keys...)
	}
	return m
}

// supportNames are those that the control plane tells this caller. Others are not in its answers either.
func supportNames(ctx context.Context, c *client.Client, names supportbundle.Names) {
	ctx, cancel := context.WithTimeout(ctx, supportbundle.SourceTime)
	defer cancel()
	add := func(kind, name string) { names[kind] = append(names[kind], name) }
	if all, err := client.Call(ctx, c, op.ListTenants(), op.None{}); err == nil {
		for _, t := range all.Tenants {
			add("tenant", t.ID)
		}
	}
	if all, err := client.Call(ctx, c, op.ListAgents(), op.OfTenant{}); err == nil {
		for _, a := range all.Agents {
			add("agent", a.Name)
		}
	}
	if all, err := client.Call(ctx, c, op.ListOperators(), op.OfTenant{}); err == nil {
		for _, o := range all.Operators {
			add("operator", o.Name)
		}
	}
	if all, err := client.Call(ctx, c, op.ListCookies(), op.OfTenant{}); err == nil {
		for _, set := range all.Sets {
			add("host", set.Domain)
		}
	}
	if all, err := client.Call(ctx, c, op.ListServices(), op.OfTenant{}); err == nil {
		for _, s := range all.Services {
			add("service", s.Name)
		}
	}
}

// supportAsked are files that somebody who runs is asked for.
func supportAsked(c *client.Client, because error, host *hostd.Client) []supportbundle.Source {
	asked := func(file, about string, read func(ctx context.Context) (any, error)) supportbundle.Source {
		return supportbundle.JSON(file, about, func(ctx context.Context) (any, error) {
			if because != nil {
				return nil, because
			}
			return read(ctx)
		})
	}
	return []supportbundle.Source{
		asked("info.json", "what the control plane says of itself", func(ctx context.Context) (any, error) { return c.Info(ctx) }),
		asked("agents.json", "the agents, and the state of their jails", func(ctx context.Context) (any, error) { return supportAgents(ctx, c) }),
		asked("audit.json", fmt.Sprintf("how many of the newest %d rows of the audit log are of each kind", tallied), func(ctx context.Context) (any, error) {
			all, err := client.Call(ctx, c, op.ListAudit(), op.AuditQuery{Limit: tallied})
			count := supportbundle.Tally{}
			for _, r := range all.Rows {
				count.Add(r.Action, r.Phase, r.Result, r.Detail)
			}
			return count, err
		}),
		{File: "metrics.txt", About: "numbers of the control plane, as Prometheus reads them", Read: func(ctx context.Context) ([]byte, error) {
			if because != nil {
				return nil, because
			}
			return c.Metrics(ctx)
		}},
		supportbundle.JSON("jails.json", "jails in the host daemon's journal, without what runs in them", func(ctx context.Context) (any, error) {
			all, err := host.List(ctx)
			type one struct {
				Name     jail.Name  `json:"name"`
				State    jail.State `json:"state"`
				Created  any        `json:"created"`
				Deadline any        `json:"deadline"`
				Usage    jail.Usage `json:"usage"`
			}
			out := []one{}
			for _, j := range all {
				out = append(out, one{j.Name, j.State, j.Created, j.Deadline, j.Usage})
			}
			return out, err
		}),
		supportbundle.JSON("reap.json", "what should not be on the machine", func(ctx context.Context) (any, error) {
			return host.Reap(ctx, jail.ReapOptions{DryRun: true})
		}),
	}
}

// supportAgents are the agents without what they were declared with.
func supportAgents(ctx context.Context, c *client.Client) (any, error) {
	all, err := client.Call(ctx, c, op.ListAgents(), op.OfTenant{})
	type one struct {
		Agent  string `json:"agent"`
		Tenant string `json:"tenant"`
		Phase  string `json:"phase"`
		Code   string `json:"code,omitempty"`
	}
	out := []one{}
	for _, a := range all.Agents {
		o := one{Agent: a.Name, Tenant: a.Tenant, Phase: "no jail"}
		if a.Jail != nil {
			o.Phase, o.Code = string(a.Jail.Phase), a.Jail.Code
		}
		out = append(out, o)
	}
	return out, err
}
