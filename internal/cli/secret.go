package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/vault"
)

func newSecretCommand(p *program) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "secret",
		Short: "Store the API credentials of services",
		Long: "A secret is the API credential of a service, for all agents of a tenant or for one of them. It is stored " +
			"encrypted, and nothing ever shows its value.",
	})
	cmd.AddCommand(newSecretSet(p), newSecretList(p), newSecretRemove(p))
	return cmd
}

// secretFlags say which secret it is.
type secretFlags struct{ tenant, agent string }

func (s *secretFlags) add(p *program, cmd *cobra.Command) {
	p.tenantFlag(cmd, &s.tenant)
	cmd.Flags().StringVar(&s.agent, "agent", "", "`name` of the agent whose secret it is; without it, it is for all agents of the tenant")
	p.completeFlag(cmd, "agent", agentNames)
}

// name is how the control plane knows the secret: an agent by its id, because a name may be given to another one.
func (s secretFlags) name(ctx context.Context, c *client.Client, service string) (vault.SecretName, error) {
	out := vault.SecretName{Tenant: s.tenant, Service: service}
	if s.agent == "" {
		return out, nil
	}
	agent, err := findAgent(ctx, c, s.tenant, s.agent)
	out.Agent = agent.ID
	return out, err
}

func newSecretSet(p *program) *cobra.Command {
	var which secretFlags
	var origins []string
	cmd := &cobra.Command{
		Use:   "set SERVICE",
		Short: "Store a secret, or replace it",
		Long: "Stores the credential of a service. The value comes from standard input; on a terminal it is typed, and not " +
			"shown. The end of a line behind it is not part of it. It cannot be given on the command line, which other users " +
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
			name, err := which.name(cmd.Context(), c, args[0])
			if err != nil {
				return err
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
	which.add(p, cmd)
	cmd.Flags().StringArrayVar(&origins, "origin", nil, "`origin` that it may go to, such as https://api.example.com, or jail for MCP servers; may be repeated")
	return cmd
}

func newSecretList(p *program) *cobra.Command {
	var tenant string
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List secrets, without their values",
		Args:    arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			secrets, err := c.Secrets(cmd.Context(), tenant)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), secrets)
			}
			agents := map[string]string{} // id → name
			for _, s := range secrets {
				if s.Agent == "" {
					continue
				}
				known, err := c.Agents(cmd.Context(), tenant)
				if err != nil {
					return err
				}
				for _, a := range known {
					agents[a.ID] = a.Name
				}
				break
			}
			return table(cmd.OutOrStdout(), secretRows(secrets, agents, p.now()))
		},
	}
	p.tenantFlag(cmd, &tenant)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func secretRows(secrets []vault.Secret, agents map[string]string, now time.Time) [][]string {
	rows := [][]string{{"SERVICE", "TENANT", "AGENT", "BOUND TO", "STORED", "USED"}}
	for _, s := range secrets {
		agent := agents[s.Agent]
		if agent == "" {
			agent = s.Agent
		}
		rows = append(rows, []string{printable(s.Service), s.Tenant, dash(printable(agent)), dash(boundTo(s)), when(s.UpdatedAt, now), when(s.UsedAt, now)})
	}
	return manyTenants(rows, 1)
}

func boundTo(s vault.Secret) string {
	var out []string
	for _, to := range s.BoundTo {
		out = append(out, printable(string(to)))
	}
	return strings.Join(out, " ")
}

func newSecretRemove(p *program) *cobra.Command {
	var which secretFlags
	cmd := &cobra.Command{
		Use:               "rm SERVICE…",
		Aliases:           []string{"remove"},
		Short:             "Remove secrets",
		Args:              arguments(1, -1),
		ValidArgsFunction: p.completeAll(serviceNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			return each(cmd, args, func(service string) error {
				name, err := which.name(cmd.Context(), c, service)
				if err != nil {
					return err
				}
				return c.DeleteSecret(cmd.Context(), name)
			})
		},
	}
	which.add(p, cmd)
	return cmd
}

func serviceNames(ctx context.Context, c *client.Client, tenant string) ([]string, error) {
	secrets, err := c.Secrets(ctx, tenant)
	return namesOf(secrets, err, func(s vault.Secret) (string, string) { return s.Service, strings.TrimSpace(s.Agent) })
}
