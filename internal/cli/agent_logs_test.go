package cli

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/ringlog"
)

// What went to both streams is shown in the order in which it came, where both go to one place; each stream is whole.
func TestLogsAreInTheOrderInWhichTheyWerePrinted(t *testing.T) {
	w := newFixture(t)
	at := func(seconds int64) int64 { return time.Unix(1000+seconds, 0).UnixNano() }
	w.agents.log = map[jail.Stream]string{jail.Stdout: "one\nfour\nsix\n", jail.Stderr: "two\nthree\nfive\n"}
	w.agents.marks = map[jail.Stream][]ringlog.Mark{
		jail.Stdout: {{Offset: 100, At: at(1)}, {Offset: 104, At: at(4)}, {Offset: 109, At: at(6)}},
		jail.Stderr: {{Offset: 100, At: at(2)}, {Offset: 110, At: at(5)}},
	}
	if status := Main(context.Background(), "v1", []string{"agent", "create", "dev-bot"}, new(bytes.Buffer), new(bytes.Buffer)); status != 0 {
		t.Fatal(status)
	}
	run := func(out, errs *bytes.Buffer, args ...string) {
		t.Helper()
		if status := Main(context.Background(), "v1", append([]string{"agent", "logs", "dev-bot"}, args...), out, errs); status != 0 {
			t.Fatalf("%d %s", status, errs)
		}
	}
	var both bytes.Buffer
	run(&both, &both)
	if want := "one\ntwo\nthree\nfour\nfive\nsix\n"; both.String() != want {
		t.Errorf("%q, want %q", both.String(), want)
	}
	var out, errs bytes.Buffer
	run(&out, &errs)
	if got := []string{out.String(), errs.String()}; !slices.Equal(got, []string{w.agents.log[jail.Stdout], w.agents.log[jail.Stderr]}) {
		t.Errorf("by themselves: %q", got)
	}
	both.Reset()
	run(&both, &both, "--tail", "1")
	if want := "five\nsix\n"; both.String() != want {
		t.Errorf("the last lines are %q, want %q", both.String(), want)
	}
}
