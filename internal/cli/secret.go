package cli

import (
	"cmp"
	"context"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/vault"
)

func newSecretCommand(p *program) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "secret",
		Short: "Store the API credentials of services",
		Long: "A secret is the API credential of a service, for all agents of a tenant or for one of them. It is stored " +
			"encrypted, and nothing ever shows its value.",
	})
	cmd.AddCommand(newSecretSet(p), described(p, op.ListSecrets()), described(p, op.RemoveSecret()))
	return cmd
}

func newSecretSet(p *program) *cobra.Command {
	var name vault.SecretName
	var origins []string
	cmd := &cobra.Command{
		Use:   "set SERVICE",
		Short: "Store a secret, or replace it",
		Long: "Stores the credential of a service. The value comes from standard input; on a terminal it is typed, and not " +
			"shown. A newline at its end is not part of it. The value cannot be given on the command line, which other users " +
			"of the machine can read.\n\n" +
			"A secret goes to the origins that it is bound to, and nowhere else. Without --origin, they are those that it had, or the " +
			"only one that services, providers or MCP servers name it for, now or at its first use.",
		Example: "  clawjail secret set tracker --origin https://api.example.com < key.txt\n  clawjail secret set openai --agent writer",
		Args:    arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			name.Service = args[0]
			if name.Agent != "" { // by its id, because a name may be given to another one
				agent, err := findAgent(cmd.Context(), c, name.Tenant, name.Agent)
				if err != nil {
					return err
				}
				name.Agent = agent.ID
			}
			data, err := readCredential(cmd, "value of "+printable(args[0]))
			if err != nil {
				return err
			}
			value := secret.Own(data)
			defer value.Wipe()
			return c.PutSecret(cmd.Context(), name, value, origins...)
		},
	}
	p.tenantFlag(cmd, &name.Tenant)
	cmd.Flags().StringVar(&name.Agent, "agent", "", "`name` of the agent whose secret it is; without it, it is for all agents of the tenant")
	p.completeFlag(cmd, "agent", agentNames)
	cmd.Flags().StringArrayVar(&origins, "origin", nil, "`origin` that it may go to, such as https://api.example.com, or jail for MCP servers")
	return cmd
}

func serviceNames(ctx context.Context, c *client.Client, tenant string) ([]string, error) {
	all, err := client.Call(ctx, c, op.ListSecrets(), op.SecretsListed{OfTenant: op.OfTenant{Tenant: tenant}})
	return namesOf(all.Secrets, err, func(s op.Secret) (string, string) { return s.Service, cmp.Or(s.AgentName, s.Agent) })
}
