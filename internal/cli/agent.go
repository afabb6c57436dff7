package cli

import (
	"cmp"
	"context"
	"errors"
	"reflect"
	"strings"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

func newAgentCommand(p *program) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "agent",
		Short: "Run agents in jails, and give them keys",
		Long: "An agent is a program that uses clawjail with a token. Agents that are declared, in clawbots.yml or with `clawjail agent add`, " +
			"run in jails that clawjail keeps running; those made with `clawjail agent create` have a token, and run wherever they are started. An agent " +
			"may open sessions, and sees those that it has opened itself. During a rotation it has two tokens.",
	})
	cmd.AddCommand(newAgentSync(p), newAgentAdd(p), newAgentRemove(p), described(p, op.ListAgents()), described(p, op.ShowAgent()), newAgentLogs(p), described(p, op.RestartAgent()),
		newAgentExec(p), described(p, op.ListProcesses()), described(p, op.EndProcess()), newAgentType(p), newAgentCreate(p), newAgentCompose(p),
		described(p, op.RevokeAgent()), described(p, op.RestoreAgent()),
		newAgentToken(p), newAgentEnv(p), newAgentTools(p), newAgentLimits(p))
	return cmd
}

func newAgentToken(p *program) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "token",
		Short: "Rotate, revoke and list the tokens of an agent",
	})
	cmd.AddCommand(described(p, op.ListTokens()), described(p, op.RotateToken()), described(p, op.RevokeToken()))
	return cmd
}

func newAgentCreate(p *program) *cobra.Command {
	var request op.AgentRequest
	var servers []string
	var asJSON bool
	values := &given{p: p}
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Make an agent, and print its token",
		Long: "Makes an agent. Its first token alone is on standard output, and is never shown again. With --mcp it is offered the tools of MCP servers; " +
			"`clawjail agent limits` changes that.",
		Example: "  clawjail agent create writer --expires 30d -o writer.token\n  clawjail agent create writer --mcp files --mcp search -o writer.token",
		Args:    arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := values.check(args, ""); err != nil {
				return err
			}
			c, err := p.client()
			if err != nil {
				return err
			}
			if err := knownServers(cmd, c, request.Tenant, servers); err != nil {
				return err
			}
			values.take(args)
			issued, err := client.Call(cmd.Context(), c, op.CreateAgent(), op.NewAgent{Body: op.With(request)})
			if err != nil {
				return err
			}
			if len(servers) > 0 {
				_, err = c.PutSettings(cmd.Context(), op.Whose{Tenant: request.Tenant, Agent: request.Name}, op.SettingsRequest{MCP: servers})
			}
			if err != nil { // it is not what was asked for, and nobody has its token
				return errors.Join(err, client.Do(cmd.Context(), c, op.RevokeAgent(), op.OneAgent{Name: request.Name, InTenant: op.InTenant{Tenant: request.Tenant}}))
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), issued)
			}
			return p.show(cmd, op.CreateAgent().View(issued))
		},
	}
	values.cmd = cmd
	values.add(reflect.ValueOf(&request).Elem())
	p.serversFlag(cmd, &servers)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the token and the agent as JSON")
	p.keyFile(cmd)
	return cmd
}

func agentTokenIDs(agent string) names {
	return func(ctx context.Context, c *client.Client, tenant string) ([]string, error) {
		all, err := client.Call(ctx, c, op.ListTokens(), op.OneAgent{Name: agent, InTenant: op.InTenant{Tenant: tenant}})
		return namesOf(all.Tokens, err, func(t op.Token) (string, string) { return t.ID, t.Hint + "…" })
	}
}

func sessionTokenIDs(session string) names {
	return func(ctx context.Context, c *client.Client, _ string) ([]string, error) {
		all, err := client.Call(ctx, c, op.ListSessionTokens(), op.SessionNamed{ID: session})
		return namesOf(all.Tokens, err, func(t op.SessionTokenInfo) (string, string) { return t.ID, string(t.Scope) })
	}
}

func processIDs(agent string) names {
	return func(ctx context.Context, c *client.Client, tenant string) ([]string, error) {
		all, err := client.Call(ctx, c, op.ListProcesses(), op.OneAgent{Name: agent, InTenant: op.InTenant{Tenant: tenant}})
		return namesOf(all.Processes, err, func(p op.Process) (string, string) { return p.ID, strings.Join(p.Argv, " ") })
	}
}

func agentNames(ctx context.Context, c *client.Client, tenant string) ([]string, error) {
	all, err := client.Call(ctx, c, op.ListAgents(), op.OfTenant{Tenant: tenant})
	return namesOf(all.Agents, err, func(a op.Agent) (string, string) { return a.Name, a.Tenant })
}

// tenantMeant is the tenant that was named or, where none was, the one that the control plane would take.
func tenantMeant(ctx context.Context, c *client.Client, tenant string) (string, error) {
	if tenant != "" {
		return tenant, nil
	}
	me, err := client.Call(ctx, c, op.WhoAmI(), op.None{})
	return cmp.Or(me.Tenant, store.DefaultTenant), err
}

// findAgent finds an agent by its name.
func findAgent(ctx context.Context, c *client.Client, tenant, name string) (op.Agent, error) {
	tenant, err := tenantMeant(ctx, c, tenant)
	if err != nil {
		return op.Agent{}, err
	}
	all, err := client.Call(ctx, c, op.ListAgents(), op.OfTenant{Tenant: tenant})
	if err != nil {
		return op.Agent{}, err
	}
	for _, a := range all.Agents {
		if a.Name == name {
			return a, nil
		}
	}
	return op.Agent{}, problem.New(problem.NotFound, "list them: clawjail agent ls", "there is no agent %q", name)
}
