package cli

import (
	"bytes"
	"fmt"
	"maps"
	"strings"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/clawbots"
)

func newAgentAdd(p *program) *cobra.Command {
	var o addOptions
	cmd := &cobra.Command{
		Use:   "add NAME [flags] [-- COMMAND…]",
		Short: "Declare one agent, and start its jail",
		Long: "Declares an agent beside what is declared already, without a file, and starts its jail. What is not said is as in a file: " +
			"without a template or an image it is made of the default one, without a workspace it is isolated. An agent of that name that is declared " +
			"otherwise stays as it is, unless --replace is given. An agent with only an identity " +
			"is made with `clawjail agent create`.",
		Example: "  clawjail agent add dev-bot --allow example.com -- /bin/sh -c 'while sleep 60; do date; done'\n" +
			"  clawjail agent add archive-bot --workspace ./workspaces/archive --workspace-mode ro",
		Args: arguments(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if at := cmd.ArgsLenAtDash(); at > 1 || at < 0 && len(args) > 1 {
				return usage(cmd, "%s does not take %q; the command of the agent stands behind --", cmd.CommandPath(), args[1])
			} else if at == 0 {
				return usage(cmd, "%s needs a name before --", cmd.CommandPath())
			}
			return p.addAgent(cmd, args[0], args[1:], o)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	p.tenantFlag(cmd, &o.tenant)
	o.flags(cmd)
	o.needs.flags(cmd)
	p.templateFlag(cmd)
	return cmd
}

func (p *program) addAgent(cmd *cobra.Command, name string, command []string, o addOptions) error {
	entry, err := o.entry(cmd, command)
	if err != nil {
		return err
	}
	dir, err := whereItStarts(clawbotsFile)
	if err != nil {
		return err
	}
	c, err := p.client()
	if err != nil {
		return err
	}
	declare := func() (agent.Plan, error) {
		return c.DeclareAgent(cmd.Context(), name, api.DeclareRequest{Tenant: o.tenant, Dir: dir, Replace: o.replace, Agent: entry}, progressTo(cmd.OutOrStdout(), o.asJSON))
	}
	plan, err := declare()
	if canBeMet(err) {
		met, needErr := p.meetEntry(cmd, o, name, dir, entry)
		if needErr != nil {
			return needErr
		}
		if met {
			plan, err = declare()
		}
	}
	if err != nil {
		return err
	}
	if o.asJSON {
		if err := writeJSON(cmd.OutOrStdout(), plan); err != nil {
			return err
		}
	} else if !plan.Changes() {
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), inAll(plan)); err != nil {
			return err
		}
		for _, s := range plan.Steps {
			if len(s.Why) > 0 {
				if err := said(cmd, "%s: %s", s.Name, strings.Join(s.Why, "; ")); err != nil {
					return err
				}
			}
		}
	}
	return unfinished(plan)
}

// meetEntry is meet for one agent, which is in no file.
func (p *program) meetEntry(cmd *cobra.Command, o addOptions, name, dir string, entry map[string]any) (met bool, err error) {
	named := maps.Clone(entry)
	named["name"] = name
	var text bytes.Buffer
	if err := writeJSON(&text, map[string]any{"clawbots": []any{named}}); err != nil {
		return false, fmt.Errorf("write down what is declared: %w", err)
	}
	n := o.needs
	n.source, n.text, n.dir, n.tenant = cmd.CommandPath(), text.Bytes(), dir, o.tenant
	return p.meet(cmd, n)
}

// addOptions are the flags that declare an agent, in the words of clawbots.yml.
type addOptions struct {
	tenant                                         string
	workspace, mode, image, template, restart, ttl string
	memory, tmp, state, browser                    string
	cpu                                            float64
	tasks                                          int
	allow, env, services, servers                  []string
	webhook, unixSockets, builds, replace, asJSON  bool
	needs                                          needs
}

