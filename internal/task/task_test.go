//go:build linux

package task

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/testenv"
)

// shop is a site with a search and the page that it finds.
func (w *fixture) shop() {
	w.site.HandleFunc("shop.example.com/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, `<!doctype html><title>Shop</title><h1>Shop</h1><form action=/find><label>Search <input name=q></label></form>`)
	})
	w.site.HandleFunc("shop.example.com/find", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `<!doctype html><title>Found</title><p>You looked for %s</p><a href=/tea target=_blank>Green tea</a>`, r.FormValue("q"))
	})
	w.site.HandleFunc("shop.example.com/tea", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, `<!doctype html><title>Green tea</title><p>Price: 4.20</p>`)
	})
}

// buying is a task at the shop, and what a model does to reach its goal.
func (w *fixture) buying(model string) Request {
	w.models.act = says(`{"do":"type","ref":"$Search$","text":"tea HUSH","submit":true,"note":"searched for tea"}`, `{"do":"click","ref":"$Green tea$"}`,
		`{"do":"done","answer":{"price":4.2}}`)
	return Request{Goal: "Find the price of green tea", Model: model, URL: w.site.url("shop.example.com", "/"), OpenRequest: session.OpenRequest{Record: session.RecordAudit},
		Schema: json.RawMessage(`{"type":"object","properties":{"price":{"type":"number"}},"required":["price"]}`)}
}

func TestAModelOfEachDialectReachesAGoal(t *testing.T) {
	w := newFixture(t)
	w.shop()
	for _, test := range []struct {
		dialect     Dialect
		model, path string
		pictures    bool
	}{
		{Anthropic, "acme-anthropic", "/v1/messages", true}, {Chat, "acme-openai", "/v1/chat/completions", true}, {Responses, "acme-openai", "/v1/responses", true},
		{"", "acme-openai", "/v1/chat/completions", false},
	} {
		t.Run(string(test.dialect)+" "+test.model, func(t *testing.T) {
			before := w.models.asked()
			r := w.buying(test.model)
			r.Dialect, r.Pictures = test.dialect, test.pictures
			out, steps, err := w.run(t.Context(), w.acme, r)
			if err != nil || string(out.Answer) != `{"price":4.2}` || out.Steps != 3 || out.InputTokens != 3000 || out.OutputTokens != 30 ||
				out.Agent != w.acme.ID || out.URL != w.site.url("shop.example.com", "/tea") {
				t.Fatalf("%+v, %v\n%s", out, err, w.models.all())
			}
			var told []string
			for _, s := range steps {
				told = append(told, fmt.Sprintf("%d %s %s", s.Number, s.Do, s.Code))
			}
			want := []string{"0 open a session ", "0 navigate " + w.site.url("shop.example.com", "/") + " ", `1 type textbox "Search" `, `2 click link "Green tea" `, "3 done "}
			if !slices.Equal(told, want) || steps[1].Session != out.Session {
				t.Errorf("told %q", told)
			}
			w.models.mu.Lock()
			defer w.models.mu.Unlock()
			for _, body := range w.models.bodies[before:] {
				if !strings.HasPrefix(body, test.path+" ") || strings.Contains(body, "base64") != test.pictures || !strings.Contains(body, `"name":"act"`) {
					t.Errorf("asked %.300s", body)
				}
			}
			last := w.models.prompts[len(w.models.prompts)-1]
			if !strings.Contains(last, "your note: searched for tea") || !strings.Contains(last, "Price: 4.20") || strings.Contains(last, "You looked for") {
				t.Errorf("the last prompt is\n%s", last)
			}
			if key := w.models.keys[len(w.models.keys)-1]; !strings.Contains(key, providerKey+"acme") {
				t.Errorf("the key was %q", key)
			}
		})
	}
	if n := w.open(); n != 0 {
		t.Errorf("%d sessions are open", n)
	}
	w.leavesTraces(t)
}

// recorded waits for the records of tasks, each of which has an intent and an outcome.
func (w *fixture) recorded(t *testing.T, tasks int) {
	t.Helper()
	testenv.Eventually(t, 10*time.Second, func() bool { return len(w.rows("task.run")) == 2*tasks }, "there are not the records of %d tasks", tasks)
}

