package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/toolserver"
)

func newMCPServerCommand(p *program) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "mcp-server",
		Short: "Run MCP servers of others in jails, and offer their tools to agents",
		Long: "An MCP server is a program with tools. It is started in a jail of its own when an agent calls one of them, for that agent alone, and ended when it has not " +
			"for a while. Agents that name it (mcp: in clawbots.yml) find its tools at /mcp, as NAME__TOOL. Servers are declared in the " +
			"configuration (mcp_servers), or added here.",
	})
	cmd.AddCommand(newMCPServerAdd(p), newMCPServerList(p), newMCPServerTest(p), newMCPServerRemove(p))
	return cmd
}

func newMCPServerAdd(p *program) *cobra.Command {
	var r api.MCPServerRequest
	var env, secrets, tools, mounts []string
	var noTools, resources, prompts, asJSON bool
	var of npmServer
	cmd := &cobra.Command{
		Use:   "add NAME [flags] -- COMMAND…",
		Short: "Add an MCP server, or replace the one of the same name",
		Long: "Adds an MCP server, or replaces the one of the same name that was added before. The command is a program in the template, by its " +
			"absolute path. Without --network gateway there is nothing that the server can reach. A secret is one of the vault: --secret " +
			"API_KEY=github puts it into a file, and API_KEY_FILE in the server's environment has its path; --secret env:API_KEY=github puts " +
			"the secret itself into its environment, for programs that read no files.\n\nWith --npm, as root on the host, the program is one of a package of npm, and " +
			"what stands behind -- are its arguments. A template with that version of the package, all that it needs, and the newest Node that it wants is built, or used " +
			"again. npm of the host installs it, from the registry that npm is configured for; nothing is fetched when the server runs. Scripts that packages want to run " +
			"when they are installed are a reason to refuse, unless --install-scripts says skip or run: as the jail's user, in the new template, without a network.",
		Example: "  clawjail mcp-server add files --mount /srv/docs:/mnt/docs:ro -- /usr/bin/mcp-server-filesystem /mnt/docs\n" +
			"  clawjail mcp-server add github --network gateway --allow api.github.com --secret TOKEN=github -- /usr/bin/github-mcp\n" +
			"  sudo clawjail mcp-server add everything --npm @modelcontextprotocol/server-everything",
		Args: func(cmd *cobra.Command, args []string) error {
			if at := cmd.ArgsLenAtDash(); of.what != "" && len(args) > 0 && (at == 1 || at < 0 && len(args) == 1) {
				return nil
			}
			if at := cmd.ArgsLenAtDash(); at != 1 || len(args) < 2 {
				return usage(cmd, "write the name, then --, then the command: clawjail mcp-server add files -- /usr/bin/server")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			r.Name, r.Command = args[0], args[1:]
			if err := mcpServerWords(cmd, &r, env, secrets, mounts); err != nil {
				return err
			}
			switch {
			case noTools && len(tools) > 0:
				return usage(cmd, "--tool and --no-tools exclude each other")
			case noTools:
				r.Tools = []string{}
			case len(tools) > 0:
				r.Tools = tools
			}
			if cmd.Flags().Changed("resources") {
				r.Resources = &resources
			}
			if cmd.Flags().Changed("prompts") {
				r.Prompts = &prompts
			}
			c, err := p.client()
			if err != nil {
				return err
			}
			keep, err := p.fromNPM(cmd, of, &r)
			if err != nil {
				return err
			}
			made, err := c.PutMCPServer(cmd.Context(), r)
			if leftErr := keep(err == nil); err != nil || leftErr != nil {
				return errors.Join(leftErr, err)
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), made)
			}
			return said(cmd, "added %s; try it: clawjail mcp-server test %s", made.Name, made.Name)
		},
	}
	f := cmd.Flags()
	f.StringVar(&r.Place, "template", "", "`template` of its jail (default clawbot)")
	p.templateFlag(cmd)
	of.flags(cmd)
	f.StringVar(&r.Agent, "agent", "", "run it in the jail of this `agent` instead of one of its own")
	f.StringSliceVar(&r.Tenants, "tenant", nil, "`tenant` that may use it, * for all; may be repeated (default default)")
	f.StringArrayVar(&env, "env", nil, "variable of its environment, as `NAME=VALUE`; may be repeated")
	f.StringArrayVar(&secrets, "secret", nil, "secret of the vault, as `[env:]NAME=SECRET`; may be repeated")
	f.StringArrayVar(&tools, "tool", nil, "`name` or pattern of tools that are offered, such as 'read_*'; may be repeated (default all)")
	f.BoolVar(&noTools, "no-tools", false, "offer none of its tools")
	f.BoolVar(&resources, "resources", false, "offer its resources (default where neither --tool nor --no-tools is given)")
	f.BoolVar(&prompts, "prompts", false, "offer its prompts (default where neither --tool nor --no-tools is given)")
	f.StringVar(&r.Network, "network", "", "none, or gateway to let it reach the hosts of --allow (default none)")
	f.StringArrayVar(&r.Allow, "allow", nil, "`host` that it may reach: example.com, *.example.com, example.com:8443; may be repeated")
	f.StringArrayVar(&mounts, "mount", nil, "folder of the host, beneath workspace_roots, as `SOURCE:TARGET[:ro]`; may be repeated")
	f.StringVar(&r.Idle, "idle", "", "how long it stays when nobody calls it, such as 1h (default 10m)")
	f.StringVar(&r.Answer, "answer", "", "how large an answer may be, such as 32MiB (default 16MiB)")
	f.StringVar(&r.Silence, "silence", "", "how long a call may say nothing, such as 10m (default 1m)")
	f.BoolVar(&r.Shared, "shared", false, "one instance for all of a tenant, with whatever it keeps in mind (default one for each caller)")
	f.StringVar(&r.Limits.Memory, "memory", "", "`size` of its memory, such as 256MiB")
	f.Float64Var(&r.Limits.CPU, "cpu", 0, "processors, such as 0.5")
	f.IntVar(&r.Limits.Tasks, "tasks", 0, "processes and threads")
	f.StringVar(&r.Limits.Tmp, "tmp", "", "`size` of /tmp and of its home directory")
	f.BoolVar(&asJSON, "json", false, "print the server as JSON")
	complete(cmd, "network", string(config.ServerNetworkNone), string(config.ServerNetworkGateway))
	p.completeFlag(cmd, "tenant", tenantNames)
	return cmd
}

