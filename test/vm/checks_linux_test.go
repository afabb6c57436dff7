//go:build vm

package vm

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/clawjail/clawjail/test/vm/wire"
)

// only chooses checks, by their names.
var only = flag.String("only", "", "a `pattern` of the names of checks: no others are done, but for those that the rest stands on")

// check is one thing that a guest is tried for. Others follow it in the same guest.
type check struct {
	name string
	do   func(m *machine)
	// needed checks are done whichever are chosen: those after them could not begin otherwise.
	needed bool
	// undo is what puts the guest right when the check fails in the middle. What it does may be done already.
	undo string
}

// notReached is the result of a check that could not be done because of another one.
const notReached = "not reached"

// row is a line of the table at the end.
type row struct {
	guest, check, result string
	took                 time.Duration
}

var (
	rowsMu sync.Mutex
	rows   []row
)

func TestMain(m *testing.M) {
	status := m.Run()
	fmt.Print(tableOf(rows))
	if *only != "" && len(rows) == 0 {
		fmt.Printf("no check is called like %q\n", *only)
		status = 1
	}
	os.Exit(status)
}

// tableOf shows what was tried, where, and how it ended.
func tableOf(rows []row) string {
	if len(rows) == 0 {
		return ""
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nGUEST\tCHECK\tRESULT\tTOOK") // into memory
	var all time.Duration
	failed, unreached := 0, 0
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", r.guest, r.check, r.result, r.took.Round(100*time.Millisecond))
		all += r.took
		switch r.result {
		case "ok":
		case notReached:
			unreached++
		default:
			failed++
		}
	}
	_ = w.Flush() // into memory
	fmt.Fprintf(&b, "%s: %d checks in %s, %d of them failed, %d not reached\n", time.Now().UTC().Format(time.DateOnly), len(rows), all.Round(time.Second), failed, unreached)
	return b.String()
}

// chosen are the checks to do: all, or those of -only with what they stand on. Without any the test is skipped.
func chosen(t *testing.T, checks []check) []check {
	t.Helper()
	if *only == "" {
		return checks
	}
	pattern, err := regexp.Compile(*only)
	if err != nil {
		t.Fatal(err)
	}
	last := -1
	for n, c := range checks {
		if pattern.MatchString(c.name) {
			last = n
		}
	}
	if last < 0 {
		t.Skipf("no check of this guest is called like %q", *only)
	}
	var out []check
	for _, c := range checks[:last+1] {
		if c.needed || pattern.MatchString(c.name) {
			out = append(out, c)
		}
	}
	return slices.Clip(out)
}

// inOrder does checks in their order. One that fails does not keep the others from being done: what it left is put right before the
// next. They are not reached where that does not work, or where the failed one is needed.
func inOrder(checks []check, try, putRight func(check) bool, unreached func(c check, why string)) {
	why := ""
	for n, c := range checks {
		switch {
		case why != "":
			unreached(c, why)
		case try(c):
		case c.needed:
			why = fmt.Sprintf("it needs %q", c.name)
		case n+1 < len(checks) && !putRight(c):
			why = fmt.Sprintf("the guest did not come back after %q", c.name)
		}
	}
}

// do starts the guest, does the checks in their order, and has the guest end. Each check is a line of the result, with how long it took,
// and of the table. After one that failed the script again is run, and the script ready until it ends with 0: the guest can be used.
func (m *machine) do(checks []check, again, ready string) {
	m.t.Helper()
	outer := m.t
	in := func(name string, do func()) bool {
		defer func() { m.t = outer }()
		return outer.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) { m.t = t; do() })
	}
	note := func(c check, result, why string, took time.Duration) {
		rowsMu.Lock()
		rows = append(rows, row{guest: m.about, check: c.name, result: result, took: took})
		rowsMu.Unlock()
		outer.Logf("%s: %s (%s)", result, c.name, cmp.Or(why, took.Round(100*time.Millisecond).String()))
	}
	unreached := func(c check, why string) { note(c, notReached, why, 0) }
	if !in("the guest starts", m.boot) {
		for _, c := range checks {
			unreached(c, "the guest did not start")
		}
		return
	}
	inOrder(checks, func(c check) bool {
		began, result := time.Now(), "FAILED"
		ok := in(c.name, func() { m.tell(c) })
		if ok {
			result = "ok"
		}
		note(c, result, "", time.Since(began))
		return ok
	}, func(c check) bool {
		return in("after "+c.name, func() { m.putRight(c.undo+"\n"+again, ready) })
	}, unreached)
	if !outer.Failed() {
		m.off()
	}
}