// leavesTraces looks at what is on record of the tasks: each of them, each of their steps, each of their requests; and nothing
// of what was typed, nor the key.
func (w *fixture) leavesTraces(t *testing.T) {
	t.Helper()
	w.recorded(t, 4)
	all := fmt.Sprint(w.rows("")) + w.written.String()
	for _, want := range []string{"session.use", "gateway.llm"} {
		if !strings.Contains(all, want) {
			t.Errorf("there is no record of %s", want)
		}
	}
	for _, secret := range []string{"HUSH", providerKey} {
		if strings.Contains(all, secret) {
			t.Errorf("%s was written down", secret)
		}
	}
	list, err := w.sessions.ListRecordings(t.Context(), w.admin, "acme")
	if err != nil || len(list) != 4 {
		t.Fatalf("%d recordings, %v", len(list), err)
	}
	var page strings.Builder
	if err := w.sessions.WriteRecording(t.Context(), w.admin, list[0].Session, &page); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"navigate", "act", "snapshot", "agent:" + w.acme.ID} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the recording has no %s", want)
		}
	}
	usage, err := w.book.Usage(t.Context(), w.admin, "acme", "")
	if err != nil || len(usage) != 2 || usage[0].Agent != w.acme.ID || usage[0].InputTokens+usage[1].InputTokens != 12000 {
		t.Errorf("usage is %+v, %v", usage, err)
	}
}

// The agent of the task pays, whoever asks, with the providers that it has itself.
func TestATaskIsPaidByItsOwnAgent(t *testing.T) {
	w := newFixture(t)
	w.shop()
	ctx := t.Context()
	asAdmin := w.buying("beta-anthropic")
	asAdmin.Agent, asAdmin.Tenant = "worker-of-beta", "beta"
	if out, _, err := w.run(ctx, w.admin, asAdmin); err != nil || out.Agent != w.beta.ID {
		t.Fatalf("%+v, %v", out, err)
	}
	if key := w.models.keys[0]; !strings.Contains(key, providerKey+"beta") {
		t.Errorf("the key was %q", key)
	}
	w.recorded(t, 1)
	if rows := w.rows("task.run"); rows[0].Actor != "admin" || rows[0].Target != w.beta.ID || rows[0].Tenant != "beta" {
		t.Errorf("the record is %+v", rows)
	}
	asked := w.models.asked()
	for _, test := range []struct {
		name   string
		by     identity.Principal
		code   string
		change func(*Request)
	}{
		{"another tenant's model", w.acme, problem.ModelUnknown, func(r *Request) { r.Model = "beta-anthropic" }},
		{"another tenant", w.acme, problem.NotFound, func(r *Request) { r.Model, r.Tenant = "beta-anthropic", "beta" }},
		{"another tenant, by its operator", w.operator, problem.NotFound, func(r *Request) {
			r.Agent, r.Model, r.Tenant = "worker-of-beta", "beta-anthropic", "beta"
		}},
		{"another tenant's agent", w.operator, problem.NotFound, func(r *Request) { r.Agent, r.Model = "worker-of-beta", "beta-anthropic" }},
		{"another agent", w.acme, problem.Forbidden, func(r *Request) { r.Agent = "worker-of-beta" }},
		{"nobody's", w.operator, problem.BadRequest, func(*Request) {}},
		{"the holder of a session's token", w.acme.Within("s_aaaaaaaaaaaaaaaa", identity.ScopeCDP, time.Now().Add(time.Hour)), problem.Forbidden, func(*Request) {}},
		{"nobody", identity.Principal{}, problem.Forbidden, func(*Request) {}},
	} {
		r := Request{Goal: "Look", Model: "acme-anthropic"}
		test.change(&r)
		_, steps, err := w.run(ctx, test.by, r)
		if problem.CodeOf(err) != test.code || len(steps) > 0 {
			t.Errorf("%s: %v, %d steps", test.name, err, len(steps))
		}
	}
	if w.models.asked() != asked {
		t.Error("a model was asked")
	}
	own := Request{Goal: "Look", Model: "acme-anthropic", Agent: "worker-of-acme"}
	w.models.act = says(`{"do":"done","answer":"seen"}`)
	for _, by := range []identity.Principal{w.acme, w.operator} {
		if out, _, err := w.run(ctx, by, own); err != nil || string(out.Answer) != `"seen"` || out.Agent != w.acme.ID {
			t.Errorf("%s: %+v, %v", by.Actor(), out, err)
		}
	}
}