func (o *addOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.workspace, "workspace", "", "`folder` of the host that the agent sees at /workspace; a relative one starts here")
	f.StringVar(&o.mode, "workspace-mode", "", "rw, which is the default, or ro")
	complete(cmd, "workspace-mode", "rw", "ro")
	f.StringVar(&o.template, "template", "", "`template` that its jail is a clone of")
	f.StringVar(&o.image, "image", "", "`image` that its container is made of, instead of a template")
	f.StringArrayVar(&o.allow, "allow", nil, "`host` or request that it may reach, such as example.com or \"GET https://example.com/api/**\"")
	f.StringArrayVar(&o.env, "env", nil, "variable of its environment, as `NAME=VALUE`; no secrets")
	f.StringArrayVar(&o.services, "service", nil, "`name` of a service that it may use; all of its tenant's when there is none")
	f.StringArrayVar(&o.servers, "mcp", nil, "`name` of an MCP server whose tools it is offered")
	f.BoolVar(&o.builds, "exec-tmp", false, "what is in /tmp can be run, as builds of cargo, pip and npm want it")
	f.BoolVar(&o.unixSockets, "unix-sockets", false, "it may use UNIX sockets although it has a workspace; whoever shares the folder can be connected with it")
	f.StringVar(&o.restart, "restart", "", "when its program is started again: always, which is the default, on-failure or never")
	complete(cmd, "restart", "always", "on-failure", "never")
	f.StringVar(&o.ttl, "ttl", "", "how long it may exist, such as 24h; for good when it is left out")
	f.StringVar(&o.memory, "memory", "", "memory of its jail, such as 512MiB")
	f.Float64Var(&o.cpu, "cpu", 0, "processors, such as 0.5")
	f.IntVar(&o.tasks, "tasks", 0, "processes and threads, such as 64")
	f.StringVar(&o.tmp, "tmp", "", "size of /tmp, such as 100MiB")
	f.StringVar(&o.state, "state", "", "the size of /state, such as 1GiB")
	f.StringVar(&o.browser, "browser", "", "what the browsers may reach that it opens: rules are its own, open is the public web as well (default rules)")
	complete(cmd, "browser", string(clawbots.BrowserRules), string(clawbots.BrowserOpen))
	f.BoolVar(&o.webhook, "webhook", false, "it takes requests at port 8000")
	f.BoolVar(&o.replace, "replace", false, "declare it anew when an agent of that name is declared otherwise")
	f.BoolVar(&o.asJSON, "json", false, "print what was done as JSON")
}

// entry is an entry of clawbots.yml. Whether it makes sense is for its reader to say.
func (o addOptions) entry(cmd *cobra.Command, command []string) (map[string]any, error) {
	out, limits := map[string]any{}, map[string]any{}
	for key, text := range map[string]string{
		"workspace": o.workspace, "workspace_mode": o.mode, "image": o.image, "template": o.template, "restart": o.restart, "ttl": o.ttl,
		"browser": o.browser,
	} {
		if text != "" {
			out[key] = text
		}
	}
	for key, all := range map[string][]string{"allow": o.allow, "services": o.services, "mcp": o.servers, "command": command} {
		if len(all) > 0 {
			out[key] = all
		}
	}
	for key, text := range map[string]string{"memory": o.memory, "tmp": o.tmp, "state": o.state} {
		if text != "" {
			limits[key] = text
		}
	}
	if cmd.Flags().Changed("cpu") { // zero is a mistake, and not nothing
		limits["cpu"] = o.cpu
	}
	if cmd.Flags().Changed("tasks") {
		limits["tasks"] = o.tasks
	}
	if len(limits) > 0 {
		out["limits"] = limits
	}
	if o.builds {
		out["tmp"] = clawbots.Exec
	}
	if o.unixSockets {
		out["unix_sockets"] = true
	}
	if o.webhook {
		out["webhook"] = true
	}
	env, err := environmentOf(cmd, o.env)
	if len(env) > 0 {
		out["env"] = env
	}
	return out, err
}

// environmentOf reads NAME=VALUE. Errors have no values in them.
func environmentOf(cmd *cobra.Command, all []string) (map[string]string, error) {
	out := map[string]string{}
	for _, one := range all {
		name, value, ok := strings.Cut(one, "=")
		if !ok || name == "" {
			return nil, usage(cmd, "a variable is not of the form NAME=VALUE")
		}
		if _, twice := out[name]; twice {
			return nil, usage(cmd, "the variable %s is there twice", name)
		}
		out[name] = value
	}
	return out, nil
}
