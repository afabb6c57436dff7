package mcp

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// steps of a login, with a password that nothing but the browser may see.
func loginSteps() []any {
	return []any{
		args{"do": "navigate", "url": "https://site.test/login"},
		args{"do": "type", "selector": "#name", "text": "ann"},
		args{"do": "type", "selector": "#password", "text": "HUSH", "submit": true},
		args{"do": "wait", "text": "Welcome"},
		args{"do": "text", "selector": "main"},
	}
}

// site is a fake that answers every operation of a task; an Act on the selector #gone fails.
func site(t *testing.T) func(context.Context, Target, browser.Operation) (any, error) {
	data := picture(t, "jpeg", 64, 48)
	return func(ctx context.Context, _ Target, op browser.Operation) (any, error) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if act, ok := op.(browser.Act); ok && act.Selector == "#gone" {
			return nil, problem.New(problem.StaleRef, "take a new snapshot", "nothing matches #gone")
		}
		return answers(browser.Result{URL: "https://site.test/login", Title: "Log in", Status: 200}, browser.ActResult{OK: true, URL: "https://site.test/in"},
			browser.DOMResult{URL: "https://site.test/in", Text: "Welcome, ann"}, browser.Picture{Data: data, URL: "https://site.test/in"},
			browser.EvalResult{Exception: "ReferenceError: x"}, browser.SnapshotResult{URL: "u", Snapshot: strings.Repeat("- line\n", 5000)},
			browser.TabsResult{Tabs: []browser.Tab{{SuggestedTargetID: "t1", URL: "https://site.test/in", Title: "In", IsActive: true}}})(ctx, Target{}, op)
	}
}

func pictures(r *sdk.CallToolResult) (n int) {
	for _, c := range r.Content {
		if _, ok := c.(*sdk.ImageContent); ok {
			n++
		}
	}
	return n
}

func TestTaskAnswersALinePerStepAndAPicture(t *testing.T) {
	w := newFixture(t, &backend{drive: site(t)})
	got, out := w.tool("browser_run_task", args{"steps": loginSteps(), "record": "off"})
	want := `5 of 5 steps done
1 navigate: 200 https://site.test/login "Log in"
2 type #name: ok at https://site.test/in
3 type #password: ok at https://site.test/in
4 wait: ok at https://site.test/in
5 text: https://site.test/in
Welcome, ann
ended at t1 https://site.test/in "In" (current)`
	if got != want || out.IsError || pictures(out) != 1 {
		t.Errorf("%d pictures\n%s", pictures(out), got)
	}
	if !slices.Equal(w.back.closed, []string{"s_0000000000000001"}) || w.back.asked[0].Record != "off" {
		t.Errorf("closed %q, asked for %+v", w.back.closed, w.back.asked)
	}
	if strings.Contains(got+w.log.String(), "HUSH") {
		t.Error("what was typed is in the answer")
	}
	// Its session is not one that the client has open.
	if got, _ := w.tool("browser_snapshot", nil); !strings.Contains(got, "no session is open") {
		t.Error(got)
	}
}

func TestTaskTellsHowFarItIs(t *testing.T) {
	w := newFixture(t, &backend{drive: site(t)})
	params := &sdk.CallToolParams{Name: "browser_run_task", Arguments: args{"steps": loginSteps()}}
	params.SetProgressToken("p")
	if _, err := w.CallTool(context.Background(), params); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"0/5 navigate", "1/5 type #name", "2/5 type #password", "3/5 wait", "4/5 text", "5/5 done"} {
		select {
		case got := <-w.said:
			if got != want {
				t.Errorf("%q, not %q", got, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("nothing was said of %q", want)
		}
	}
}

func TestTaskStopsAtTheFirstFailureUnlessToldOtherwise(t *testing.T) {
	steps := []any{args{"do": "click", "selector": "#gone"}, args{"do": "eval", "js": "x"}, args{"do": "click", "selector": "#b"}}
	for _, c := range []struct {
		name string
		stop any
		want string
		fail bool
	}{
		{"by default", nil, "0 of 3 steps done, stopped at step 1\n1 click #gone: error stale_ref: nothing matches #gone (take a new snapshot)\nended at", true},
		{"told to go on", false, "1 of 3 steps done\n1 click #gone: error stale_ref: nothing matches #gone (take a new snapshot)\n" +
			"2 eval: error the script threw: ReferenceError: x\n3 click #b: ok at https://site.test/in\nended at", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newFixture(t, &backend{drive: site(t)})
			a := args{"steps": steps}
			if c.stop != nil {
				a["stopOnError"] = c.stop
			}
			got, out := w.tool("browser_run_task", a)
			if !strings.HasPrefix(got, c.want) || out.IsError != c.fail || pictures(out) != 1 {
				t.Errorf("%s", got)
			}
			if len(w.back.closedIDs()) != 1 {
				t.Error("the session is still open")
			}
		})
	}
}

func TestTaskIsBoundedInWhatItAnswers(t *testing.T) {
	w := newFixture(t, &backend{drive: site(t)})
	steps := append(slices.Repeat([]any{args{"do": "screenshot"}}, 25), slices.Repeat([]any{args{"do": "snapshot"}}, 25)...)
	got, out := w.tool("browser_run_task", args{"steps": steps})
	if n := len([]rune(got)); n > 8000+50*150 || !strings.Contains(got, "left out") {
		t.Errorf("%d characters", n)
	}
	if pictures(out) != maxPictures {
		t.Errorf("%d pictures", pictures(out))
	}
}