// mcpServerWords reads the flags that have a form of their own.
func mcpServerWords(cmd *cobra.Command, r *api.MCPServerRequest, env, secrets, mounts []string) error {
	for _, text := range env {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return usage(cmd, "--env needs NAME=VALUE") // the value is not shown: it may be a secret after all
		}
		if r.Env == nil {
			r.Env = map[string]string{}
		}
		r.Env[name] = value
	}
	for _, text := range secrets {
		as := "file"
		if rest, found := strings.CutPrefix(text, "env:"); found {
			as, text = "env", rest
		}
		name, secret, ok := strings.Cut(text, "=")
		if !ok || name == "" || secret == "" {
			return usage(cmd, "--secret needs NAME=SECRET, with the name of a secret of the vault")
		}
		if r.Secrets == nil {
			r.Secrets = map[string]api.MCPServerSecret{}
		}
		r.Secrets[name] = api.MCPServerSecret{Secret: secret, As: as}
	}
	for _, text := range mounts {
		m, ok := mountOf(text)
		if !ok {
			return usage(cmd, "--mount %q: write SOURCE:TARGET or SOURCE:TARGET:ro, both absolute", text)
		}
		r.Mounts = append(r.Mounts, config.ServerMount{Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly})
	}
	return nil
}

func newMCPServerList(p *program) *cobra.Command {
	return listing(p, "List MCP servers", "Lists the MCP servers that a tenant may use, and what they do. TOOLS is - until they have been asked for. FOR says for whom one runs.",
		(*client.Client).MCPServers, mcpServerRows)
}

func mcpServerRows(all []api.MCPServer, _ time.Time) [][]string {
	rows := [][]string{{"NAME", "STATE", "FOR", "TOOLS", "JAIL", "NETWORK", "SOURCE", "COMMAND", "PROBLEM"}}
	for _, s := range all {
		tools := "-"
		if s.Tools >= 0 {
			tools = strconv.Itoa(s.Tools)
		}
		in := s.Template
		if s.Agent != "" {
			in = "agent " + s.Agent
		}
		network := s.Network
		if len(s.Allow) > 0 {
			network += ": " + strings.Join(s.Allow, ", ")
		}
		rows = append(rows, []string{printable(s.Name), string(s.State), dash(printable(texts.Fit(mcpServerOwners(s), 60))), tools, printable(in), dash(printable(network)), string(s.Source),
			printable(texts.Fit(strings.Join(s.Command, " "), 60)), dash(printable(texts.Fit(s.Problem, 80)))})
	}
	return rows
}

