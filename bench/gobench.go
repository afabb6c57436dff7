//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
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
func (b *bench) goPart(ctx context.Context) error {
	var programs []string
	err := filepath.WalkDir(benchmarks, func(path string, d fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".test" {
			programs = append(programs, path)
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(programs) == 0 {
		b.leaveOut("go", "there are no programs in %s; run make bench", benchmarks)
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for n, program := range programs {
		relative, err := filepath.Rel(benchmarks, program)
		if err != nil {
			return err
		}
		folder := strings.TrimSuffix(relative, ".test")
		b.progress("benchmarks of package %d of %d: %s", n+1, len(programs), folder)
		if err := b.goPackage(ctx, program, folder); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", folder, err))
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return errors.Join(errs...)
}

// goPackage measures one package as often as there is time for.
func (b *bench) goPackage(ctx context.Context, program, folder string) error {
	all := benchmarked{values: map[string][]float64{}, units: map[string]string{}, skipped: map[string]string{}}
	began := time.Now()
	var err error
	for n := range goRounds {
		var out []byte
		out, err = b.goRound(ctx, program, folder)
		err = errors.Join(err, all.add(folder, out))
		if passed := time.Since(began); err != nil || ctx.Err() != nil || passed+passed/time.Duration(n+1) > packageTime {
			break
		}
	}
	for name, values := range all.values {
		b.result.Samples(name, all.units[name], values)
	}
	for name, why := range all.skipped {
		b.leaveOut(name, "%s", why)
	}
	return err // what was measured is kept all the same
}

// goRound runs a package's benchmarks once. They make jails, networks and servers, and take them away at their end: so
// an interruption waits for that.
func (b *bench) goRound(ctx context.Context, program, folder string) ([]byte, error) {
	path, err := filepath.Abs(program)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { b.progress("interrupted: %s ends what it has begun", folder) })()
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), packageLimit)
	defer cancel()
	cmd := exec.CommandContext(limited, path, "-test.run", "^$", "-test.bench", ".", "-test.benchtime", benchTime.String(), "-test.v")
	cmd.Dir = folder
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for this program alone
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("%w: %s", err, last(out.String(), 500))
	}
	return out.Bytes(), nil
}

// last is the end of a text.
func last(text string, most int) string { return text[max(0, len(text)-most):] }

// benchmarked is what the benchmarks of a package printed, round by round.
type benchmarked struct {
	values  map[string][]float64
	units   map[string]string
	skipped map[string]string // why, by name
}

func (m *benchmarked) add(folder string, out []byte) error {
	r := benchfmt.NewReader(bytes.NewReader(out), folder)
	var errs []error
	for r.Scan() {
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
			what, unit := metric(unit)
			if unit == notKept {
				continue
			}
			figure := goName(folder, name) + what
			m.values[figure] = append(m.values[figure], value)
			m.units[figure] = unit
		}
	}
	if err := r.Err(); err != nil && !errors.Is(err, io.EOF) {
		errs = append(errs, err)
	}
	lines := strings.Split(string(out), "\n")
	for n, line := range lines[:len(lines)-1] {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "--- SKIP: Benchmark")
		why := strings.TrimSpace(lines[n+1])
		// One that has figures, or gives no reason, skips no more than a part of itself.
		if ok && len(lines[n+1])-len(strings.TrimLeft(lines[n+1], " ")) >= 4 {
			m.skipped[goName(folder, name)] = why
		}
	}
	return errors.Join(errs...)
}

// notKept is instead of the unit of what a call allocates: that is for whoever works on it.
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
	if strings.HasSuffix(printed, "/s") {
		return ", " + strings.TrimSuffix(printed, "/s"), printed
	}
	first, second, two := strings.Cut(printed, "-")
	if !two {
		return ", " + printed, ""
	}
	units := map[string]string{"ms": "ms", "µs": "µs", "x": "×", "%core": "% of a core"}
	if u, ok := units[first]; ok {
		return ", " + second, u
	}
	if u, ok := units[second]; ok {
		return ", " + first, u
	}
	return ", " + printed, ""
}

// goName is the figure of a benchmark: below the subject that its package, or itself, belongs to.
func goName(folder, name string) string {
	full := folder + " " + name
	best := goSubject{"", filepath.Base(folder)}
	for _, s := range goSubjects() {
		if strings.HasPrefix(full, s.prefix) && len(s.prefix) > len(best.prefix) {
			best = s
		}
	}
	return best.subject + ": " + report.GoPrefix + strings.TrimPrefix(full, "internal/")
}

type goSubject struct{ prefix, subject string }

// goSubjects say what is about what. The longest prefix counts.
func goSubjects() []goSubject {
	return []goSubject{
		{"internal/jail", "start"}, {"internal/hostd", "start"},
		{"internal/jail/linux Storage", "clones"}, {"internal/jail/linux Volume", "clones"},
		{"internal/jail/linux Reserve", "network"}, {"internal/jail/linux Attach", "network"},
		{"internal/jail/linux Detach", "network"}, {"internal/jail/linux Firewall", "network"},
		{"internal/jail/linux TwentyAgents", "agents"}, {"internal/jail/linux Exec", "agents"},
		{"internal/agent", "agents"}, {"internal/ringlog", "agents"}, {"internal/hostd TwentyAgents", "agents"}, {"internal/hostd/keeper", "agents"},
		{"internal/browser", "drive"}, {"internal/browser Snapshot", "snapshot"}, {"internal/browser Live", "console"}, {"internal/cdp", "drive"},
		{"internal/console", "console"}, {"internal/gateway", "gateway"}, {"internal/policy", "gateway"}, {"internal/egress", "gateway"},
		{"internal/identity", "identity"}, {"internal/vault", "identity"}, {"internal/grant", "identity"}, {"internal/audit", "identity"},
		{"internal/cookies", "identity"}, {"internal/session", "identity"}, {"internal/store", "identity"}, {"internal/trawl", "identity"},
		{"internal/template", "templates"},
	}
}