// A session of a task is closed whatever happens to the task.
func TestTaskClosesItsSession(t *testing.T) {
	// hanging drives a step that ends with its context, and says when it has begun.
	hanging := func() (*backend, chan struct{}) {
		under := make(chan struct{}, 10)
		return &backend{drive: func(ctx context.Context, _ Target, op browser.Operation) (any, error) {
			if _, looks := op.(browser.Tabs); looks {
				return browser.TabsResult{}, nil
			}
			under <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		}}, under
	}
	one := args{"steps": []any{args{"do": "snapshot"}, args{"do": "snapshot"}}}
	closed := func(t *testing.T, b *backend) {
		t.Helper()
		testenv.Eventually(t, 10*time.Second, func() bool { return len(b.closedIDs()) == 1 }, "the session is still open")
	}
	t.Run("when its time is over", func(t *testing.T) {
		back, _ := hanging()
		w := newFixture(t, back)
		got, out := w.tool("browser_run_task", args{"steps": one["steps"], "timeoutMs": 1000, "screenshot": false})
		if !out.IsError || !strings.Contains(got, "stopped at step 1\n1 snapshot: error timeout") {
			t.Error(got)
		}
		closed(t, w.back)
	})
	t.Run("when it is canceled", func(t *testing.T) {
		back, under := hanging()
		w := newFixture(t, back)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() {
			_, err := w.CallTool(ctx, &sdk.CallToolParams{Name: "browser_run_task", Arguments: one})
			done <- err
		}()
		<-under
		cancel()
		if err := <-done; err == nil {
			t.Error("it was not canceled")
		}
		closed(t, w.back)
	})
	t.Run("when the client goes", func(t *testing.T) {
		back, under := hanging()
		w := newFixture(t, back)
		done := make(chan error, 1)
		go func() {
			_, err := w.CallTool(context.Background(), &sdk.CallToolParams{Name: "browser_run_task", Arguments: one})
			done <- err
		}()
		<-under
		w.hangUp()
		if err := <-done; err == nil {
			t.Error("it was answered")
		}
		closed(t, w.back)
	})
	t.Run("when it panics", func(t *testing.T) {
		w := newFixture(t, &backend{drive: func(context.Context, Target, browser.Operation) (any, error) { panic("ouch") }})
		if got, out := w.tool("browser_run_task", one); !out.IsError {
			t.Error(got)
		}
		closed(t, w.back)
	})
}

func TestTaskLeavesItsSessionToThePersonWhoTakesIt(t *testing.T) {
	taken := problem.New(problem.TakenOver, "wait until it is handed back", "a person has taken the session over")
	for name, why := range map[string]error{"taken": taken, "another failure": problem.New(problem.StaleRef, "", "nothing matches")} {
		t.Run(name, func(t *testing.T) {
			answer := site(t)
			w := newFixture(t, &backend{drive: func(ctx context.Context, at Target, op browser.Operation) (any, error) {
				if _, typing := op.(browser.Act); typing {
					return nil, why
				}
				return answer(ctx, at, op)
			}})
			got, out := w.tool("browser_run_task", args{"steps": loginSteps(), "stopOnError": why != taken})
			if stays := len(w.back.closedIDs()) == 0; !out.IsError || stays != (why == taken) || stays != strings.HasSuffix(got, "\nsession s_0000000000000001 stays open: a person has it in hand") {
				t.Errorf("closed %q: %s", w.back.closedIDs(), got)
			}
			if steps := len(w.back.driven); why == taken && steps != 2 {
				t.Errorf("%d operations were asked of a session that a person has", steps)
			}
		})
	}
}

func TestTaskLeavesItsSessionToThePersonWhoTakesItAtItsEnd(t *testing.T) {
	for name, taken := range map[string]func(browser.Operation) bool{
		"when its tabs are listed": func(op browser.Operation) bool { _, is := op.(browser.Tabs); return is },
		"before its last picture":  func(op browser.Operation) bool { _, is := op.(browser.Screenshot); return is },
		"never":                    func(browser.Operation) bool { return false },
	} {
		t.Run(name, func(t *testing.T) {
			answer := site(t)
			w := newFixture(t, &backend{drive: func(ctx context.Context, at Target, op browser.Operation) (any, error) {
				if taken(op) {
					return nil, problem.New(problem.TakenOver, "", "a person has taken the session over")
				}
				return answer(ctx, at, op)
			}})
			got, _ := w.tool("browser_run_task", args{"steps": loginSteps()})
			if stays := len(w.back.closedIDs()) == 0; stays != (name != "never") || stays != strings.HasSuffix(got, "stays open: a person has it in hand") {
				t.Errorf("closed %q: %s", w.back.closedIDs(), got)
			}
		})
	}
}

func TestTaskSaysThatItsSessionIsStillOpen(t *testing.T) {
	w := newFixture(t, &backend{drive: site(t), fails: map[string]error{"Close": problem.New(problem.HostdUnreachable, "", "no answer")}})
	got, _ := w.tool("browser_run_task", args{"steps": loginSteps()})
	if !strings.HasSuffix(got, "session s_0000000000000001 could not be closed: hostd_unreachable") {
		t.Error(got)
	}
}
