package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestMain(m *testing.M) {
	simulate()
	goleak.VerifyTestMain(m)
}

// sample has a result of every kind, with everything that is hard to print.
func sample() Report {
	return Report{Checks: []Result{
		{Name: "kernel", Status: OK, Message: "Linux 6.12.1", Hint: "not shown", Facts: map[string]any{"release": "6.12.1"}},
		{Name: "configuration", Status: Fail, Message: "clawjail.yml:3:1: limits.memory: is 0\nclawjail.yml:7:1: usr: unknown key", Hint: "correct the file"},
		{Name: "uid_1000", Status: Warn, Message: "user 1000 is anna, who can log in", Hint: "keep agents elsewhere"},
		{Name: "other_firewall", Status: Fail, Message: "another firewall \x1b[31mswallows\t it", Hint: "sudo nft insert rule\nwrite it down to keep it"},
		{Name: "sandboxed_renderer", Status: Skip, Message: "there is no template with a browser yet", Hint: "sudo clawjail template build browser"},
	}}
}

func TestReportIsReadByPeople(t *testing.T) {
	for name, signs := range map[string]bool{"report.txt": false, "terminal.txt": true} {
		var b strings.Builder
		if err := sample().Write(&b, signs); err != nil {
			t.Fatal(err)
		}
		testenv.Golden(t, "testdata/"+name, b.String())
	}
}

func TestReportIsReadByPrograms(t *testing.T) {
	text, err := json.MarshalIndent(sample(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	testenv.Golden(t, "testdata/report.json", string(text)+"\n")
}

// one runs a table of one check.
func one(ctx context.Context, h Host, root bool, f func(context.Context, *exam) Result) Report {
	return run(ctx, &exam{Host: h.complete()}, []check{{"it", root, f}})
}

func TestOneFailureMakesTheReportFail(t *testing.T) {
	for status, want := range map[Status]bool{OK: true, Warn: true, Skip: true, Fail: false} {
		r := one(t.Context(), Host{}, false, func(context.Context, *exam) Result { return result(status, "x") })
		if r.OK != want || r.Checks[0].Name != "it" || r.Count(status) != 1 {
			t.Errorf("%s: %+v", status, r)
		}
	}
}

func TestWhatNeedsRootIsLeftOutWithoutIt(t *testing.T) {
	ran := false
	check := func(context.Context, *exam) Result { ran = true; return fine("x") }
	r := one(t.Context(), Host{UID: 1001}, true, check)
	if ran || r.Checks[0].Status != Skip || !strings.Contains(r.Checks[0].Hint, "sudo") {
		t.Errorf("ran %v: %+v", ran, r)
	}
	if one(t.Context(), Host{UID: 0}, true, check); !ran {
		t.Error("it is left out for root too")
	}
}

func TestEveryCheckIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		r := one(t.Context(), Host{}, false, func(ctx context.Context, _ *exam) Result {
			<-ctx.Done()
			return failed(ctx.Err())
		})
		if took := time.Since(began); took != Bound || r.OK || !strings.Contains(r.Checks[0].Message, "did not end in time") {
			t.Errorf("after %s: %+v", took, r)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		hung := make(chan struct{})
		began := time.Now()
		r := one(t.Context(), Host{}, false, func(context.Context, *exam) Result { <-hung; return fine("late") })
		if took := time.Since(began); took != Bound+grace || r.OK || !strings.Contains(r.Checks[0].Message, "hung") {
			t.Errorf("after %s: %+v", took, r)
		}
		close(hung)
	})
}

func TestTheCheckThatStartsABrowserMayTakeLongerAndSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		told := time.Duration(0)
		e := &exam{Options{Slow: func(name string, bound time.Duration) {
			if told = time.Since(began); name != rendererCheck || bound != BrowserBound {
				t.Errorf("told of %s, %s", name, bound)
			}
		}}, Host{}}
		r := e.examine(t.Context(), check{rendererCheck, false, func(ctx context.Context, _ *exam) Result {
			<-ctx.Done()
			return failed(ctx.Err())
		}})
		if took := time.Since(began); took != BrowserBound || told != Bound || r.Status != Fail {
			t.Errorf("after %s, told after %s: %+v", took, told, r)
		}
		if !slices.ContainsFunc(table(), func(c check) bool { return c.bound() == BrowserBound }) {
			t.Error("no check of the table has that bound")
		}
	})
}

func TestWhatWasTriedIsUndoneAlsoWhenInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	undone, running := false, false
	h := Host{Trials: Trials{Undo: func(ctx context.Context) error {
		undone = true
		if running {
			t.Error("undone while a check ran")
		}
		return ctx.Err()
	}}}
	r := one(ctx, h, false, func(ctx context.Context, _ *exam) Result {
		running = true
		cancel()
		<-ctx.Done()
		running = false
		return failed(ctx.Err())
	})
	if !undone || r.OK || len(r.Checks) != 1 || r.Checks[0].Message != "it was interrupted" {
		t.Errorf("undone %v: %+v", undone, r)
	}
}

func TestWhatCannotBeUndoneIsAFailure(t *testing.T) {
	h := Host{Trials: Trials{Undo: func(context.Context) error { return errors.New("x is still mounted") }}}
	r := one(t.Context(), h, false, func(context.Context, *exam) Result { return fine("x") })
	if r.OK || len(r.Checks) != 2 || r.Checks[1].Name != "undo" || !strings.Contains(r.Checks[1].Message, "x is still mounted") || r.Checks[1].Hint == "" {
		t.Errorf("%+v", r)
	}
}

func TestErrorsOfTrialsKeepTheirHintAndCode(t *testing.T) {
	r := failed(errors.Join(problem.New(problem.DiskFull, "free some", "it is full")))
	if r.Status != Fail || r.Hint != "free some" || r.Facts["code"] != problem.DiskFull || r.Message != "it is full" {
		t.Errorf("%+v", r)
	}
}
