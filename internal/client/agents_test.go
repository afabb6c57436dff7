package client

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/ringlog"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/task"
)

func TestEveryCallAboutAgentsIsTheRequestThatItShouldBe(t *testing.T) {
	var got, kind string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // what is missing is seen below
		got, kind = strings.TrimSpace(r.Method+" "+r.URL.RequestURI()+" "+string(body)), r.Header.Get("Content-Type")
		for _, header := range []string{api.LogOffsetHeader, api.LogFirstHeader, api.LogEndHeader} {
			w.Header().Set(header, "0")
		}
		_, _ = w.Write([]byte(`{"plan":{"steps":[]},"result":{"steps":1},"written":3}`)) // a client that has gone is seen there
	})
	ctx := t.Context()
	for want, call := range map[string]func() error{
		`POST /v1/agents/sync?progress=true {"text":"clawbots: []","dry_run":true,"only":["x"]}`: func() error {
			_, err := c.SyncAgents(ctx, agent.SyncRequest{Text: "clawbots: []", DryRun: true, Only: []string{"x"}}, nil)
			return err
		},
		`POST /v1/agents/dev-bot/declare?progress=true {"tenant":"acme","agent":{"image":"a:1"}}`: func() error {
			_, err := c.DeclareAgent(ctx, "dev-bot", api.DeclareRequest{Tenant: "acme", Agent: map[string]any{"image": "a:1"}}, nil)
			return err
		},
		`POST /v1/tasks?progress=true {"goal":"look","max_steps":3,"tenant":"acme"}`: func() error {
			_, err := c.RunTask(ctx, task.Request{Goal: "look", MaxSteps: 3, OpenRequest: session.OpenRequest{Tenant: "acme"}}, nil)
			return err
		},
		"GET /v1/agents/a%2Fb%3Fc":            func() error { _, err := Call(ctx, c, op.ShowAgent(), op.OneAgent{Name: "a/b?c"}); return err },
		"POST /v1/agents/dev-bot/restart":     func() error { return Do(ctx, c, op.RestartAgent(), op.OneAgent{Name: "dev-bot"}) },
		"POST /v1/agents/dev-bot/stdin a\x00": func() error { _, err := c.TypeToAgent(ctx, "", "dev-bot", []byte("a\x00")); return err },
		"DELETE /v1/agents/dev-bot?keep_state=true&keep_workspace=false&tenant=acme": func() error {
			return Do(ctx, c, op.RemoveAgent(), op.AgentRemoved{OneAgent: op.OneAgent{Name: "dev-bot", InTenant: op.InTenant{Tenant: "acme"}}, KeepState: true})
		},
		"GET /v1/agents/dev-bot/log?limit=7&offset=-5&stream=stderr&tenant=acme&times=true&wait=1m0s": func() error {
			_, err := c.AgentLog(ctx, jail.LogRequest{Tenant: "acme", Name: "dev-bot", Stream: jail.Stderr, Offset: -5, Limit: 7, Wait: time.Minute, Times: true})
			return err
		},
	} {
		kind = ""
		err := call()
		if strings.Contains(want, "stdin") {
			if err == nil || kind != "application/octet-stream" {
				t.Errorf("more was taken than was sent, as %s: %v", kind, err)
			}
		} else if err != nil {
			t.Errorf("%s: %v", want, err)
		}
		if got != want {
			t.Errorf("the request is %q, want %q", got, want)
		}
	}
}

