package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

func newAgentCommand(p *program) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "agent",
		Short: "Keep programs in jails, and give them keys",
		Long: "An agent is a program that uses clawjail with a token. Agents that are declared, in clawbots.yml or with `clawjail agent add`, " +
			"run in jails that are kept; those made with `clawjail agent create` have a token, and run wherever somebody starts them. An agent " +
			"may open sessions, and sees those that it has opened itself. During a rotation it has two tokens.",
	})
	cmd.AddCommand(newAgentSync(p), newAgentAdd(p), newAgentRemove(p), newAgentList(p), newAgentShow(p), newAgentLogs(p), newAgentRestart(p),
		newAgentExec(p), newAgentType(p), newAgentCreate(p), newAgentCompose(p),
		newAgentChange(p, "revoke NAME…", "Revoke agents, and end what is open for them",
			"Revokes agents: none of their tokens is good until `clawjail agent restore`.", (*client.Client).RevokeAgent),
		newAgentRestore(p),
		newAgentToken(p), newAgentEnv(p), newAgentTools(p), newAgentLimits(p))
	return cmd
}

func newAgentRestore(p *program) *cobra.Command {
	cmd := newAgentChange(p, "restore NAME…", "Take the revocation of agents back",
		"Takes the revocation of agents back. Their tokens are good again, unless those have expired or were revoked themselves.",
		(*client.Client).RestoreAgent)
	cmd.Aliases = []string{"unrevoke"}
	return cmd
}

func newAgentToken(p *program) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "token",
		Short: "Rotate, revoke and list the tokens of an agent",
	})
	cmd.AddCommand(newAgentTokens(p), newAgentRotateToken(p), newAgentRevokeToken(p))
	return cmd
}

func newAgentCreate(p *program) *cobra.Command {
	var request api.AgentRequest
	var servers []string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Make an agent, and print its token",
		Long: "Makes an agent. Its first token alone is on standard output, and is never shown again. With --mcp it is offered the tools of MCP servers; " +
			"`clawjail agent limits` changes that.",
		Example: "  clawjail agent create writer --expires 720h > writer.token\n  clawjail agent create writer --mcp files --mcp search > writer.token",
		Args:    arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkLife(cmd, request.Life); err != nil {
				return err
			}
			c, err := p.client()
			if err != nil {
				return err
			}
			if err := knownServers(cmd, c, request.Tenant, servers); err != nil {
				return err
			}
			request.Name = args[0]
			issued, err := c.CreateAgent(cmd.Context(), request)
			if err != nil {
				return err
			}
			if len(servers) > 0 {
				_, err = c.PutSettings(cmd.Context(), op.Whose{Tenant: request.Tenant, Agent: request.Name}, op.SettingsRequest{MCP: servers})
			}
			if err != nil { // it is not what was asked for, and nobody has its token
				return errors.Join(err, c.RevokeAgent(cmd.Context(), request.Tenant, request.Name))
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), issued)
			}
			return showKey(cmd, issued.Key, "the agent "+issued.Agent.Name, issued.ExpiresAt, p.now())
		},
	}
	p.tenantFlag(cmd, &request.Tenant)
	expiresFlag(cmd, &request.Life)
	p.serversFlag(cmd, &servers)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the token and the agent as JSON")
	return cmd
}

// newAgentChange makes a command that does one thing to agents.
func newAgentChange(p *program, use, short, long string,
	do func(c *client.Client, ctx context.Context, tenant, name string) error,
) *cobra.Command {
	var tenant string
	cmd := &cobra.Command{
		Use:               use,
		Short:             short,
		Long:              long,
		Args:              arguments(1, -1),
		ValidArgsFunction: p.completeAll(agentNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			return each(cmd, args, func(name string) error { return do(c, cmd.Context(), tenant, name) })
		},
	}
	p.tenantFlag(cmd, &tenant)
	return cmd
}

