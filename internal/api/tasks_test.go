package api

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/task"
)

// ownedTasks are tasks of which there is only who may have them done.
type ownedTasks struct {
	authority *identity.Service
	// run does one; nil has it done at once.
	run func(ctx context.Context, r task.Request, tell func(task.Step)) (task.Result, error)
}

func (o *ownedTasks) Run(ctx context.Context, by identity.Principal, r task.Request, tell func(task.Step)) (task.Result, error) {
	if err := o.authority.AuthorizeWith(ctx, by, identity.TaskRun, identity.Object{Tenant: by.TenantOr(r.Tenant), Agent: by.AgentID()}); err != nil {
		return task.Result{}, err
	}
	if o.run == nil {
		return task.Result{Answer: json.RawMessage(`"seen"`), Session: "s_1", Steps: 1}, nil
	}
	if tell == nil {
		tell = func(task.Step) {}
	}
	return o.run(ctx, r, tell)
}

func TestATaskIsToldLineByLine(t *testing.T) {
	tasks := &ownedTasks{}
	w := newFixture(t, func(o *Options) { o.Tasks = tasks })
	tasks.authority = w.identity
	var got task.Request
	tasks.run = func(_ context.Context, r task.Request, tell func(task.Step)) (task.Result, error) {
		if got = r; r.Goal == "early" {
			return task.Result{}, problem.New(problem.ModelUnknown, "name one", "there is none")
		}
		tell(task.Step{Do: "open a session", Session: "s_1", Max: 25})
		if r.Goal == "late" {
			return task.Result{}, problem.New(problem.TaskGaveUp, "look at it", "it gave up")
		}
		return task.Result{Answer: json.RawMessage(`{"n":12345678901234567890}`), Session: "s_1", Steps: 3}, nil
	}
	const body = `{"goal":"look","agent":"worker","model":"m","dialect":"openai-responses","url":"https://example.com/","schema":{"type":"object"},"pictures":true,` +
		`"max_steps":3,"max_tokens":5000,"timeout":"90s","credential_mode":"operator","domains":["example.com"],"record":"audit","tenant":"acme"}`
	a := w.request("acme operator", "POST", "/v1/tasks", body)
	if a.StatusCode != http.StatusOK || !strings.Contains(a.body, `"answer":{"n":12345678901234567890}`) {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	if got.Goal != "look" || got.Agent != "worker" || got.Model != "m" || got.Dialect != task.Responses || got.URL != "https://example.com/" || string(got.Schema) != `{"type":"object"}` ||
		!got.Pictures || got.MaxSteps != 3 || got.MaxTokens != 5000 || got.Timeout != "90s" || got.CredentialMode != "operator" ||
		len(got.Domains) != 1 || got.Record != "audit" || got.Tenant != "acme" {
		t.Errorf("it was asked for %+v", got)
	}
	a = w.request("acme operator", "POST", "/v1/tasks?progress=true", `{"goal":"look"}`)
	if lines := strings.Split(strings.TrimSpace(a.body), "\n"); a.StatusCode != http.StatusOK || len(lines) != 2 || !strings.Contains(lines[0], `"do":"open a session"`) ||
		!strings.HasPrefix(lines[1], `{"result":{"answer":`) {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	for _, test := range []struct{ goal, query, want string }{
		{"early", "", `"code":"model_unknown"`}, {"early", "?progress=true", `"code":"model_unknown"`}, {"late", "", `"code":"task_gave_up"`},
		{"late", "?progress=true", `{"problem":{"type":"about:blank","title":"Unprocessable Entity","status":422,"detail":"it gave up","code":"task_gave_up","hint":"look at it"}}`},
	} {
		a := w.request("acme operator", "POST", "/v1/tasks"+test.query, `{"goal":"`+test.goal+`"}`)
		if !strings.Contains(a.body, test.want) {
			t.Errorf("%s%s: %s", test.goal, test.query, a.body)
		}
	}
	for name, bad := range map[string]string{"an unknown key": `{"goal":"x","steps":5}`, "a tenant": `{"goal":"x","tenant":"A B"}`} {
		if a := w.request("acme operator", "POST", "/v1/tasks", bad); a.StatusCode != http.StatusBadRequest || !strings.Contains(a.body, `"hint"`) {
			t.Errorf("%s: %d %s", name, a.StatusCode, a.body)
		}
	}
}

// A client that leaves stops its task, whether it hears of the steps or not.
func TestATaskStopsWithItsClient(t *testing.T) {
	tasks := &ownedTasks{}
	w := newFixture(t, func(o *Options) { o.Tasks = tasks })
	tasks.authority = w.identity
	server := serve(t, w.API)
	for _, query := range []string{"", "?progress=true"} {
		begun, ended := make(chan struct{}), make(chan struct{})
		tasks.run = func(ctx context.Context, _ task.Request, tell func(task.Step)) (task.Result, error) {
			tell(task.Step{Do: "open a session"})
			close(begun)
			<-ctx.Done()
			close(ended)
			return task.Result{}, ctx.Err()
		}
		ctx, leave := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/v1/tasks"+query, strings.NewReader(`{"goal":"look"}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer "+w.keys["acme agent"])
		done := make(chan error, 1)
		go func() {
			resp, err := http.DefaultClient.Do(r)
			if err == nil {
				_, err = bufio.NewReader(resp.Body).ReadString(0)
				resp.Body.Close()
			}
			done <- err
		}()
		<-begun
		leave()
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			t.Fatalf("%q: it goes on", query)
		}
		if err := <-done; err == nil {
			t.Errorf("%q: there was an answer", query)
		}
	}
}
