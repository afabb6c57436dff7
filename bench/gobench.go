//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/perf/benchfmt"

	"github.com/clawjail/clawjail/bench/report"
)

const (
	// benchmarks is where scripts/bench.sh puts a package's benchmarks: internal/grant.test are those of internal/grant.
	benchmarks = "bin/benchmarks"
	// benchTime is for how long each is measured at least, each time.
	benchTime = 20 * time.Millisecond
	// A package is measured goRounds times, but not again when packageTime has passed.
	goRounds, packageTime = 5, 4 * time.Second
	// packageLimit is how long one round of a package may take.
	packageLimit = 4 * time.Minute
)

// goPart runs the benchmarks of the packages, one after the other.
func (b *bench) goPart(ctx context.Context) {
	var folders []string
	_ = filepath.WalkDir(benchmarks, func(path string, _ fs.DirEntry, err error) error { // without the folder there are none
		if folder, ok := strings.CutSuffix(path, ".test"); ok {
			folders = append(folders, strings.TrimPrefix(folder, benchmarks+"/"))
		}
		return err
	})
	if len(folders) == 0 {
		b.leaveOut("go", "there are no programs in %s; run make bench", benchmarks)
	}
	var errs []error
	for n, folder := range folders {
		check(ctx.Err())
		b.progress("benchmarks of package %d of %d: %s", n+1, len(folders), folder)
		var out bytes.Buffer
		if err := b.goPackage(ctx, folder, &out); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w: %s", folder, err, last(out.String(), 500)))
		}
		values, units, skipped := printedBy(folder, out.String()) // what was measured is kept all the same
		for name, all := range values {
			b.result.Samples(name, units[name], all)
		}
		for name, why := range skipped {
			b.leaveOut(name, "%s", why)
		}
	}
	check(errs...)
}

// goPackage runs a package's benchmarks as often as there is time for. They make jails, networks and servers, and take them away
// at their end: so an interruption waits for that.
func (b *bench) goPackage(ctx context.Context, folder string, out io.Writer) error {
	defer context.AfterFunc(ctx, func() { b.progress("interrupted: %s ends what it has begun", folder) })()
	program := must(filepath.Abs(filepath.Join(benchmarks, folder+".test")))
	began := time.Now()
	for n := range goRounds {
		if passed := time.Since(began); n > 0 && passed+passed/time.Duration(n) > packageTime || n > 0 && ctx.Err() != nil {
			return nil
		}
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), packageLimit)
		cmd := exec.CommandContext(limited, program, "-test.run", "^$", "-test.bench", ".", "-test.benchtime", benchTime.String(), "-test.v")
		cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = folder, out, out, 10*time.Second
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for this program alone
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		err := cmd.Run()
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// last is the end of a text.
func last(text string, limit int) string { return text[max(0, len(text)-limit):] }

// printedBy is what the benchmarks of a package printed in all rounds: the values and units of figures, and why some were skipped.
func printedBy(folder, out string) (values map[string][]float64, units, skipped map[string]string) {
	values, units, skipped = map[string][]float64{}, map[string]string{}, map[string]string{}
	for r := benchfmt.NewReader(strings.NewReader(out), folder); r.Scan(); {
		result, ok := r.Result().(*benchfmt.Result)
		if !ok {
			continue // a unit's description, or a line of a log that begins as a result does
		}
		base, parts := result.Name.Parts()
		name := string(base)
		for _, p := range parts {
			if p[0] == '/' {
				name += string(p) // the other kind is the number of processors
			}
		}
		for _, v := range result.Values {
			value, unit := v.Value, v.Unit
			if v.OrigUnit != "" { // as it was printed
				value, unit = v.OrigValue, v.OrigUnit
			}
			if what, unit := metric(unit); unit != notKept {
				figure := goName(folder, name) + what
				values[figure], units[figure] = append(values[figure], value), unit
			}
		}
	}
	lines := strings.Split(out, "\n")
	for n, line := range lines[:len(lines)-1] {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "--- SKIP: Benchmark")
		// One that has figures, or gives no reason, skips no more than a part of itself.
		if ok && strings.HasPrefix(lines[n+1], "    ") {
			skipped[goName(folder, name)] = strings.TrimSpace(lines[n+1])
		}
	}
	return values, units, skipped
}

// notKept stands for the unit of allocations, which are left out: they matter only to developers.
const notKept = "not kept"

// metric takes the unit apart that a benchmark gave to a value: what it is a unit of, and the unit itself.
func metric(printed string) (what, unit string) {
	switch printed {
	case "ns/op":
		return "", "ns"
	case "B/op", "allocs/op":
		return "", notKept
	case "ms/snapshot":
		return ", each", "ms"
	}
	if rate, ok := strings.CutSuffix(printed, "/s"); ok {
		return ", " + rate, printed
	}
	units := map[string]string{"ms": "ms", "µs": "µs", "x": "×", "%core": "% of a core"}
	first, second, _ := strings.Cut(printed, "-")
	switch {
	case units[first] != "":
		return ", " + second, units[first]
	case units[second] != "":
		return ", " + first, units[second]
	}
	return ", " + printed, ""
}

// goName is the figure of a benchmark: below the subject that its package, or itself, belongs to.
func goName(folder, name string) string {
	full := strings.TrimPrefix(folder+" "+name, "internal/")
	best, subject := "", filepath.Base(folder)
	for s, prefixes := range goSubjects() {
		for prefix := range strings.SplitSeq(prefixes, ", ") {
			if strings.HasPrefix(full, prefix) && len(prefix) > len(best) {
				best, subject = prefix, s
			}
		}
	}
	return subject + ": " + report.GoPrefix + full
}

// goSubjects say what is about what: packages of internal, and benchmarks of them. The longest counts.
func goSubjects() map[string]string {
	return map[string]string{
		"start":     "jail, hostd",
		"clones":    "jail/linux Storage, jail/linux Volume",
		"network":   "jail/linux Reserve, jail/linux Attach, jail/linux Detach, jail/linux Firewall",
		"agents":    "agent, ringlog, jail/linux TwentyAgents, jail/linux Exec, hostd TwentyAgents, hostd/agents",
		"drive":     "browser, cdp",
		"snapshot":  "browser Snapshot",
		"console":   "console, browser Live",
		"gateway":   "gateway, policy, egress",
		"identity":  "identity, vault, grant, audit, cookies, session, store",
		"templates": "template",
	}
}