func newAgentTokens(p *program) *cobra.Command {
	var tenant string
	var asJSON bool
	cmd := &cobra.Command{
		Use:               "ls NAME",
		Aliases:           []string{"list"},
		Short:             "List the tokens of an agent, without what they are",
		Args:              arguments(1, 1),
		ValidArgsFunction: p.completeFirst(agentNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			tokens, err := c.Tokens(cmd.Context(), tenant, args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), tokens)
			}
			return table(cmd.OutOrStdout(), tokenRows(tokens, p.now()))
		},
	}
	p.tenantFlag(cmd, &tenant)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func tokenRows(tokens []api.Token, now time.Time) [][]string {
	rows := [][]string{{"ID", "TOKEN", "STATE", "MADE", "EXPIRES", "USED"}}
	for _, t := range tokens {
		rows = append(rows, []string{t.ID, t.Hint + "…", keyState(t.RevokedAt, t.ExpiresAt, now), when(t.CreatedAt, now),
			until(t.ExpiresAt, now), when(t.UsedAt, now)})
	}
	return rows
}

func newAgentRotateToken(p *program) *cobra.Command {
	var tenant string
	var request api.RotateRequest
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "rotate NAME",
		Short: "Give an agent a new token, and let the old ones end",
		Long: "Gives an agent a new token, which alone is on standard output and is never shown again. An agent in a jail that is kept " +
			"finds it at /run/hermit/token, without a restart, and nobody is shown it. Its old tokens are good " +
			"for as long as --overlap says, so that the agent has time to change; 0s ends them, and what is open with them, " +
			"now.",
		Example:           "  clawjail agent token rotate writer --overlap 10m > writer.token",
		Args:              arguments(1, 1),
		ValidArgsFunction: p.completeFirst(agentNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkLife(cmd, request.Life); err != nil {
				return err
			}
			if err := duration(cmd, "overlap", request.Overlap); err != nil {
				return err
			}
			c, err := p.client()
			if err != nil {
				return err
			}
			issued, err := c.RotateToken(cmd.Context(), tenant, args[0], request)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), issued)
			}
			if issued.Delivered {
				_, err := fmt.Fprintf(cmd.ErrOrStderr(), "the new token is in the jail of %s, at /run/hermit/token; nobody is shown it\n", printable(args[0]))
				return err
			}
			return showKey(cmd, issued.Key, "the agent "+args[0], issued.Token.ExpiresAt, p.now())
		},
	}
	p.tenantFlag(cmd, &tenant)
	expiresFlag(cmd, &request.Life)
	cmd.Flags().StringVar(&request.Overlap, "overlap", "", "how long the old tokens are still good (default 10m)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the token as JSON")
	return cmd
}

func newAgentRevokeToken(p *program) *cobra.Command {
	var tenant string
	cmd := &cobra.Command{
		Use:               "revoke NAME ID",
		Short:             "Revoke one token of an agent, and end what is open with it",
		Args:              arguments(2, 2),
		ValidArgsFunction: p.completeTokens(&tenant),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			return c.RevokeToken(cmd.Context(), tenant, args[0], args[1])
		},
	}
	p.tenantFlag(cmd, &tenant)
	return cmd
}

// completeTokens completes an agent, and then one of its tokens.
func (p *program) completeTokens(tenant *string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) != 1 {
			return p.completeFirst(agentNames)(cmd, args, begun)
		}
		return p.completer(func(ctx context.Context, c *client.Client, _ string) ([]string, error) {
			tokens, err := c.Tokens(ctx, *tenant, args[0])
			return namesOf(tokens, err, func(t api.Token) (string, string) { return t.ID, t.Hint + "…" })
		})(cmd, args, begun)
	}
}

func agentNames(ctx context.Context, c *client.Client, tenant string) ([]string, error) {
	agents, err := c.Agents(ctx, tenant)
	return namesOf(agents, err, func(a api.Agent) (string, string) { return a.Name, a.Tenant })
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
func findAgent(ctx context.Context, c *client.Client, tenant, name string) (api.Agent, error) {
	tenant, err := tenantMeant(ctx, c, tenant)
	if err != nil {
		return api.Agent{}, err
	}
	agents, err := c.Agents(ctx, tenant)
	if err != nil {
		return api.Agent{}, err
	}
	for _, a := range agents {
		if a.Name == name {
			return a, nil
		}
	}
	return api.Agent{}, problem.New(problem.NotFound, "list them: clawjail agent ls", "there is no agent %q", name)
}
