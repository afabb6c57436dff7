package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/agentenv"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// agentEnv runs the command.
func agentEnv(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := newAgentEnv(&program{version: "v1.2.3", getenv: os.Getenv, lookupEnv: os.LookupEnv, now: time.Now})
	var out bytes.Buffer
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestAgentEnvIsMadeOfWhatTheAgentHas(t *testing.T) {
	w := newFixture(t)
	c, err := (&program{getenv: os.Getenv, lookupEnv: os.LookupEnv, now: time.Now}).client()
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]string{}
	for _, name := range []string{"writer", "reader"} {
		issued, err := client.Call(t.Context(), c, op.CreateAgent(), op.NewAgent{Body: op.With(op.AgentRequest{Name: name})})
		if err != nil {
			t.Fatal(err)
		}
		ids[name] = issued.Agent.ID
	}
	admin := identity.Principal{Kind: identity.KindAdmin, ID: "admin", Name: "admin", Role: identity.RoleAdmin}
	service := func(agent, name, git string) {
		t.Helper()
		if _, err := w.book.PutService(t.Context(), admin, egress.Service{
			Meta: egress.Meta{Tenant: store.DefaultTenant, Agent: agent}, Name: name, Upstream: egress.Upstream{BaseURL: "https://" + name + ".example/"},
			Allow: []egress.Allowance{{}}, Inject: egress.Injection{Type: egress.InjectBearer}, Git: git,
		}); err != nil {
			t.Fatal(err)
		}
	}
	service("", "github", "https://github.com/")
	service(ids["reader"], "hidden", "https://hidden.example/")
	if _, err := w.book.PutProvider(t.Context(), admin, egress.Provider{Meta: egress.Meta{Tenant: store.DefaultTenant, Agent: ids["writer"]}, Name: "models",
		Upstream: egress.Upstream{BaseURL: "https://models.example/v1"}, Wire: egress.WireOpenAI, Models: []string{"*"}}); err != nil {
		t.Fatal(err)
	}

	dir := filepath.Join(t.TempDir(), "files")
	out, err := agentEnv(t, "writer", "--dir", dir, "--gateway", "http://127.0.0.1:3000")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"export AGENT_NAME='writer'", "export HTTPS_PROXY='http://127.0.0.1:3000'", "export OPENAI_BASE_URL='http://127.0.0.1:3000/v1'",
		"export GIT_CONFIG_KEY_0='url.http://127.0.0.1:3000/svc/github/.insteadOf'", "export NODE_OPTIONS='--require=" + dir + "/proxy.cjs'",
	} {
		if !strings.Contains(out, line+"\n") {
			t.Errorf("there is no line %s in\n%s", line, out)
		}
	}
	if strings.Contains(out, "hidden") {
		t.Errorf("what another agent has is in\n%s", out)
	}
	if info, err := os.Stat(filepath.Join(dir, "proxy.cjs")); err != nil || info.Mode().Perm() != 0o644 || info.Size() == 0 {
		t.Errorf("the file is %v, %v", info, err)
	}

	out, err = agentEnv(t, "reader", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var p agentenv.Payload
	if err := json.Unmarshal([]byte(out), &p); err != nil {
		t.Fatal(err)
	}
	if p.Env["SHELL_URL"] != agentenv.GatewayURL || p.Env["OPENAI_BASE_URL"] != "" || !strings.Contains(out, "/svc/hidden/") || len(p.Files) != 1 {
		t.Errorf("the reader is given %s", out)
	}

	if _, err := w.book.PutSettings(t.Context(), admin, egress.Settings{Meta: egress.Meta{Tenant: store.DefaultTenant, Agent: ids["reader"]}, Services: []string{}}); err != nil {
		t.Fatal(err)
	}
	if out, err = agentEnv(t, "reader", "--json"); err != nil || strings.Contains(out, "/svc/github/") || !strings.Contains(out, "/svc/hidden/") {
		t.Errorf("of an agent with services of its own alone: %s, %v", out, err)
	}

	if _, err := agentEnv(t, "nobody"); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("an agent that is not there: %v", err)
	}
	if _, err := agentEnv(t, "writer", "--gateway", "https://gateway"); problem.CodeOf(err) != problem.BadRequest {
		t.Errorf("a gateway that cannot be a proxy: %v", err)
	}
}