func TestWhatIsWrongWithATaskIsSaidBeforeAnythingIsOpened(t *testing.T) {
	w := newFixture(t)
	// The agent of beta has no models, and that of acme three.
	providers, err := w.book.ListProviders(t.Context(), w.admin, "beta")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range providers {
		if err := w.book.RemoveProvider(t.Context(), w.admin, p.ID); err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		by     identity.Principal
		code   string
		change func(*Request)
	}{
		"no goal":                  {w.acme, problem.BadRequest, func(r *Request) { r.Goal = " \n" }},
		"a goal without end":       {w.acme, problem.BadRequest, func(r *Request) { r.Goal = strings.Repeat("é", maxGoal+1) }},
		"a dialect that is none":   {w.acme, problem.BadRequest, func(r *Request) { r.Dialect = "ollama" }},
		"too many steps":           {w.acme, problem.BadLimit, func(r *Request) { r.MaxSteps = MaxSteps + 1 }},
		"less than no steps":       {w.acme, problem.BadLimit, func(r *Request) { r.MaxSteps = -1 }},
		"few tokens":               {w.acme, problem.BadLimit, func(r *Request) { r.MaxTokens = 10 }},
		"no time":                  {w.acme, problem.BadRequest, func(r *Request) { r.Timeout = "soon" }},
		"too long":                 {w.acme, problem.BadLimit, func(r *Request) { r.Timeout = "24h" }},
		"an address that is none":  {w.acme, problem.BadURL, func(r *Request) { r.URL = "file:///etc/passwd" }},
		"a schema that is none":    {w.acme, problem.BadSchema, func(r *Request) { r.Schema = json.RawMessage(`{"type":"thing"}`) }},
		"a schema for nothing":     {w.acme, problem.BadSchema, func(r *Request) { r.Schema = json.RawMessage(`false`) }},
		"a model that nobody has":  {w.acme, problem.ModelUnknown, func(r *Request) { r.Model = "gpt-9" }},
		"a model of another wire":  {w.acme, problem.ModelUnknown, func(r *Request) { r.Dialect = Responses }},
		"no model at all":          {w.beta, problem.ModelUnknown, func(r *Request) { r.Model = "" }},
		"a session that cannot be": {w.acme, problem.BadRequest, func(r *Request) { r.Record = "perhaps" }},
	} {
		t.Run(name, func(t *testing.T) {
			r := Request{Goal: "Look", Model: "acme-anthropic"}
			test.change(&r)
			_, steps, err := w.run(t.Context(), test.by, r)
			p, ok := problem.As(err)
			if !ok || p.Code != test.code || p.Message == "" || p.Hint == "" || len(steps) > 0 {
				t.Errorf("%v, %+v, %d steps", err, p, len(steps))
			}
		})
	}
	// Nor has an agent a task done for it whose time is over.
	w.leftErr = problem.New(problem.Conflict, "later", "it is over")
	if _, _, err := w.run(t.Context(), w.operator, Request{Goal: "Look", Agent: "worker-of-acme"}); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("an agent whose time is over: %v", err)
	}
	w.leftErr = nil
	if w.models.asked() > 0 || w.open() > 0 || len(w.rows("session.use")) > 0 {
		t.Error("something was begun")
	}
	// And the first model that an operator has named is the one that is meant.
	if out, _, err := w.run(t.Context(), w.acme, Request{Goal: "Look"}); err != nil || out.Model != "acme-anthropic" {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestEveryTaskHasAnEnd(t *testing.T) {
	w := newFixture(t)
	w.shop()
	ctx := t.Context()
	acts := func(acts ...string) func() { return func() { w.models.act = says(acts...) } }
	waits := `{"do":"wait","seconds":0.01}`
	for _, test := range []struct {
		name    string
		code    string
		words   string
		asked   int
		prepare func()
		change  func(*Request)
	}{
		{"steps", problem.TaskBound, "3 steps", 3, acts(waits), func(r *Request) { r.MaxSteps = 3 }},
		{"tokens", problem.TaskBound, "3000 tokens", 3, acts(waits), func(r *Request) { r.MaxTokens = 3000 }},
		{"no call", problem.TaskNonsense, "does not call", 10, acts(""), nil},
		{"nonsense", problem.TaskNonsense, "not known", 10, acts(`{"do":"click","coordinate":[1,2]}`), nil},
		{"nonsense of all kinds", problem.TaskNonsense, "", 10, acts("", `{"do":"dance"}`, `{"do":`, `[]`, `{"do":"click"}`, `{"do":"back"}`, `{"do":"type","ref":"e1"}`,
			`{"do":"navigate","url":"javascript:alert(1)"}`, `{"do":"press","key":"Hyper+Q"}`, `{"do":"select","ref":"e1"}`), nil},
		{"answers that do not fit", problem.TaskNonsense, "match the schema", 3, acts(`{"do":"done","answer":"five"}`),
			func(r *Request) { r.Schema = json.RawMessage(`{"type":"number"}`) }},
		{"a schema that nothing fits", problem.TaskNonsense, "match the schema", 3, acts(`{"do":"done","answer":"five"}`),
			func(r *Request) { r.Schema = json.RawMessage(`{"type":"string","pattern":"^a$","minLength":2}`) }},
		{"no answer", problem.TaskNonsense, "no answer", 3, acts(`{"do":"done"}`), nil},
		{"it gives up", problem.TaskGaveUp, "sold out", 1, acts(`{"do":"give_up","reason":"sold out"}`), nil},
		{"time", problem.Timeout, "did not end", 1, func() {
			w.models.act = func(ctx context.Context, _ int, _ string) string { <-ctx.Done(); return "" }
		}, func(r *Request) { r.Timeout = "1s" }},
		{"an error of the provider", problem.UpstreamFailed, "no tools here", 1, func() {
			w.models.refuse = func(_ int, rw http.ResponseWriter) bool {
				rw.WriteHeader(http.StatusBadRequest)
				fmt.Fprint(rw, `{"error":{"message":"no tools here"}}`)
				return true
			}
		}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := w.models.asked()
			w.models.refuse = nil
			test.prepare()
			r := Request{Goal: "Look", Model: "acme-openai", URL: w.site.url("shop.example.com", "/")}
			if test.change != nil {
				test.change(&r)
			}
			_, _, err := w.run(ctx, w.acme, r)
			p, ok := problem.As(err)
			if !ok || p.Code != test.code || !strings.Contains(p.Message, test.words) || p.Hint == "" || p.Details["session"] == "" {
				t.Errorf("%v, %+v", err, p)
			}
			// Where the time is over, a slow machine may still open the page.
			if asked := w.models.asked() - before; asked != test.asked && (test.code != problem.Timeout || asked > test.asked) {
				t.Errorf("the model was asked %d times", asked)
			}
			if n := w.open(); n != 0 {
				t.Errorf("%d sessions are open", n)
			}
		})
	}
	// The time for which its agent is declared is also that of a task.
	w.models.refuse, w.left = nil, time.Second
	w.models.act = func(ctx context.Context, _ int, _ string) string { <-ctx.Done(); return "" }
	if _, _, err := w.run(ctx, w.operator, Request{Goal: "Look", Model: "acme-openai", Agent: "worker-of-acme"}); problem.CodeOf(err) != problem.Timeout {
		t.Errorf("the time of its agent is over: %v", err)
	}
	// A provider that is busy for a moment is asked again, and nine useless answers are no end.
	w.models.refuse = func(turn int, rw http.ResponseWriter) bool {
		if w.models.refuse = nil; turn > 0 {
			rw.WriteHeader(http.StatusServiceUnavailable)
		}
		return true
	}
	w.models.act = says(append(slices.Repeat([]string{""}, 9), waits, "", `{"do":"done","answer":"at last"}`)...)
	if out, _, err := w.run(ctx, w.acme, Request{Goal: "Look", Model: "acme-openai"}); err != nil || string(out.Answer) != `"at last"` || out.Steps != 12 {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestABudgetThatIsUsedUpEndsATask(t *testing.T) {
	w := newFixture(t)
	w.shop()
	if _, err := w.book.PutSettings(t.Context(), w.admin, egress.Settings{Meta: egress.Meta{Tenant: "acme", Agent: w.acme.ID}, Browser: egress.BrowserOpen,
		Budget: egress.Budget{TokensPerDay: 20_000}}); err != nil {
		t.Fatal(err)
	}
	// Each answer has used more than was said, so that the next one goes beyond the budget.
	w.models.act = says(`{"do":"wait","seconds":0.01}`)
	_, _, err := w.run(t.Context(), w.acme, Request{Goal: "Look", Model: "acme-anthropic", MaxSteps: 100})
	p, ok := problem.As(err)
	if !ok || p.Code != problem.BudgetExceeded || p.Message == "" || p.Hint == "" || w.open() != 0 {
		t.Errorf("%v, %+v", err, p)
	}
	if n := w.models.asked(); n == 0 || n > 20 {
		t.Errorf("the model was asked %d times", n)
	}
}

// A task ends at once when its caller leaves, when its session is closed, and when its agent is revoked, also while a model is
// thinking; the request to the model ends with it.
func TestAStoppedTaskLeavesNothing(t *testing.T) {
	w := newFixture(t)
	w.shop()
	for _, test := range []struct {
		name string
		code string
		stop func(id string, leave func()) error
	}{
		{"the caller leaves", problem.Canceled, func(_ string, leave func()) error { leave(); return nil }},
		{"its session is closed", problem.SessionClosed, func(id string, _ func()) error {
			_, err := w.sessions.Close(t.Context(), w.operator, id)
			return err
		}},
		{"its agent is revoked", problem.Unauthorized, func(string, func()) error {
			return w.identity.RevokeAgent(t.Context(), w.admin, "acme", "worker-of-acme")
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			thinks, ended := make(chan struct{}), make(chan struct{})
			w.models.act = func(ctx context.Context, _ int, _ string) string {
				close(thinks)
				<-ctx.Done()
				close(ended)
				return ""
			}
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			id := make(chan string, 1)
			done := make(chan error, 1)
			go func() {
				_, err := w.Run(ctx, w.acme, Request{Goal: "Look", Model: "acme-anthropic"}, func(s Step) {
					if s.Do == Opened {
						id <- s.Session
					}
				})
				done <- err
			}()
			await := func(c <-chan struct{}, what string) {
				t.Helper()
				select {
				case <-c:
				case err := <-done:
					t.Fatalf("before %s: %v", what, err)
				case <-time.After(limit):
					t.Fatalf("there is no %s", what)
				}
			}
			await(thinks, "question")
			of := <-id
			if p, ok := w.Running(of); !ok || p.Goal != "Look" || p.Model != "acme-anthropic" || p.Steps[0].Do != Opened {
				t.Errorf("what is said of it meanwhile: %+v, %v", p, ok)
			}
			if err := test.stop(of, leave); err != nil {
				t.Fatal(err)
			}
			select {
			case <-ended:
			case <-time.After(limit):
				t.Fatal("the request to the model goes on")
			}
			if err := <-done; problem.CodeOf(err) != test.code {
				t.Errorf("%v", err)
			}
			if p, ok := w.Running(of); ok {
				t.Errorf("it is said to go on: %+v", p)
			}
			testenv.Eventually(t, 10*time.Second, func() bool { return w.open() == 0 }, "a session is open")
		})
	}
}

func TestATaskLeavesItsSessionToThePersonWhoTakesIt(t *testing.T) {
	w := newFixture(t)
	w.shop()
	id := ""
	w.models.act = func(ctx context.Context, turn int, _ string) string {
		if turn == 2 {
			if _, err := w.sessions.TakeOver(ctx, w.operator, id, false); err != nil {
				t.Error(err)
			}
		}
		return `{"do":"wait","seconds":0.01}`
	}
	_, err := w.Run(t.Context(), w.acme, Request{Goal: "Look", Model: "acme-openai", URL: w.site.url("shop.example.com", "/")}, func(s Step) { id = s.Session })
	if p, ok := problem.As(err); !ok || p.Code != problem.TakenOver || p.Hint == "" || w.models.asked() != 2 {
		t.Errorf("%v, asked %d times", err, w.models.asked())
	}
	held, err := w.sessions.Get(t.Context(), w.operator, id)
	if err != nil || held.State != session.StateReady || held.Control == nil {
		t.Errorf("%+v, %v", held, err)
	}
	if _, err := w.sessions.Close(t.Context(), w.operator, id); err != nil {
		t.Error(err)
	}
}

// An answer of a model reaches nothing that the tool does not have, whatever it is called.
func TestAModelHasNothingButTheTool(t *testing.T) {
	w := newFixture(t)
	w.shop()
	refused := []string{
		`{"do":"evaluate","text":"document.cookie"}`, `{"do":"eval","text":"1"}`, `{"do":"cookies"}`, `{"do":"files"}`, `{"do":"batch"}`, `{"do":"upload","text":"/etc/passwd"}`,
		`{"do":"click","selector":"body"}`, `{"do":"click","ref":"e1","targetId":"t2"}`, `{"do":"snapshot"}`,
	}
	w.models.act = says(append(slices.Clone(refused), `{"do":"wait","text":"Shop","seconds":1}`, `{"do":"done","answer":"ok"}`)...)
	out, steps, err := w.run(t.Context(), w.acme, Request{Goal: "Look", Model: "acme-openai", URL: w.site.url("shop.example.com", "/")})
	if err != nil || out.Steps != len(refused)+2 {
		t.Fatalf("%+v, %v", out, err)
	}
	for n, s := range steps[2 : 2+len(refused)] {
		if s.Code != problem.BadJSON && s.Code != problem.BadRequest {
			t.Errorf("%s: %+v", refused[n], s)
		}
	}
	if rows := fmt.Sprint(w.rows("session.use")); strings.Contains(rows, "eval") || strings.Contains(rows, "file") {
		t.Errorf("it did %s", rows)
	}
	if s := steps[len(steps)-2]; s.Do != "wait" || s.Code != "" {
		t.Errorf("the wait: %+v", s)
	}
}
