package access

import (
	"bytes"
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/gateway/inject"
	"github.com/clawjail/clawjail/internal/policy/redact"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/vault"
)

// Credential is a secret on its way into one request, or into the hops of one.
type Credential struct {
	options Options
	name    vault.SecretName
	how     egress.Injection

	mu      sync.Mutex // guards what follows
	scrub   [][]byte
	failure *problem.Error
}

// NewCredential looks nothing up: the secret is taken out of the vault when it goes into a request, and not before.
func NewCredential(o Options, c gateway.Caller, name string, how egress.Injection) *Credential {
	return &Credential{options: o, name: vault.SecretName{Tenant: c.Tenant, Agent: c.Agent, Service: name}, how: how}
}

// Needed says whether there is anything to inject.
func (c *Credential) Needed() bool { return c.how.Type != egress.InjectNone }

// Into returns what puts the credential into a request; see [gateway.OutboundRequest].
func (c *Credential) Into(ctx context.Context) func(*http.Request) error {
	if !c.Needed() {
		return nil
	}
	return func(r *http.Request) error {
		err := c.options.Secrets.UseSecret(ctx, c.name, vault.Origin(r.URL), func(v secret.Value) error {
			scrub, err := inject.Into(r, c.how, v)
			if err != nil {
				return err
			}
			c.remember(scrub)
			return nil
		})
		if err != nil {
			return c.failed(err)
		}
		if c.options.Used != nil {
			c.options.Used(c.name)
		}
		return nil
	}
}

func (c *Credential) remember(scrub [][]byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, value := range scrub {
		if !slices.ContainsFunc(c.scrub, func(b []byte) bool { return bytes.Equal(b, value) }) {
			c.scrub = append(c.scrub, value)
		}
	}
}

// failed makes what the vault said into what the agent is told.
func (c *Credential) failed(err error) *problem.Error {
	p, ok := problem.As(err)
	switch {
	case problem.CodeOf(err) == problem.NotFound:
		p = problem.Wrap(err, problem.CredentialMissing,
			"Do not retry: the operator has to store it first: clawjail secret set "+c.name.Service,
			"there is no credential for the service %s", c.name.Service)
	case !ok:
		p = problem.Wrap(err, problem.CodeOf(err), "One later retry is reasonable; then tell the operator.",
			"the credential of the service %s could not be read", c.name.Service)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failure = p
	return p
}

// Failure is why the credential did not go into the last request; nil when it did, or nothing asked for it.
func (c *Credential) Failure() *problem.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failure
}

// Values are what answers must not have in them: everything that went into a request so far.
func (c *Credential) Values() *redact.Values {
	c.mu.Lock()
	defer c.mu.Unlock()
	return redact.New(c.scrub...)
}

// Decided says whether a refusal of the gateway's is that nothing allows the request: neither a rule that denies it, nor
// anything that went wrong.
func Decided(p *problem.Error) bool {
	if _, named := p.Details["rule"]; named {
		return false
	}
	switch p.Code {
	case problem.HostDenied, problem.PortDenied, problem.PathDenied, problem.MethodDenied, "scheme_denied":
		return true
	}
	return false
}

// ServiceName says whether a text can be the name of a service.
func ServiceName(s string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	return len(s) >= 1 && len(s) <= 64 && strings.IndexByte(letters, s[0]) >= 0 && strings.Trim(s, letters+"._-") == ""
}
