package selftest

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// Report is the outcome of a run.
type Report struct {
	OK       bool             `json:"ok"`
	Cycles   int              `json:"cycles"`          // that succeeded
	Operator int              `json:"operator_cycles"` // with an account, that succeeded
	Stages   map[string]Stage `json:"stages"`
	Residue  []string         `json:"residue"` // what is on the host and was not before
	Failures []string         `json:"failures"`
}

// Stage is how long one stage of a cycle took, in milliseconds.
type Stage struct {
	P50 float64 `json:"p50_ms"`
	P95 float64 `json:"p95_ms"`
	Max float64 `json:"max_ms"`
}

// stages in the order in which they happen. "open" is what the caller waits for: clone to ready, and the API.
// "inject" is what an operator session adds.
var stages = []string{"clone", "attach", "start", "ready", "inject", "open", "navigate", "teardown"}

func (r *run) report() Report {
	out := Report{Cycles: r.done, Operator: r.operated, Stages: map[string]Stage{}, Residue: []string{}, Failures: append([]string{}, r.failures...)}
	for _, name := range stages {
		if times := r.times[name]; len(times) > 0 {
			out.Stages[name] = summary(times)
		}
	}
	for _, t := range r.residue {
		out.Residue = append(out.Residue, t.String())
	}
	out.OK = len(out.Failures) == 0 && len(out.Residue) == 0 && out.Cycles == r.Cycles && out.Operator == r.Cycles
	return out
}

// summary takes the nearest rank: with fewer than twenty cycles the 95th percentile is the largest.
func summary(times []time.Duration) Stage {
	sorted := slices.Sorted(slices.Values(times))
	at := func(percent int) float64 {
		return float64(sorted[(percent*len(sorted)+99)/100-1].Microseconds()) / 1000
	}
	return Stage{P50: at(50), P95: at(95), Max: at(100)}
}

// maxShown bounds what is printed for people.
const maxShown = 40

// Write prints the report for people.
func (r Report) Write(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "stage\tp50 ms\tp95 ms\tmax ms\t")
	for _, name := range stages {
		if s, ok := r.Stages[name]; ok {
			fmt.Fprintf(table, "%s\t%.1f\t%.1f\t%.1f\t\n", name, s.P50, s.P95, s.Max)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, f := range r.Failures {
		fmt.Fprintln(w, "failed:", f)
	}
	for i, left := range r.Residue {
		if i == maxShown {
			fmt.Fprintf(w, "and %d more; --json lists them all\n", len(r.Residue)-maxShown)
			break
		}
		fmt.Fprintln(w, "left on the host:", left)
	}
	verdict := "ok: everything that was tried works, and nothing is left on this host"
	if !r.OK {
		verdict = "not ok"
	}
	_, err := fmt.Fprintf(w, "%d cycles, %d with an account, %s\n", r.Cycles, r.Operator, verdict)
	return err
}
