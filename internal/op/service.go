package op

import (
	"cmp"
	"context"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
)

// ServiceRequest is the body that makes or replaces a service.
type ServiceRequest struct {
	Whose
	Name         string              `json:"name" doc:"1 to 64 of a-z, 0-9, dots, - and _" example:"github"`
	BaseURL      string              `json:"base_url" doc:"where its requests go; with inject path it has {secret} once, as a segment of its path, or the beginning or the end of one" example:"https://example.com"`
	Address      netip.Addr          `json:"address,omitzero" doc:"dialled instead of looking the name up; may be private"`
	Secret       string              `json:"secret,omitempty" doc:"the name of the secret in the vault; the service's own name when it is left out"`
	Allow        []egress.Allowance  `json:"allow,omitempty" nullable:"false" doc:"methods and paths that are allowed; none when it is left out" example:"[{\"path\":\"/**\"}]"`
	Inject       egress.Injection    `json:"inject" doc:"how the credential goes in: none, bearer, basic, header, query or path" example:"{\"type\":\"bearer\"}"`
	Scrub        egress.Scrub        `json:"scrub,omitempty" enum:"redact,block,off" doc:"redact is the default, and off is for services without a credential; for others it is redact"`
	Compressed   egress.Compressed   `json:"compressed,omitempty" enum:"decode,refuse" doc:"decode is the default"`
	EncodedSlash egress.EncodedSlash `json:"encoded_slash,omitempty" enum:"deny,allow" doc:"allow takes %2F in a path for a part of its segment; deny is the default"`
	Git          string              `json:"git,omitempty" doc:"the prefix of repository URLs that tools in jails are pointed away from"`
	Env          map[string]string   `json:"env,omitempty" doc:"variables that tools in jails get; {url} stands for the service's route"`
	Note         string              `json:"note,omitempty" doc:"for people"`
}

// Service is the entry that the request is for, without whose it is.
func (r ServiceRequest) Service() egress.Service {
	return egress.Service{
		Meta: egress.Meta{Note: r.Note}, Name: r.Name, Upstream: egress.Upstream{BaseURL: r.BaseURL, Address: r.Address, Secret: r.Secret},
		Allow: r.Allow, Inject: r.Inject, Scrub: r.Scrub, Compressed: r.Compressed, EncodedSlash: r.EncodedSlash, Git: r.Git, Env: r.Env,
	}
}

// Service is a service as it is answered. Its credential is in the vault alone.
type Service struct {
	egress.Service
	AgentName string `json:"agent_name,omitempty"`
}

// Services is the answer to a listing.
type Services struct {
	Services []Service `json:"services" nullable:"false"`
}

// Credential is how the credential goes in.
func (s Service) Credential() string {
	i := s.Inject
	return strings.Join(slices.DeleteFunc([]string{string(i.Type), i.Name, i.User}, func(s string) bool { return s == "" }), " ")
}

// Allows is what may be done, as --allow reads it.
func (s Service) Allows() []string { return listOf(s.Allow, egress.Allowance.String) }

type (
	// NewService is a service to be made.
	NewService struct{ Body[ServiceRequest] }

	// ServiceNamed names a service.
	ServiceNamed struct {
		ID string `path:"id" maxLength:"64" doc:"the service's id"`
	}
)

// ListServices lists the services.
func ListServices() Op[OfTenant, Services] {
	return Op[OfTenant, Services]{Method: http.MethodGet, Path: "/v1/services", ID: "list-services", Summary: "List the services that agents use", Right: identity.ServiceList,
		Command: Command{Use: "ls", Aliases: []string{"list"}, Short: "List services"},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in OfTenant) (Services, error) {
			all, err := named(ctx, s, by, in, s.Egress.ListServices, func(one egress.Service, names map[string]string) Service { return Service{one, names[one.Agent]} })
			return Services{all}, err
		},
		View: func(all Services) []Block {
			out := table(all.Services, []any{"NAME", "URL", "TENANT", "AGENT", "CREDENTIAL", "SECRET", "ALLOWS"}, func(s Service) []any {
				return []any{s.Name, s.BaseURL, allWhenNone(s.Tenant), cmp.Or(s.AgentName, s.Agent), s.Credential(), s.Secret, strings.Join(s.Allows(), "; ")}
			})
			out.Folds = 3
			return []Block{out}
		}}
}

// PutService makes a service, or replaces the one of the same tenant, agent and name.
func PutService() Op[NewService, Service] {
	return Op[NewService, Service]{Method: http.MethodPut, Path: "/v1/services", ID: "put-service", Summary: "Make a service, or replace the one of the same name", Right: identity.ServiceChange,
		Call: func(ctx context.Context, s Backend, by identity.Principal, in NewService) (out Service, err error) {
			one := in.Of.Service()
			if one.Tenant, one.Agent, err = in.Of.Whose.Of(ctx, s.People, by, identity.ServiceChange); err != nil {
				return out, err
			}
			one, err = s.Egress.PutService(ctx, by, one)
			return Service{one, in.Of.Agent}, err
		}}
}

// RemoveService removes a service. Its secret stays.
func RemoveService() Op[ServiceNamed, None] {
	return Op[ServiceNamed, None]{Method: http.MethodDelete, Path: "/v1/services/{id}", ID: "remove-service", Summary: "Remove a service", Right: identity.ServiceChange,
		Call: func(ctx context.Context, s Backend, by identity.Principal, in ServiceNamed) (None, error) {
			return None{}, s.Egress.RemoveService(ctx, by, in.ID)
		}}
}