// answering is a control plane that answers everything with one text.
func answering(t *testing.T, status int, text string, headers ...string) *Client {
	return serve(t, func(w http.ResponseWriter, _ *http.Request) {
		for n := 0; n < len(headers); n += 2 {
			w.Header().Set(headers[n], headers[n+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text) // a client that has gone is seen there
	})
}

func TestStepsOfASyncAreToldAsTheyCome(t *testing.T) {
	var steps []string
	note := func(s agent.Step) { steps = append(steps, s.Name) }
	c := answering(t, 200, `{"step":{"name":"x"}}`+"\n"+`{"step":{"name":"x","done":true}}`+"\n"+`{"plan":{"steps":[{"name":"x","done":true}]}}`+"\n")
	plan, err := c.SyncAgents(t.Context(), agent.SyncRequest{}, note)
	if err != nil || len(plan.Steps) != 1 || !plan.Steps[0].Done || strings.Join(steps, ",") != "x,x" {
		t.Errorf("%+v, %v, %v", plan, steps, err)
	}
	c = answering(t, 200, `{"step":{"name":"x"}}`+"\n"+`{"problem":{"code":"disk_full","detail":"the disk is full","hint":"make room"}}`+"\n")
	if _, err := c.SyncAgents(t.Context(), agent.SyncRequest{}, note); problem.CodeOf(err) != problem.DiskFull {
		t.Errorf("%v", err)
	}
	// A part is not taken for the whole.
	for _, text := range []string{"", `{"step":{"name":"x"}}` + "\n", `{"step":{"na`} {
		if plan, err := answering(t, 200, text).SyncAgents(t.Context(), agent.SyncRequest{}, note); err == nil {
			t.Errorf("%q is the plan %+v", text, plan)
		}
	}
	// Mistakes of the file keep their places.
	c = answering(t, 400, `{"code":"bad_request","detail":"x","errors":[{"line":2,"column":5,"field":"a","message":"m","hint":"h"}]}`)
	_, err = c.SyncAgents(t.Context(), agent.SyncRequest{}, note)
	p, _ := problem.As(err)
	if p == nil || len(p.Details["errors"].([]problem.Flaw)) != 1 || p.Details["errors"].([]problem.Flaw)[0].Column != 5 {
		t.Errorf("%v", err)
	}
}

func TestALogWithoutOffsetsIsNone(t *testing.T) {
	ask := func(headers ...string) (jail.LogChunk, error) {
		return answering(t, 200, "abc", headers...).AgentLog(t.Context(), jail.LogRequest{Name: "x", Stream: jail.Stdout})
	}
	got, err := ask(api.LogOffsetHeader, "10", api.LogFirstHeader, "4", api.LogEndHeader, "13")
	if err != nil || string(got.Data) != "abc" || got.Offset != 10 || got.First != 4 || got.End != 13 {
		t.Errorf("%+v, %v", got, err)
	}
	offsets := []string{api.LogOffsetHeader, "10", api.LogFirstHeader, "4", api.LogEndHeader, "13"}
	marks := []ringlog.Mark{{Offset: 10, At: 5}, {Offset: 12, At: 7}}
	if got, err = ask(append(offsets, api.LogTimesHeader, api.FormatLogTimes(marks))...); err != nil || !slices.Equal(got.Marks, marks) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, times := range []string{"x", "10", "10@", "@5", "12@1,10@2", "10@5,", "-1@5"} {
		if got, err := ask(append(offsets, api.LogTimesHeader, times)...); problem.CodeOf(err) != problem.ControlPlaneUnreachable {
			t.Errorf("times %q: %+v, %v", times, got, err)
		}
	}
	for _, headers := range [][]string{{}, {api.LogOffsetHeader, "10", api.LogFirstHeader, "4"}, {api.LogOffsetHeader, "-1", api.LogFirstHeader, "4", api.LogEndHeader, "5"}} {
		if got, err := ask(headers...); err == nil {
			t.Errorf("%v is %+v", headers, got)
		}
	}
}

func TestHowMuchWasTypedIsKnownAlsoWhenItFailed(t *testing.T) {
	for text, want := range map[string]int{`{"code":"timeout","detail":"x","details":{"written":2}}`: 2, `{"code":"timeout","detail":"x","details":{"written":99}}`: 3,
		`{"code":"timeout","detail":"x","details":{"written":-1}}`: 0, `{"code":"timeout","detail":"x","details":{"written":"2"}}`: 0, `{"code":"timeout","detail":"x"}`: 0} {
		if n, err := answering(t, 504, text).TypeToAgent(t.Context(), "", "x", []byte("abc")); n != want || problem.CodeOf(err) != problem.Timeout {
			t.Errorf("%s: %d, %v", text, n, err)
		}
	}
	if n, err := answering(t, 200, `{"written":2}`).TypeToAgent(t.Context(), "", "x", []byte("abc")); n != 2 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}
