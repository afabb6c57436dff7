package op

import (
	"cmp"
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/vault"
)

// Secret is a secret as it is answered. Its value is in the vault alone.
type Secret struct {
	vault.Secret
	AgentName string `json:"agent_name,omitempty"`
}

// Secrets is the answer to a listing. No value is in it.
type Secrets struct {
	Secrets []Secret `json:"secrets,omitzero" nullable:"false"`
	Pearls  []Pearl  `json:"pearls,omitzero" nullable:"false" doc:"instead of secrets, where crabId was sent"`
}

// Pearl is a secret under its older name, without its value.
type Pearl struct {
	ID        string    `json:"id"`
	CrabID    string    `json:"crabId"`
	Service   string    `json:"service"`
	Label     *string   `json:"label" doc:"always null"`
	CreatedAt time.Time `json:"createdAt"`
	UpdatedAt time.Time `json:"updatedAt"`
}

// PearlOf is a secret under its older name.
func PearlOf(s vault.Secret) Pearl {
	return Pearl{ID: s.ID, CrabID: s.Agent, Service: s.Service, CreatedAt: s.CreatedAt, UpdatedAt: s.UpdatedAt}
}

type (
	// SecretsListed says which secrets are listed.
	SecretsListed struct {
		OfTenant
		CrabID string `query:"crabId" maxLength:"64" doc:"alias: of the agent with this id only, answered as pearls"`
	}

	// SecretNamed names a secret.
	SecretNamed struct {
		Service string `path:"service" maxLength:"64" arg:"1" complete:"secrets"`
		InTenant
		Agent string `query:"agent" maxLength:"64" doc:"the name or the id of the agent whose it is" flag:"agent" value:"name" usage:"name of the agent whose secret it is; without it, it is for all agents of the tenant" complete:"agents"`
	}
)

// ListSecrets lists secrets, without their values.
func ListSecrets() Op[SecretsListed, Secrets] {
	return Op[SecretsListed, Secrets]{Method: http.MethodGet, Path: "/v1/secrets", ID: "list-secrets", Summary: "List secrets, without values", Right: identity.SecretList,
		Command: Command{Use: "ls", Aliases: []string{"list"}, Short: "List secrets, without their values"},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in SecretsListed) (Secrets, error) {
			all, err := named(ctx, s, by, in.OfTenant, s.Credentials.Secrets, func(one vault.Secret, names map[string]string) Secret { return Secret{one, names[one.Agent]} })
			if in.CrabID == "" {
				return Secrets{Secrets: all}, err
			}
			out := Secrets{Pearls: []Pearl{}}
			for _, one := range all {
				if one.Agent == in.CrabID {
					out.Pearls = append(out.Pearls, PearlOf(one.Secret))
				}
			}
			return out, err
		},
		View: func(all Secrets) []Block {
			out := table(all.Secrets, []any{"SERVICE", "TENANT", "AGENT", "BOUND TO", "STORED", "USED"}, func(s Secret) []any {
				bound := listOf(s.BoundTo, func(to vault.Destination) string { return string(to) })
				return []any{s.Service, s.Tenant, cmp.Or(s.AgentName, s.Agent), strings.Join(bound, " "), s.UpdatedAt, s.UsedAt}
			})
			out.Folds = 2
			return []Block{out}
		}}
}

// RemoveSecret removes a secret; one that is named by its id, too.
func RemoveSecret() Op[SecretNamed, None] {
	return Op[SecretNamed, None]{Method: http.MethodDelete, Path: "/v1/secrets/{service}", ID: "delete-secret", Summary: "Remove a secret", Right: identity.SecretDelete,
		Command: Command{Use: "rm SERVICE…", Aliases: []string{"remove"}, Short: "Remove secrets"},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in SecretNamed) (None, error) {
			if isSecretID(in.Service) {
				return None{}, removeSecret(ctx, s, by, in.Service)
			}
			tenant, agent := by.TenantOr(in.Tenant), in.Agent
			if agent != "" && !strings.Contains(agent, "_") { // no name of an agent has one, and every id
				found, err := AgentNamed(ctx, s.People, by, identity.SecretDelete, tenant, agent)
				if err != nil {
					return None{}, err
				}
				agent = found.ID
			}
			return None{}, s.Credentials.DeleteSecret(ctx, by, vault.SecretName{Tenant: tenant, Agent: agent, Service: in.Service})
		}}
}

// isSecretID says whether a text is the id of a secret. No service is called so: their names have no capitals.
func isSecretID(text string) bool {
	return len(text) == 26 && strings.Trim(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
}

func removeSecret(ctx context.Context, s Backend, by identity.Principal, id string) error {
	all, err := s.Credentials.Secrets(ctx, by, by.Among(""))
	if err != nil {
		return err
	}
	for _, one := range all {
		if one.ID == id {
			return s.Credentials.DeleteSecret(ctx, by, vault.SecretName{Tenant: one.Tenant, Agent: one.Agent, Service: one.Service})
		}
	}
	return problem.New(problem.NotFound, "list them: clawjail secret ls", "No secret found with id: %s", id)
}
