package cli

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/op"
)

func newMCPServerCommand(p *program) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "mcp-server",
		Short: "Run MCP servers of others in jails, and offer their tools to agents",
		Long: "An MCP server is a program with tools. It is started in a jail of its own when an agent calls one of them, for that agent alone, and ended when it was idle " +
			"for a while. Agents that name it (mcp: in clawbots.yml) find its tools at /mcp, as NAME__TOOL. Servers are declared in the " +
			"configuration (mcp_servers), or added here.",
	})
	cmd.AddCommand(newMCPServerAdd(p), described(p, op.ListMCPServers()), described(p, op.TestMCPServer()), described(p, op.RemoveMCPServer()))
	return cmd
}

func newMCPServerAdd(p *program) *cobra.Command {
	var r op.MCPServerRequest
	var env, secrets, tools, mounts []string
	var noTools, asJSON bool
	var values *given
	var of npmServer
	cmd := &cobra.Command{
		Use:   "add NAME [flags] -- COMMAND…",
		Short: "Add an MCP server, or replace the one of the same name",
		Long: "Adds an MCP server, or replaces the one of the same name that was added before. The command is a program in the template, by its " +
			"absolute path. Without --network gateway there is nothing that the server can reach. A secret is one of the vault: --secret " +
			"API_KEY=github puts it into a file, and API_KEY_FILE in the server's environment has its path; --secret env:API_KEY=github puts " +
			"the secret itself into its environment, for programs that read no files.\n\nWith --npm, as root on the host, the program is one of a package of npm, and " +
			"words behind -- are its arguments. A template with that version of the package, all that it needs, and the newest Node that it wants is built, or used " +
			"again. npm of the host installs it, from the registry that npm is configured for; nothing is fetched when the server runs. A package with install scripts is " +
			"refused, unless --install-scripts says skip or run: as the jail's user, in the new template, without a network.",
		Example: "  clawjail mcp-server add files --mount /srv/docs:/mnt/docs:ro -- /usr/bin/mcp-server-filesystem /mnt/docs\n" +
			"  clawjail mcp-server add github --network gateway --allow api.github.com --secret TOKEN=github -- /usr/bin/github-mcp\n" +
			"  sudo clawjail mcp-server add everything --npm @modelcontextprotocol/server-everything",
		Args: func(cmd *cobra.Command, args []string) error {
			if at := cmd.ArgsLenAtDash(); of.what != "" && len(args) > 0 && (at == 1 || at < 0 && len(args) == 1) {
				return notEmpty(cmd, args[:1])
			}
			if at := cmd.ArgsLenAtDash(); at != 1 || len(args) < 2 {
				return usage(cmd, "write the name, then --, then the command: clawjail mcp-server add files -- /usr/bin/server")
			}
			return notEmpty(cmd, args[:1])
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			r.Name, r.Command = args[0], args[1:]
			if err := values.check(nil, ""); err != nil {
				return err
			}
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
			c, err := p.client()
			if err != nil {
				return err
			}
			keep, err := p.fromNPM(cmd, of, &r)
			if err != nil {
				return err
			}
			made, err := client.Call(cmd.Context(), c, op.PutMCPServer(), op.NewMCPServer{Body: op.With(r)})
			if leftErr := keep(err == nil); err != nil || leftErr != nil {
				return errors.Join(leftErr, err)
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), made)
			}
			did := "added"
			if made.Replaced {
				did = "replaced"
			}
			if made.Problem != "" {
				_, err = fmt.Fprintf(cmd.ErrOrStderr(), "warning: it cannot be started yet: %s\n", printable(made.Problem))
			}
			return errors.Join(err, said(cmd, "%s %s; try it: clawjail mcp-server test %s", did, made.Name, made.Name))
		},
	}
	values = &given{p: p, cmd: cmd}
	values.add(reflect.ValueOf(&r).Elem())
	p.templateFlag(cmd)
	of.flags(cmd)
	f := cmd.Flags()
	f.StringArrayVar(&env, "env", nil, "variable of its environment, as `NAME=VALUE`")
	f.StringArrayVar(&secrets, "secret", nil, "secret of the vault, as `[env:]NAME=SECRET`")
	f.StringArrayVar(&tools, "tool", nil, "`name` or pattern of tools that are offered, such as 'read_*' (default all)")
	f.BoolVar(&noTools, "no-tools", false, "offer none of its tools")
	f.StringArrayVar(&mounts, "mount", nil, "folder of the host, beneath workspace_roots, as `SOURCE:TARGET[:ro]`")
	f.BoolVar(&asJSON, "json", false, "print the server as JSON")
	return cmd
}

// mcpServerWords reads the flags that have a form of their own.
func mcpServerWords(cmd *cobra.Command, r *op.MCPServerRequest, env, secrets, mounts []string) error {
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
			r.Secrets = map[string]op.MCPServerSecret{}
		}
		r.Secrets[name] = op.MCPServerSecret{Secret: secret, As: as}
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

func mcpServerNames(ctx context.Context, c *client.Client, tenant string) ([]string, error) {
	all, err := client.Call(ctx, c, op.ListMCPServers(), op.OfTenant{Tenant: tenant})
	return namesOf(all.Servers, err, func(s op.MCPServer) (string, string) { return s.Name, string(s.State) })
}
