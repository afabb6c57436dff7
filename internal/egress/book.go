package egress

import (
	"context"
	"time"

	"github.com/clawjail/clawjail/internal/gateway/policy"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// Book holds what was decided. All methods may be called at the same time.
type Book struct{ Options }

// Open reads the entries. Close must be called.
func Open(ctx context.Context, o Options) (*Book, error) { return &Book{o}, nil }

// Close stops comparing with the store.
func (b *Book) Close() {}

// View is what one caller may at one moment. It does not change.
type View struct{}

// View is what a caller may now. It is cheap: it is asked for with every request.
func (b *Book) View(w Who) *View { return &View{} }

// Proxy decides about tunnels and plain requests.
func (v *View) Proxy() *policy.Compiled { return nil }

// Tool decides about execute with the credential of a service: the tools, after all rules that deny.
func (v *View) Tool(service string) *policy.Compiled { return nil }

// Service finds a service by name, and what decides about requests to it: what it allows, after all rules that deny.
func (v *View) Service(name string) (Service, *policy.Compiled, bool) { return Service{}, nil, false }

// Services are all that the caller has, by name.
func (v *View) Services() []Service { return nil }

// Provider finds who serves a model on a wire, and what decides about requests to it.
func (v *View) Provider(wire Wire, model string) (Provider, *policy.Compiled, bool) {
	return Provider{}, nil, false
}

// Providers are all that the caller has, in the order in which they are asked.
func (v *View) Providers() []Provider { return nil }

// Settings are what is decided for the caller, with every default filled in.
func (v *View) Settings() Settings { return Settings{} }

// Hold is how long a refused request waits for an operator; 0 for not at all.
func (v *View) Hold() time.Duration { return 0 }

// Tokens is an amount of tokens with its price.
type Tokens struct {
	Input, Output int64
	MicroCost     int64
}

// Charge is the one function of budgets: it checks an agent's budget of the day and debits it. Before a request it is called with an
// estimate, and refuses with the code budget_exceeded when the budget does not allow that; afterwards with the
// difference to what was used (requests 0), which is never refused.
func (b *Book) Charge(ctx context.Context, w Who, provider, model string, requests int64, t Tokens) error {
	return nil
}

// Used says that a rule was what let a request pass; one that was for one use goes, and the second of two requests that use
// it at the same time is told false.
func (b *Book) Used(ctx context.Context, rule string) (ok bool) { return true }

// Hold asks the operator about a refused request to a host, waits for the answer at most as long as the caller's settings say, and
// reports whether to decide again.
func (b *Book) Hold(ctx context.Context, w Who, target string) (again bool) { return false }

var errNotYet = problem.New(problem.Unsupported, "", "not yet")

// Rules lists rules: of a tenant, or of all when it is empty.
func (b *Book) Rules(ctx context.Context, by identity.Principal, tenant string) ([]Rule, error) {
	return nil, errNotYet
}

// AddRule makes a rule; its ID, version and times are set. Tenant "" needs a principal of all tenants, and so does Address.
func (b *Book) AddRule(ctx context.Context, by identity.Principal, r Rule) (Rule, error) {
	return Rule{}, errNotYet
}

// RemoveRule removes a rule.
func (b *Book) RemoveRule(ctx context.Context, by identity.Principal, id string) error { return errNotYet }

// Question is one request to be explained.
type Question struct {
	Tenant string `json:"tenant,omitempty"`
	Agent  string `json:"agent,omitempty"` // its name; empty: a clean session
	// Surface is proxy when it is empty; execute and service need Service.
	Surface string `json:"surface,omitempty"`
	Service string `json:"service,omitempty"`
	Method  string `json:"method"` // CONNECT for a tunnel
	URL     string `json:"url"`
}

// Explanation is a decision, and the rules that were looked at.
type Explanation struct {
	Question
	Allowed  bool   `json:"allowed"`
	Reported bool   `json:"reported,omitempty"`
	Rule     string `json:"rule,omitempty"`
	Code     string `json:"code,omitempty"`
	Reason   string `json:"reason"`
	Hint     string `json:"hint,omitempty"`
}

// Explain decides requests without doing them. At most 10 000 at once. An agent may ask about itself.
func (b *Book) Explain(ctx context.Context, by identity.Principal, q []Question) ([]Explanation, error) {
	return nil, errNotYet
}

// ListServices lists services.
func (b *Book) ListServices(ctx context.Context, by identity.Principal, tenant string) ([]Service, error) {
	return nil, errNotYet
}

// PutService makes a service, or replaces the one of the same tenant, agent and name.
func (b *Book) PutService(ctx context.Context, by identity.Principal, s Service) (Service, error) {
	return Service{}, errNotYet
}

// RemoveService removes one.
func (b *Book) RemoveService(ctx context.Context, by identity.Principal, id string) error {
	return errNotYet
}

// ListProviders lists providers.
func (b *Book) ListProviders(ctx context.Context, by identity.Principal, tenant string) ([]Provider, error) {
	return nil, errNotYet
}

// PutProvider makes a provider, or replaces the one of the same tenant, agent and name.
func (b *Book) PutProvider(ctx context.Context, by identity.Principal, p Provider) (Provider, error) {
	return Provider{}, errNotYet
}

// RemoveProvider removes one.
func (b *Book) RemoveProvider(ctx context.Context, by identity.Principal, id string) error {
	return errNotYet
}

// ShowSettings returns what is set for an agent by name, for a tenant (agent ""), or for all (both ""), and what is in effect.
func (b *Book) ShowSettings(ctx context.Context, by identity.Principal, tenant, agent string) (set, effective Settings, err error) {
	return Settings{}, Settings{}, errNotYet
}

// PutSettings replaces what is set; Meta.Agent is the agent's id. With a Version it refuses (conflict) to replace another one.
func (b *Book) PutSettings(ctx context.Context, by identity.Principal, s Settings) (Settings, error) {
	return Settings{}, errNotYet
}

// Ask is an agent's request for access. The same question again is the same request, until it is answered. With wait it
// returns when it is answered, or wait (at most 5 minutes) is over.
func (b *Book) Ask(ctx context.Context, by identity.Principal, kind AccessKind, target, reason string, wait time.Duration) (AccessRequest, error) {
	return AccessRequest{}, errNotYet
}

// AccessRequests lists them: an agent its own, an operator those of the tenant.
func (b *Book) AccessRequests(ctx context.Context, by identity.Principal, tenant string, all bool) ([]AccessRequest, error) {
	return nil, errNotYet
}

// AccessRequest returns one, and waits for its answer if wait is not 0.
func (b *Book) AccessRequest(ctx context.Context, by identity.Principal, id string, wait time.Duration) (AccessRequest, error) {
	return AccessRequest{}, errNotYet
}

// Answer approves or refuses. An approval makes a rule, adds a tool, or gives the agent a service.
func (b *Book) Answer(ctx context.Context, by identity.Principal, id string, a AccessAnswer) (AccessRequest, error) {
	return AccessRequest{}, errNotYet
}

// Usage lists the use of models from a day on (2006-01-02).
func (b *Book) Usage(ctx context.Context, by identity.Principal, tenant, from string) ([]Usage, error) {
	return nil, errNotYet
}

// Tidy removes what has expired, and usage older than 400 days.
func (b *Book) Tidy(ctx context.Context) error { return nil }