// tell does a check, and shows the guest's journal when it fails.
func (m *machine) tell(c check) {
	t := m.t
	defer func() {
		if t.Failed() && m.port != nil {
			r, err := m.ask(journal)
			t.Logf("the guest's journal: %v\n%s", err, r.Stdout)
		}
	}()
	c.do(m)
}

// putRight makes the guest what it was before a check that failed.
func (m *machine) putRight(undo, ready string) {
	m.t.Helper()
	undone := func() error {
		_, err := m.ask(wire.Request{Run: []string{"/bin/sh", "-uc", undo}, Seconds: int(m.longer(commandLimit).Seconds())})
		return err
	}
	if err := undone(); err != nil { // it is off, or hangs
		m.cut()
		m.words = ""
		m.boot()
		if err := undone(); err != nil {
			m.t.Fatal(err)
		}
	}
	if m.words != "" { // of the kernel's command line
		m.words = ""
		m.reboot()
	}
	m.eventually(commandLimit, ready)
}

func TestChecksAreChosenWithWhatTheyStandOn(t *testing.T) {
	all := []check{{name: "installs", needed: true}, {name: "shows a page"}, {name: "keeps agents over restarts"}, {name: "leaves nothing"}}
	for pattern, want := range map[string]string{"": "installs,shows a page,keeps agents over restarts,leaves nothing", "restart": "installs,keeps agents over restarts",
		"installs": "installs", "shows|leaves": "installs,shows a page,leaves nothing"} {
		was := *only
		*only = pattern
		var got []string
		for _, c := range chosen(t, all) {
			got = append(got, c.name)
		}
		*only = was
		if strings.Join(got, ",") != want {
			t.Errorf("%q chooses %v, want %s", pattern, got, want)
		}
	}
	text := tableOf([]row{{"Debian", "installs", "ok", time.Second}, {"Debian", "shows a page", "FAILED", 2 * time.Second}, {"Debian", "leaves nothing", notReached, 0}})
	if !strings.Contains(text, "Debian  shows a page    FAILED       2s\n") || !strings.Contains(text, "Debian  leaves nothing  not reached  0s\n") ||
		!strings.Contains(text, "3 checks in 3s, 1 of them failed, 1 not reached") {
		t.Errorf("the table is\n%s", text)
	}
}

func TestAFailedCheckDoesNotEndTheRunOfAGuest(t *testing.T) {
	all := []check{{name: "installs", needed: true}, {name: "shows a page"}, {name: "passes its self-test"}, {name: "is removed", needed: true}, {name: "is half installed"}}
	for name, test := range map[string]struct{ fails, stays, want string }{
		"all are well":                 {"", "", "installs:ok, shows a page:ok, passes its self-test:ok, is removed:ok, is half installed:ok"},
		"one fails":                    {"shows a page", "", "installs:ok, shows a page:FAILED, put right, passes its self-test:ok, is removed:ok, is half installed:ok"},
		"one fails for good":           {"shows a page", "shows a page", `installs:ok, shows a page:FAILED, put right, passes its self-test:the guest did not come back after "shows a page", is removed:the guest did not come back after "shows a page", is half installed:the guest did not come back after "shows a page"`},
		"one that others need":         {"is removed", "", `installs:ok, shows a page:ok, passes its self-test:ok, is removed:FAILED, is half installed:it needs "is removed"`},
		"the last, with nothing after": {"is half installed", "", "installs:ok, shows a page:ok, passes its self-test:ok, is removed:ok, is half installed:FAILED"},
	} {
		var got []string
		inOrder(all, func(c check) bool {
			result := "ok"
			if c.name == test.fails {
				result = "FAILED"
			}
			got = append(got, c.name+":"+result)
			return result == "ok"
		}, func(c check) bool {
			got = append(got, "put right")
			return c.name != test.stays
		}, func(c check, why string) { got = append(got, c.name+":"+why) })
		if text := strings.Join(got, ", "); text != test.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, text, test.want)
		}
	}
}