// mcpServerOwners is for whom a server runs: names of agents, and others as the audit log names them.
func mcpServerOwners(s api.MCPServer) string {
	var out []string
	for _, i := range s.Instances {
		who := cmp.Or(i.Name, i.Owner, "all of "+i.Tenant)
		if i.State != toolserver.StateRunning {
			who += " (" + string(i.State) + ")"
		}
		out = append(out, who)
	}
	if len(out) < 2 {
		return strings.Join(out, "")
	}
	return strconv.Itoa(len(out)) + ": " + strings.Join(out, ", ")
}

func newMCPServerTest(p *program) *cobra.Command {
	var tenant string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "test NAME",
		Short: "Start an MCP server, ask for what it offers, and end it",
		Long: "Starts an MCP server in a jail of its own beside those that run, says hello, asks for its tools, resources and prompts, and ends it. It prints how long that " +
			"took, and what the server printed. When something went wrong it fails.",
		Args:              arguments(1, 1),
		ValidArgsFunction: p.completeAll(mcpServerNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			r, err := c.TestMCPServer(cmd.Context(), tenant, args[0])
			if err != nil {
				return err
			}
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), r)
			} else {
				err = mcpServerReport(cmd, r)
			}
			if err != nil || r.OK {
				return err
			}
			return problem.New(r.Code, r.Hint, "%s", r.Problem)
		},
	}
	p.tenantFlag(cmd, &tenant)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func mcpServerReport(cmd *cobra.Command, r api.MCPServerReport) error {
	out := cmd.OutOrStdout()
	var b strings.Builder
	if r.Protocol != "" {
		fmt.Fprintf(&b, "%s %s, protocol %s\n", printable(r.Title), printable(r.Version), printable(r.Protocol))
		fmt.Fprintf(&b, "jail %.0f ms, initialize %.0f ms, lists %.0f ms\n", r.JailMS, r.InitializeMS, r.ListMS)
	}
	if r.Left > 0 {
		fmt.Fprintf(&b, "%d tools are not offered\n", r.Left)
	}
	if r.Stderr != "" {
		b.WriteString("it printed:\n")
		for line := range strings.Lines(r.Stderr) {
			b.WriteString("  " + printable(strings.TrimRight(line, "\n")) + "\n")
		}
	}
	if _, err := fmt.Fprint(out, b.String()); err != nil {
		return err
	}
	rows := [][]string{{"OFFERED", "NAME", "DESCRIPTION"}}
	add := func(kind, name, description string) {
		first, _, _ := strings.Cut(description, "\n")
		rows = append(rows, []string{kind, printable(name), dash(printable(texts.Fit(first, 100)))})
	}
	for _, t := range r.Tools {
		add("tool", t.Name, t.Description)
	}
	for _, one := range r.Resources {
		add("resource", one.URI, cmp.Or(one.Description, one.Name))
	}
	for _, prompt := range r.Prompts {
		add("prompt", prompt.Name, prompt.Description)
	}
	if len(rows) == 1 {
		return nil
	}
	return table(out, rows)
}

func newMCPServerRemove(p *program) *cobra.Command {
	return &cobra.Command{
		Use:               "rm NAME…",
		Aliases:           []string{"remove"},
		Short:             "Remove MCP servers that were added",
		Long:              "Removes MCP servers that were added, and ends them. Those of the configuration are removed there.",
		Args:              arguments(1, -1),
		ValidArgsFunction: p.completeAll(mcpServerNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			return each(cmd, args, func(name string) error { return c.RemoveMCPServer(cmd.Context(), name) })
		},
	}
}

func mcpServerNames(ctx context.Context, c *client.Client, tenant string) ([]string, error) {
	all, err := c.MCPServers(ctx, tenant)
	return namesOf(all, err, func(s api.MCPServer) (string, string) { return s.Name, string(s.State) })
}
