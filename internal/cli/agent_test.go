package cli

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
)

// A reader who follows a log is told that its program ends over and over, and how.
func TestFollowingALogTellsOfStartsAndEnds(t *testing.T) {
	c := controlPlane(t, func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/events") {
			_, _ = io.WriteString(w, `{"name":"bot","jail":{"phase":"waiting","crash_loop":7,"exit":{"code":3,"cause":"exited"}}}`)
			return
		}
		if r.URL.Query().Get("after") != agent.Newest {
			t.Errorf("what was printed is asked for again: %s", r.URL)
		}
		_, _ = io.WriteString(w, "event: text\ndata: {\"type\":\"text\",\"text\":\"hello\"}\n\nevent: exit\ndata: {\"type\":\"exit\",\"exit\":{\"code\":3,\"cause\":\"exited\"}}\n\n"+
			"event: started\ndata: {\"type\":\"started\"}\n\nevent: end\ndata: {}\n\n")
	})
	var told []string
	err := tellRuns(t.Context(), c, "bot", "", func(text string) { told = append(told, text) })
	want := []string{"crash loop (7 times, last: status 3)", "the program has ended: status 3; crash loop (7 times, last: status 3)", "the program has started"}
	if err != nil || !slices.Equal(told, want) {
		t.Errorf("%q, %v", told, err)
	}
}

// agentPrinted is `printed STREAM FILE`: what is in the file was printed by every agent.
func agentPrinted(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: printed STREAM FILE")
	}
	k := ts.Value(fixtureKey{}).(*fixture).agents
	k.mu.Lock()
	defer k.mu.Unlock()
	k.log[jail.Stream(args[0])] = ts.ReadFile(args[1])
}

// wantTyped is `typed FILE`: agents were typed what is in it.
func wantTyped(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: typed FILE")
	}
	k := ts.Value(fixtureKey{}).(*fixture).agents
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.typed != ts.ReadFile(args[0]) {
		ts.Fatalf("what was typed is %q", k.typed)
	}
}

// loseHost is `losehost`: from now on nobody knows which jails there are.
func loseHost(ts *testscript.TestScript, _ bool, _ []string) {
	k := ts.Value(fixtureKey{}).(*fixture).agents
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lost = true
}

func TestWhatOfAPlanComesFromElsewhereIsHarmless(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	step := agent.Step{Tenant: "default", Name: hostile, Verb: agent.Create, Why: []string{hostile}, Driver: "linux", Source: hostile, Sharing: "dedicated",
		Workspace: hostile, Mode: "ro", Exposes: []string{hostile}, Problem: hostile, Hint: hostile, Code: problem.TemplateMissing}
	plan := agent.Plan{Steps: []agent.Step{step}, Warnings: []string{hostile}}
	var b strings.Builder
	if err := showPlan(&b, plan); err != nil {
		t.Fatal(err)
	}
	progressTo(&b, false)(step)
	report(&b, unfinished(plan))
	details := op.AgentDetails{Agent: op.Agent{Name: hostile, Tenant: "default", CreatedAt: now, Jail: &op.AgentJail{Driver: "linux", Source: hostile, Phase: jail.Phase(hostile),
		Problem: hostile, Hint: hostile, Code: "x", Exit: &op.AgentExit{Signal: hostile}}},
		Declared: &op.Declaration{Command: []string{hostile}, Workspace: hostile, Env: []string{hostile}, Allow: []op.DeclaredRule{{Target: hostile}}}, Exposes: []string{hostile}}
	cmd := &cobra.Command{}
	cmd.SetOut(&b)
	for _, blocks := range [][]op.Block{op.ShowAgent().View(details), op.ListAgents().View(op.Agents{Agents: []op.Agent{details.Agent}})} {
		if err := (&program{now: func() time.Time { return now }}).show(cmd, blocks); err != nil {
			t.Fatal(err)
		}
	}
	out := &logWriter{w: &b, mu: &sync.Mutex{}, terminal: true}
	for _, piece := range []string{strings.ReplaceAll(hostile, "\n", " ") + "\n", "a\x1b[2J", "b\u202e\tc\xff", "\n", "end\x07"} {
		if err := out.show([]byte(piece)); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.end(); err != nil {
		t.Fatal(err)
	}
	harmless(t, b.String())
	if !strings.Contains(b.String(), "a [2Jb") || !strings.HasSuffix(b.String(), "end \n") {
		t.Errorf("the log is %q", b.String())
	}
}

func TestAFileGetsEveryByteOfALog(t *testing.T) {
	var b bytes.Buffer
	out := &logWriter{w: &b, mu: &sync.Mutex{}}
	for _, piece := range []string{"a\x1b\x00", "\xff\r\n", "no end"} {
		if err := out.show([]byte(piece)); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.end(); err != nil || b.String() != "a\x1b\x00\xff\r\nno end" {
		t.Errorf("%q, %v", b.String(), err)
	}
}

func TestLastLines(t *testing.T) {
	for _, test := range []struct {
		text string
		n    int
		want string
	}{
		{"a\nb\nc\n", 2, "b\nc\n"}, {"a\nb\nc", 2, "b\nc"}, {"a\nb\n", 5, "a\nb\n"}, {"a\nb\n", 2, "a\nb\n"}, {"a\nb\n", 0, ""}, {"", 3, ""}, {"\n\n\n", 1, "\n"},
		{"no end", 1, "no end"},
	} {
		if got := test.text[lastLines([]byte(test.text), test.n):]; got != test.want {
			t.Errorf("the last %d of %q are %q, want %q", test.n, test.text, got, test.want)
		}
	}
}

func TestOnlyYesIsYes(t *testing.T) {
	for text, want := range map[string]bool{"y\n": true, " YES \n": true, "yes": true, "\n": false, "": false, "n\n": false, "yesterday\n": false, "no\ny\n": false,
		strings.Repeat("y", 200): false} {
		if got, err := answered(t.Context(), strings.NewReader(text)); err != nil || got != want {
			t.Errorf("%q is %t, %v", text, got, err)
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if yes, err := answered(ctx, r); yes || problem.CodeOf(err) != problem.Canceled {
		t.Errorf("an interrupted question is %t, %v", yes, err)
	}
	_ = w.Close() // the reader goes with it
	_ = r.Close()
}

func TestTheStepsOfAPlanAreCounted(t *testing.T) {
	plan := agent.Plan{}
	for _, v := range []agent.Verb{agent.Create, agent.Create, agent.Change, agent.Restart, agent.Remove, agent.Unchanged, agent.Extra} {
		plan.Steps = append(plan.Steps, agent.Step{Verb: v})
	}
	if got, want := inAll(plan), "2 to create, 1 to change, 1 to restart, 1 to remove, 1 unchanged, 1 not in the file (--prune removes them)"; got != want {
		t.Errorf("%s", got)
	}
	if got := inAll(agent.Plan{}); got != "nothing to do" {
		t.Errorf("%s", got)
	}
	for n := range 20 {
		plan.Steps = append(plan.Steps, agent.Step{Name: strings.Repeat("a", n+1), Problem: "x"})
	}
	if err := unfinished(plan); problem.CodeOf(err) != problem.JailFailed || !strings.HasSuffix(err.Error(), "and others") {
		t.Errorf("%v", err)
	}
	if err := unfinished(agent.Plan{Steps: []agent.Step{{Done: true}}}); err != nil {
		t.Errorf("%v", err)
	}
}
