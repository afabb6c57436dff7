//go:build vm

package vm

import (
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
)

// only chooses checks, by their names.
var only = flag.String("only", "", "a `pattern` of the names of checks: no others are done, but for those that the rest stands on")

// check is one thing that a guest is tried for. Others follow it in the same guest.
type check struct {
	name string
	do   func(m *machine)
	// needed checks are done whichever are chosen: those after them could not begin otherwise.
	needed bool
}

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
	failed := 0
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", r.guest, r.check, r.result, r.took.Round(100*time.Millisecond))
		all += r.took
		if r.result != "ok" {
			failed++
		}
	}
	_ = w.Flush() // into memory
	fmt.Fprintf(&b, "%s: %d checks in %s, %d of them failed\n", time.Now().UTC().Format(time.DateOnly), len(rows), all.Round(time.Second), failed)
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

// do does the checks in their order. Each is a line of the result, with how long it took, and of the table. After one that failed the
// machine is in a state that nobody knows, so the rest is not tried.
func (m *machine) do(checks []check) {
	m.t.Helper()
	outer := m.t
	for _, c := range checks {
		began := time.Now()
		ok := outer.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			m.t = t
			defer func() {
				if t.Failed() && m.port != nil {
					r, err := m.ask(journal)
					t.Logf("the guest's journal: %v\n%s", err, r.Stdout)
				}
			}()
			c.do(m)
		})
		m.t = outer
		r := row{guest: m.about, check: c.name, result: "ok", took: time.Since(began)}
		if !ok {
			r.result = "FAILED"
		}
		rowsMu.Lock()
		rows = append(rows, r)
		rowsMu.Unlock()
		if !ok {
			outer.FailNow()
		}
		outer.Logf("ok: %s (%s)", c.name, r.took.Round(100*time.Millisecond))
	}
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
	text := tableOf([]row{{"Debian", "installs", "ok", time.Second}, {"Debian", "shows a page", "FAILED", 2 * time.Second}})
	if !strings.Contains(text, "Debian  shows a page  FAILED  2s\n") || !strings.Contains(text, "2 checks in 3s, 1 of them failed") {
		t.Errorf("the table is\n%s", text)
	}
}
