package op

import (
	"cmp"
	"context"
	"maps"
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
	Name         string              `json:"name" doc:"1 to 64 of a-z, 0-9, dots, - and _" arg:"1" example:"github"`
	BaseURL      string              `json:"base_url" doc:"where its requests go; with inject path it has {secret} once, as a segment of its path, or the beginning or the end of one" example:"https://example.com" flag:"url" value:"URL" usage:"base URL, such as https://api.example.com/v1" need:"where the service is, is missing: --url https://api.example.com, or --preset github"`
	Address      netip.Addr          `json:"address,omitzero" doc:"dialled instead of looking the name up; may be private" flag:"address" value:"address" usage:"private address to connect to; only an admin of the installation may"`
	Secret       string              `json:"secret,omitempty" doc:"the name of the secret in the vault; the service's own name when it is left out" flag:"secret" value:"name" usage:"name of the secret in the vault (default the name of the service)" complete:"secrets"`
	Allow        []egress.Allowance  `json:"allow,omitempty" nullable:"false" doc:"methods and paths that are allowed; none when it is left out" example:"[{\"path\":\"/**\"}]" flag:"allow" value:"'METHODS PATH'" usage:"what may be done, as 'METHODS PATH'" read:"write methods and a path, such as 'GET,POST /issues/**', or '/**' for everything" need:"what may be done is missing: --allow 'GET,POST /issues/**', or --allow '/**' for everything"`
	Inject       egress.Injection    `json:"inject" doc:"how the credential goes in: none, bearer, basic, header, query or path" example:"{\"type\":\"bearer\"}" flag:"inject" usage:"how the credential goes in: bearer, basic, header, query, path or none (default bearer)" offer:"bearer,basic,header,query,path,none"`
	Scrub        egress.Scrub        `json:"scrub,omitempty" enum:"redact,block,off" doc:"redact is the default, and off is for services without a credential; for others it is redact" flag:"scrub" usage:"what becomes of an answer with the credential in it: redact or block (default redact)" offer:"redact,block"`
	Compressed   egress.Compressed   `json:"compressed,omitempty" enum:"decode,refuse" doc:"decode is the default" flag:"compressed" usage:"what becomes of an answer that is compressed: decode or refuse (default decode)"`
	EncodedSlash egress.EncodedSlash `json:"encoded_slash,omitempty" enum:"deny,allow" doc:"allow takes %2F in a path for a part of its segment; deny is the default" flag:"encoded-slash" usage:"what becomes of a path with %2F in it: deny, or allow for servers that have names with a slash, such as npm's and GitLab's (default deny)"`
	Git          string              `json:"git,omitempty" doc:"the prefix of repository URLs that tools in jails are pointed away from" flag:"git" value:"prefix" usage:"prefix of repository URLs that git in a jail takes to the service, such as https://git.example.com/"`
	Env          map[string]string   `json:"env,omitempty" doc:"variables that tools in jails get; {url} stands for the service's route" flag:"env" value:"K=V" usage:"variable of tools in jails, as K=V, in which {url} stands for the service there" read:"write a name and a value, such as API_URL={url}"`
	Note         string              `json:"note,omitempty" doc:"for people" flag:"note" value:"text" usage:"a text for people"`
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

// View is all of it, for people.
func (s Service) View() []Block {
	var address any = ""
	if s.Address.IsValid() {
		address = s.Address
	}
	out := [][2]any{{"name", s.Name}, {"id", s.ID}, {"tenant", allWhenNone(s.Tenant)}, {"agent", cmp.Or(s.AgentName, s.Agent, "-")}, {"url", s.BaseURL}, {"address", address},
		{"credential", s.Credential()}, {"secret", s.Secret}, {"scrub", s.Scrub}, {"compressed", s.Compressed}, {"encoded slash", s.EncodedSlash}, {"git", s.Git}}
	for _, text := range s.Allows() {
		out = append(out, [2]any{"allows", text})
	}
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		out = append(out, [2]any{"env", name + "=" + s.Env[name]})
	}
	return []Block{{Pairs: append(out, [2]any{"note", s.Note}, [2]any{"made", s.CreatedAt}, [2]any{"by", s.CreatedBy})}}
}

type (
	// NewService is a service to be made.
	NewService struct{ Body[ServiceRequest] }

	// ServiceNamed names a service by its id. The command line finds that by the service's name, and whose it is.
	ServiceNamed struct {
		ID    string `path:"id" maxLength:"64" doc:"the service's id" arg:"1" complete:"services"`
		Owner Whose
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
		Command: Command{Use: "add NAME",
			Long: "Makes a service, or replaces the one of the same name, tenant and agent. --allow says what may be done, as METHODS PATH: the path is " +
				"below the URL of the service, * stands for one of its segments and ** at its end for any number; without methods it is all of them. " +
				"--inject says how the credential goes in; with path, {secret} in the path of the URL is where. --preset github fills in what git needs: " +
				"then `git clone https://github.com/…` works in a jail as it is. --preset telegram is for a bot, whose token is a part of the path.",
			Example: "  clawjail secret set github < token.txt\n  clawjail service add github --preset github --agent writer\n" +
				"  clawjail service add tracker --url https://tracker.example.com/api --inject header --inject-name X-Api-Key --allow 'GET,POST /issues/**'\n" +
				"  clawjail service add hooks --url 'https://hooks.example.com/{secret}' --inject path --allow 'POST /'"},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in NewService) (out Service, err error) {
			one := in.Of.Service()
			if one.Tenant, one.Agent, err = in.Of.Whose.Of(ctx, s.People, by, identity.ServiceChange); err != nil {
				return out, err
			}
			one, err = s.Egress.PutService(ctx, by, one)
			return Service{one, in.Of.Agent}, err
		},
		View: func(s Service) []Block { return []Block{line("service %s: %s", s.Name, s.BaseURL)} }}
}

// RemoveService removes a service. Its secret stays.
func RemoveService() Op[ServiceNamed, None] {
	return Op[ServiceNamed, None]{Method: http.MethodDelete, Path: "/v1/services/{id}", ID: "remove-service", Summary: "Remove a service", Right: identity.ServiceChange,
		Command: removalByName("service"),
		Call: func(ctx context.Context, s Backend, by identity.Principal, in ServiceNamed) (None, error) {
			return None{}, s.Egress.RemoveService(ctx, by, in.ID)
		}}
}
