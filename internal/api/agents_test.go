package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/ringlog"
	"github.com/clawjail/clawjail/internal/testenv"
)

// running gives the agent writer2 a jail.
func (w *fixture) running() {
	w.jails.kept["writer2"] = jail.KeptStatus{
		Kept: jail.Kept{Spec: jail.Spec{Template: "clawbot", Limits: jail.Limits{Memory: 512 << 20, MilliCPU: 500, Tasks: 64}, Agent: &jail.Agent{State: 1 << 30},
			Program: jail.Program{Env: map[string]string{"MODE": canary}}, HomeFiles: []jail.File{{Path: "a", Data: []byte(canary)}}}, Restart: jail.RestartAlways},
		Phase: jail.PhaseRunning, Jail: "aabcd00001", Addr: netip.MustParseAddr("10.213.0.7"), Restarts: 2,
		Exit: &jail.Exit{Code: -1, Signal: "killed", Cause: jail.CauseMemory, Hit: []jail.LimitName{jail.LimitMemory}}, Usage: &jail.Usage{CPU: 1500 * time.Millisecond},
	}
}

func TestWithoutAServiceForAgentsThereAreIdentitiesAlone(t *testing.T) {
	w := newFixture(t, func(o *Options) { o.Agents = nil })
	for _, path := range []string{"/v1/agents/writer2/declare", "/v1/agents/writer2/restart", "/v1/agents/writer2/stdin"} {
		w.request("admin", "POST", path, "{}").wantProblem(t, 404, problem.NotFound)
	}
	w.request("admin", "POST", "/v1/agents/sync", "{}").wantProblem(t, 405, problem.BadRequest) // sync is the name of an agent then
	if a := w.request("admin", "GET", "/v1/agents?tenant=acme", ""); a.StatusCode != 200 || !strings.Contains(a.body, `"writer2"`) || strings.Contains(a.body, "jail") {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	if a := w.request("admin", "DELETE", "/v1/agents/writer2?tenant=acme&keep_state=true", ""); a.StatusCode != 204 {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
}

func TestASyncArrivesAsItWasAskedFor(t *testing.T) {
	w := newFixture(t)
	a := w.request("acme operator", "POST", "/v1/agents/sync", `{"source":"a.yml","text":"clawbots:\n- name: x\n","dir":"/srv","driver":"docker","dry_run":true,
		"prune":true,"removes":["y"],"only":["x"],"keep_state":true}`)
	if a.StatusCode != 200 || strings.TrimSpace(a.body) != `{"steps":[]}` {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	r := w.jails.sync
	if r.Tenant != "acme" || r.Source != "a.yml" || r.Text != "clawbots:\n- name: x\n" || r.Dir != "/srv" || r.Driver != "docker" || !r.DryRun || !r.Prune ||
		!slices.Equal(r.Only, []string{"x"}) || !slices.Equal(r.Removes, []string{"y"}) || !r.KeepState {
		t.Errorf("it is %+v", r)
	}
	// A file may be larger than other bodies, from whoever may send one.
	large := `{"text":"` + strings.Repeat("# \\n", 300_000) + `"}`
	if a := w.request("acme operator", "POST", "/v1/agents/sync", large); a.StatusCode != 200 {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	w.request("acme viewer", "POST", "/v1/agents/sync", large).wantProblem(t, 400, problem.BadRequest)
	w.request("acme operator", "POST", "/v1/agents/sync?progress=perhaps", "{}").wantProblem(t, 400, problem.BadRequest)
	w.request("acme operator", "POST", "/v1/agents/sync?dry_run=true", "{}").wantProblem(t, 400, problem.BadRequest)
	w.request("acme operator", "POST", "/v1/agents/sync", `{"dryrun":true}`).wantProblem(t, 400, problem.BadJSON)
	w.request("acme operator", "POST", "/v1/agents/sync", `{"tenant":"../x"}`).wantProblem(t, 400, problem.BadName)
}

func TestMistakesOfAFileHaveTheirPlace(t *testing.T) {
	w := newFixture(t)
	many := &problem.ValidationError{Code: problem.BadRequest, Source: "a.yml"}
	many.AddFlaw(problem.Flaw{Field: "clawbots[0].nmae", Line: 2, Column: 5, Message: "is not known", Hint: "did you mean name?"})
	w.jails.fail = many
	for _, path := range []string{"/v1/agents/sync", "/v1/agents/sync?progress=true"} {
		a := w.request("acme operator", "POST", path, "{}")
		a.wantProblem(t, 400, problem.BadRequest)
		for _, want := range []string{`"field":"clawbots[0].nmae"`, `"line":2`, `"column":5`, `"hint":"did you mean name?"`, "a.yml:2:5"} {
			if !strings.Contains(a.body, want) {
				t.Errorf("%s does not have %s", a.body, want)
			}
		}
	}
}

// readLines are the lines of an answer.
func readLines(t *testing.T, body string) (out []SyncLine) {
	t.Helper()
	lines := bufio.NewScanner(strings.NewReader(body))
	for lines.Scan() {
		var one SyncLine
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		out = append(out, one)
	}
	return out
}

func TestStepsAreToldAsTheyAreDone(t *testing.T) {
	w := newFixture(t)
	w.jails.steps = []agent.Step{{Name: "x", Verb: agent.Create}, {Name: "x", Verb: agent.Create, Done: true}}
	w.jails.plan = agent.Plan{Steps: w.jails.steps[1:]}
	d := &testAPI{API: w.API}
	for _, path := range []string{"/v1/agents/sync?progress=true", "/v1/agents/sync"} {
		a := d.ask(t, "POST", path, "{}", key(w.keys["acme operator"]), header("Accept", "application/json;q=0.5, Application/X-NDJSON; q=1"))
		got := readLines(t, a.body)
		if a.StatusCode != 200 || a.Header.Get("Content-Type") != linesType || len(got) != 3 || got[0].Step.Done || !got[1].Step.Done || len(got[2].Plan.Steps) != 1 {
			t.Errorf("%d %s", a.StatusCode, a.body)
		}
	}
	if a := d.ask(t, "POST", "/v1/agents/sync", "{}", key(w.keys["acme operator"])); strings.Contains(a.body, `"plan"`) || !strings.Contains(a.body, `"steps"`) {
		t.Errorf("nobody asked for lines: %s", a.body)
	}
	// The error that kept all of it from being done comes after the steps that were told.
	w.jails.fail, w.jails.plan = problem.New(problem.DiskFull, "make room", "the disk is full"), agent.Plan{}
	got := readLines(t, w.request("acme operator", "POST", "/v1/agents/sync?progress=true", "{}").body)
	if len(got) != 3 || got[2].Problem == nil || got[2].Problem.Code != problem.DiskFull || got[2].Problem.Hint != "make room" {
		t.Errorf("%+v", got)
	}
}

// A step that failed does not hide what the others did.
func TestAFailedStepIsInThePlan(t *testing.T) {
	w := newFixture(t)
	w.jails.plan = agent.Plan{Steps: []agent.Step{{Name: "x", Done: true}, {Name: "y", Code: problem.TemplateMissing, Problem: "there is no template", Hint: "build it"}}}
	w.jails.fail = problem.New(problem.TemplateMissing, "", "there is no template")
	for _, path := range []string{"/v1/agents/sync", "/v1/agents/sync?progress=true", "/v1/agents/y/declare"} {
		if a := w.request("acme operator", "POST", path, "{}"); a.StatusCode != 200 || !strings.Contains(a.body, `"problem":"there is no template"`) {
			t.Errorf("%s: %d %s", path, a.StatusCode, a.body)
		}
	}
}

func TestADeclarationIsReadAsAnEntryOfAFile(t *testing.T) {
	w := newFixture(t)
	a := w.request("acme operator", "POST", "/v1/agents/archive-bot/declare", `{"agent":{"name":"somebody-else","template":"clawbot","limits":{"memory":"64MiB","tasks":32},
		"allow":["example.com"],"ttl":"1h"}}`)
	if a.StatusCode != 200 || !slices.Contains(w.jails.calls, "declare acme archive-bot") {
		t.Errorf("%d %s, %v", a.StatusCode, a.body, w.jails.calls)
	}
	a = w.request("acme operator", "POST", "/v1/agents/archive-bot/declare", `{"replace":true,"agent":{"template":"clawbot"}}`)
	if a.StatusCode != 200 || !slices.Contains(w.jails.calls, "declare acme archive-bot instead") {
		t.Errorf("%d %s, %v", a.StatusCode, a.body, w.jails.calls)
	}
	for name, body := range map[string]string{
		"an unknown key":       `{"agent":{"memroy":"64MiB"}}`,
		"a secret":             `{"agent":{"env":{"API_KEY":"sk-` + strings.Repeat("Zx9", 14) + `"}}}`,
		"a relative workspace": `{"agent":{"workspace":"./here"}}`,
		"a relative folder":    `{"dir":"here","agent":{"workspace":"./here"}}`,
		"a name that is none":  `{"agent":{"template":"../x"}}`,
	} {
		a := w.request("acme operator", "POST", "/v1/agents/archive-bot/declare", body)
		a.wantProblem(t, 400, problem.BadRequest)
		if strings.Contains(a.body, "Zx9") {
			t.Errorf("%s: it is in the answer: %s", name, a.body)
		}
		if n := len(w.jails.calls); n == 0 || strings.HasPrefix(w.jails.calls[n-1], "declare") {
			t.Errorf("%s: it is declared", name)
		}
	}
	w.request("acme operator", "POST", "/v1/agents/Archive_Bot/declare", "{}").wantProblem(t, 400, problem.BadRequest)
	// A caller who may not declare is not told what would be wrong with it.
	w.request("acme viewer", "POST", "/v1/agents/archive-bot/declare", `{"agent":{"memroy":1}}`).wantProblem(t, 403, problem.Forbidden)
}

// A body that would take a hundred times as much memory is read by nobody, and no body at all of who may not declare.
func TestADeclarationIsSmallInMemoryToo(t *testing.T) {
	w := newFixture(t)
	body := func(n int) string { return `{"agent":{"mcp":[` + strings.Repeat("1,", n) + `1]}}` }
	for _, path := range []string{"/v1/agents/x/declare", "/v1/agents/sync"} {
		w.request("acme operator", "POST", path, body(60_000)).wantProblem(t, 400, problem.BadRequest)
		w.request("acme viewer", "POST", path, "{]").wantProblem(t, 403, problem.Forbidden)
		w.request("acme operator", "POST", path, "{]").wantProblem(t, 400, problem.BadJSON)
	}
	if a := w.request("acme operator", "POST", "/v1/agents/x/declare", body(100)); a.StatusCode != 400 || !strings.Contains(a.body, "101 names, more than 64") {
		t.Errorf("a mistake is answered with %d %s", a.StatusCode, a.body)
	}
}

func TestAListingHasTheJails(t *testing.T) {
	w := newFixture(t)
	w.running()
	list := w.request("acme viewer", "GET", "/v1/agents", "")
	one := w.request("acme viewer", "GET", "/v1/agents/writer2", "")
	for _, body := range []string{list.body, one.body} {
		for _, want := range []string{`"driver":"linux"`, `"source":"clawbot"`, `"phase":"running"`, `"jail":"aabcd00001"`, `"address":"10.213.0.7"`, `"restarts":2`,
			`"signal":"killed"`, `"cpu_seconds":1.5`, `"state_bytes":1073741824`, `"is_declared":true`} {
			if !strings.Contains(body, want) {
				t.Errorf("%s does not have %s", body, want)
			}
		}
		if strings.Contains(body, canary) {
			t.Errorf("a value of the environment is told: %s", body)
		}
	}
	for _, want := range []string{`"env":["MODE"]`, `"ttl":"1h0m0s"`, `"memory":"64MiB"`, `"tools":[]`, `"exposes":`} {
		if !strings.Contains(one.body, want) {
			t.Errorf("%s does not have %s", one.body, want)
		}
	}
	if strings.Contains(one.body, `"services"`) {
		t.Errorf("nothing was said of services: %s", one.body)
	}
	var of struct{ Agents []op.Agent }
	if err := json.Unmarshal([]byte(list.body), &of); err != nil || len(of.Agents) != 2 {
		t.Fatalf("%s, %v", list.body, err)
	}
	for _, a := range of.Agents {
		if (a.Jail != nil) != (a.Name == "writer2") || a.ID == "" || a.CreatedAt.IsZero() {
			t.Errorf("%+v", a)
		}
	}
	// All tenants at once.
	if a := w.request("admin", "GET", "/v1/agents", ""); !strings.Contains(a.body, `"aabcd00001"`) || !strings.Contains(a.body, `"beta"`) {
		t.Errorf("%s", a.body)
	}
	// When nobody knows of the jails, there are still the agents.
	w.jails.fail = problem.New(problem.HostdUnreachable, "start it", "the host daemon does not answer")
	a := w.request("acme viewer", "GET", "/v1/agents", "")
	if a.StatusCode != 200 || !strings.Contains(a.body, `"writer2"`) || !strings.Contains(a.body, `"jails_unknown":{`) || !strings.Contains(a.body, problem.HostdUnreachable) ||
		strings.Count(a.body, `"is_unwatched":true`) != 1 || strings.Contains(list.body, "is_unwatched") {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
}

func TestRemovingEndsTheJail(t *testing.T) {
	w := newFixture(t)
	if a := w.request("acme operator", "DELETE", "/v1/agents/writer2?keep_state=true&keep_workspace=false", ""); a.StatusCode != 204 {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	if !w.jails.remove.KeepState || !w.jails.remove.RemoveWorkspace || !slices.Contains(w.jails.calls, string(identity.AgentDelete)) {
		t.Errorf("%+v, %v", w.jails.remove, w.jails.calls)
	}
}

func TestTheTokenOfAJailIsDeliveredAndToldNobody(t *testing.T) {
	w := newFixture(t)
	path := "/v1/agents/writer2/tokens"
	var first, second op.IssuedToken
	a := w.request("acme operator", "POST", path, `{"overlap":"1m"}`)
	if err := json.Unmarshal([]byte(a.body), &first); err != nil || a.StatusCode != 201 || !strings.HasPrefix(first.Key, "cjagt_") || first.Delivered {
		t.Errorf("without a jail: %d %v", a.StatusCode, err)
	}
	w.running()
	a = w.request("acme operator", "POST", path, `{"overlap":"1m"}`)
	if err := json.Unmarshal([]byte(a.body), &second); err != nil || a.StatusCode != 201 || second.Key != "" || !second.Delivered || strings.Contains(a.body, `"key"`) {
		t.Errorf("%d %s, %v", a.StatusCode, a.body, err)
	}
	if second.Token.ID == "" || second.Token.ID == first.Token.ID {
		t.Errorf("the tokens are %q and %q", first.Token.ID, second.Token.ID)
	}
	w.request("acme operator", "POST", path, `{"life":"1h"}`).wantProblem(t, 400, problem.BadRequest)
	w.request("acme viewer", "POST", path, "{}").wantProblem(t, 403, problem.Forbidden)
	// A token that could not be delivered is not made another way.
	w.jails.fail = problem.New(problem.HostdUnreachable, "start it", "the host daemon does not answer")
	w.request("acme operator", "POST", path, "{}").wantProblem(t, 503, problem.HostdUnreachable)
}

func TestALogIsBytesWithTheirOffsets(t *testing.T) {
	w := newFixture(t)
	w.jails.chunk = jail.LogChunk{Data: []byte("<script>\x00\xff\n"), Offset: 10, First: 4, End: 21}
	a := w.request("acme operator", "GET", "/v1/agents/writer2/log?stream=stderr&offset=-20&limit=11&wait=2s", "")
	if a.StatusCode != 200 || a.body != "<script>\x00\xff\n" || a.Header.Get("Content-Type") != bytesType {
		t.Errorf("%d %q %v", a.StatusCode, a.body, a.Header)
	}
	for header, want := range map[string]string{LogOffsetHeader: "10", LogFirstHeader: "4", LogEndHeader: "21"} {
		if got := a.Header.Get(header); got != want {
			t.Errorf("%s is %q", header, got)
		}
	}
	if r := w.jails.log; r.Tenant != "acme" || r.Name != "writer2" || r.Stream != jail.Stderr || r.Offset != -20 || r.Limit != 11 || r.Wait != 2*time.Second {
		t.Errorf("%+v", r)
	}
	// Times are in a header, so an answer with many is shorter.
	many := jail.LogChunk{Data: bytes.Repeat([]byte("x"), 1000), Offset: 10, First: 4, End: 1010}
	for n := range int64(500) {
		many.Marks = append(many.Marks, ringlog.Mark{Offset: 10 + 2*n, At: 1_900_000_000_000_000_000 + n})
	}
	w.jails.chunk = many
	a = w.request("acme operator", "GET", "/v1/agents/writer2/log?times=true", "")
	got, ok := ParseLogTimes(a.Header.Get(LogTimesHeader))
	if !ok || !slices.Equal(got, many.Marks[:maxLogTimes]) || len(a.body) != 2*maxLogTimes || len(a.Header.Get(LogTimesHeader)) > 4<<10 || !w.jails.log.Times {
		t.Errorf("%d times of %d bytes: %v", len(got), len(a.body), a.Header)
	}
	w.jails.chunk = jail.LogChunk{}
	a = w.request("acme operator", "GET", "/v1/agents/writer2/log", "")
	if r := w.jails.log; a.StatusCode != 200 || a.body != "" || r.Stream != jail.Stdout || r.Offset != 0 || a.Header.Get(LogEndHeader) != "0" {
		t.Errorf("%d %+v %v", a.StatusCode, r, a.Header)
	}
	for _, query := range []string{"wait=2m", "wait=soon", "wait=-1s"} {
		w.request("acme operator", "GET", "/v1/agents/writer2/log?"+query, "").wantProblem(t, 400, problem.BadLimit)
	}
	for _, query := range []string{"stream=stdin", "offset=x", "limit=4194305", "limit=-1"} {
		w.request("acme operator", "GET", "/v1/agents/writer2/log?"+query, "").wantProblem(t, 422, problem.BadRequest)
	}
}

// A caller who waits for an agent to say something does not keep the server from ending.
func TestWhoWaitsForALogIsToldWhenTheServerEnds(t *testing.T) {
	w := newFixture(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- w.Serve(ctx, listener) }()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	answered := make(chan int, 1)
	go func() {
		request, err := http.NewRequest("GET", "http://"+listener.Addr().String()+"/v1/agents/writer2/log?wait=1m&tenant=acme", nil)
		if err != nil {
			answered <- 0
			return
		}
		request.Header.Set("Authorization", bearer+" "+w.keys["admin"])
		response, err := (&http.Client{Transport: transport}).Do(request)
		if err != nil {
			answered <- 0
			return
		}
		_ = response.Body.Close() // its status is all that is looked at
		answered <- response.StatusCode
	}()
	testenv.Eventually(t, 5*time.Second, func() bool {
		w.jails.mu.Lock()
		defer w.jails.mu.Unlock()
		return w.jails.log.Wait > 0
	}, "somebody waits")
	end()
	if status := <-answered; status != http.StatusServiceUnavailable {
		t.Errorf("the status is %d", status)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestWhatIsTypedArrives(t *testing.T) {
	w := newFixture(t)
	d := &testAPI{API: w.API}
	bytes := header("Content-Type", bytesType)
	text := strings.Repeat("\x00\xff\n", maxTyped/3)
	a := d.ask(t, "POST", "/v1/agents/writer2/stdin?tenant=acme", text, key(w.keys["admin"]), bytes)
	if a.StatusCode != 200 || string(w.jails.typed) != text || !strings.Contains(a.body, `"written":1048575`) {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	d.ask(t, "POST", "/v1/agents/writer2/stdin?tenant=acme", text+"1234", key(w.keys["admin"]), bytes).wantProblem(t, 400, problem.BadRequest)
	// One byte more, of a body that does not say its length.
	d.ask(t, "POST", "/v1/agents/writer2/stdin?tenant=acme", text+"12", key(w.keys["admin"]), bytes, func(r *http.Request) { r.ContentLength = -1 }).
		wantProblem(t, 400, problem.BadRequest)
	d.ask(t, "POST", "/v1/agents/writer2/stdin?tenant=acme&name=x", "x", key(w.keys["admin"]), bytes).wantProblem(t, 400, problem.BadRequest)
	d.ask(t, "POST", "/v1/agents/"+strings.Repeat("x", 65)+"/stdin", "x", key(w.keys["admin"]), bytes).wantProblem(t, 400, problem.BadRequest)
	w.jails.fail = problem.New(problem.Timeout, "let the agent read", "the agent does not read")
	if a := d.ask(t, "POST", "/v1/agents/writer2/stdin?tenant=acme", "abc", key(w.keys["admin"]), bytes); a.StatusCode != 504 || !strings.Contains(a.body, `"written":2`) {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
}

func TestTheAnswerOfAWebhookIsHarmless(t *testing.T) {
	w := newFixture(t)
	d := &testAPI{API: w.API}
	ask := func() asked {
		return d.ask(t, "POST", "/v1/agents/writer2/webhook?tenant=acme", "payload", key(w.keys["admin"]), header("Content-Type", "application/x-thing"))
	}
	a := ask()
	if a.StatusCode != 200 || a.body != "done" || a.Header.Get(AnsweredByHeader) != "agent" || string(w.jails.called.Body) != "payload" ||
		w.jails.called.ContentType != "application/x-thing" {
		t.Errorf("%d %s %v %+v", a.StatusCode, a.body, a.Header, w.jails.called)
	}
	for said, want := range map[string]string{"text/html": bytesType, "Text/Plain; charset=utf-8": "text/plain", "application/json": "application/json",
		"image/svg+xml": bytesType, "": bytesType, "text/plain\r\nX: y": bytesType} {
		w.jails.answer = agent.WebhookAnswer{Status: 418, ContentType: said, Body: []byte("<script>")}
		a := ask()
		if a.StatusCode != 418 || a.Header.Get("Content-Type") != want || a.Header.Get("Content-Disposition") != "attachment" ||
			!strings.Contains(a.Header.Get("Content-Security-Policy"), "sandbox") || a.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%q: %d %v", said, a.StatusCode, a.Header)
		}
	}
	for _, status := range []int{-1, 100, 101, 199, 600, 1000} {
		w.jails.answer = agent.WebhookAnswer{Status: status}
		a := ask()
		a.wantProblem(t, problem.Status(problem.UpstreamFailed), problem.UpstreamFailed)
		if a.Header.Get(AnsweredByHeader) != "" {
			t.Errorf("%d: it is not the agent's", status)
		}
	}
}
