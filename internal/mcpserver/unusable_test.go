package mcpserver

import (
	"context"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/vault"
)

type noSecrets struct{ Vault }

func (noSecrets) UseSecret(_ context.Context, n vault.SecretName, _ vault.Destination, _ func(secret.Value) error) error {
	return problem.New(problem.CredentialMissing, "store it", "there is no secret %s", n.Service)
}

func TestAListSaysWhyAServerCannotBeUsed(t *testing.T) {
	w := newFixture(t, files())
	told := func() string {
		t.Helper()
		list, err := w.List(t.Context(), admin(), "")
		if err != nil || len(list) != 1 {
			t.Fatalf("%+v, %v", list, err)
		}
		return list[0].Problem
	}
	if got := told(); got != "" {
		t.Errorf("of a server that has all it needs: %q", got)
	}
	w.behave = func(p *peer) { _, _ = p.err.WriteString("no module x\n") }
	if r, err := w.Test(t.Context(), admin(), "", "files"); err != nil || r.Problem == "" {
		t.Fatalf("%+v, %v", r, err)
	}
	if got := told(); !strings.Contains(got, "ended") || strings.Contains(got, "no module") {
		t.Errorf("after a test that failed: %q", got)
	}
	w.behave = nil
	if r, err := w.Test(t.Context(), admin(), "", "files"); err != nil || r.Problem != "" {
		t.Fatalf("%+v, %v", r, err)
	}
	if got := told(); got != "" {
		t.Errorf("after one that went well: %q", got)
	}
	w.o.Vault = noSecrets{w.o.Vault}
	w.o.Servers[0].Secrets = []config.ServerSecret{{Name: "A", Secret: "one"}}
	if got := told(); got != "there is no secret one" {
		t.Errorf("without its secret: %q", got)
	}
	w.o.Templates = func(context.Context) ([]string, error) { return []string{"other"}, nil }
	if got := told(); got != "there is no template clawbot" {
		t.Errorf("without its template: %q", got)
	}
	w.o.Servers[0] = config.MCPServer{Name: "files", Command: []string{"/x"}, Agent: "bot"}
	if got := told(); got != "there are no jails of agents here" {
		t.Errorf("without its agent: %q", got)
	}
}

// oneTenant is where there is no tenant but default.
type oneTenant struct{ Authority }

func (o oneTenant) AuthorizeWith(ctx context.Context, by identity.Principal, op identity.Operation, object identity.Object) error {
	if object.Tenant != "" && object.Tenant != "default" {
		return problem.New(problem.NotFound, "list them", "there is no tenant %s", object.Tenant)
	}
	return o.Authority.AuthorizeWith(ctx, by, op, object)
}

func TestWhatIsAddedSaysWhatItReplacesAndWhatItLacks(t *testing.T) {
	w := newFixture(t)
	w.o.Identity = oneTenant{w.o.Identity}
	w.o.Templates = func(context.Context) ([]string, error) { return []string{"clawbot"}, nil }
	server := config.MCPServer{Name: "mm", Command: []string{"/x"}, Tenants: []string{"default", "nope"}}
	if _, err := w.Add(t.Context(), admin(), server); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("for a tenant that does not exist: %v", err)
	}
	for _, c := range []struct {
		tenant, template, lacks string
		replaced                bool
	}{{"default", "clawbot", "", false}, {"*", "nope", "there is no template nope", true}} {
		server.Tenants, server.Template = []string{c.tenant}, c.template
		if got, err := w.Add(t.Context(), admin(), server); err != nil || got.Replaced != c.replaced || got.Problem != c.lacks {
			t.Errorf("%+v: replaced %v, %q, %v", c, got.Replaced, got.Problem, err)
		}
	}
}
