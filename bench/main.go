//go:build linux

// Command bench measures clawjail next to what it is compared with, in one run, because machines are noisy: the same
// browser started plainly on this host, and by docker run from the same root filesystem.
//
//	make bench
//
// It prints a table and appends one JSON line to bench/results/bench.jsonl, so that figures can be compared over
// time. It needs root and the template "browser"; without Docker, or without the packages of stock clients, it says so
// and leaves out what is measured with them.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench: error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	binary := flag.String("binary", "bin/clawjail", "the program to measure")
	templates := flag.String("templates", "/var/lib/clawjail/templates", "folder of the templates")
	runs := flag.Int("runs", 25, "rounds of each start")
	cycles := flag.Int("cycles", 1000, "cycles of the growth test; 0 leaves it out")
	only := flag.String("only", "", "measure one part: "+strings.Join(parts(), ", "))
	out := flag.String("out", "bench/results/bench.jsonl", "file that the result is appended to")
	flag.Parse()
	if os.Geteuid() != 0 {
		return fmt.Errorf("it needs root: sudo bin/bench")
	}
	if *only != "" && !slices.Contains(parts(), *only) {
		return fmt.Errorf("%q is none of the parts, which are %s", *only, strings.Join(parts(), ", "))
	}
	path, err := filepath.Abs(*binary)
	if err != nil {
		return err
	}
	b := &bench{binary: path, templates: *templates, runs: *runs, cycles: *cycles, only: *only,
		result: result{Time: time.Now().UTC().Truncate(time.Second), Host: host(), Figures: map[string]figure{}}}
	if err := b.all(ctx); err != nil {
		return err
	}
	if err := b.result.print(os.Stdout); err != nil {
		return err
	}
	return b.result.appendTo(*out)
}

// result is one line of the results.
type result struct {
	Time    time.Time         `json:"time"`
	Host    map[string]string `json:"host"`
	Figures map[string]figure `json:"figures"`
	Notes   []string          `json:"notes,omitempty"`
}

// figure is one measured thing. Of a single value only P50 is set.
type figure struct {
	Unit  string   `json:"unit"`
	N     int      `json:"n"`
	P50   float64  `json:"p50"`
	P95   float64  `json:"p95,omitempty"`
	Max   float64  `json:"max,omitempty"`
	Floor *float64 `json:"floor,omitempty"` // the p50, or the value, is to be at most this
	Met   *bool    `json:"met,omitempty"`
}

func host() map[string]string {
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease") // every Linux has it
	load, _ := os.ReadFile("/proc/loadavg")
	return map[string]string{
		"cpus": fmt.Sprint(runtime.NumCPU()), "kernel": strings.TrimSpace(string(kernel)), "go": runtime.Version(),
		"load_before": strings.TrimSpace(string(load)),
	}
}

// times adds durations as milliseconds.
func (r *result) times(name string, all []time.Duration) figure {
	var ms []float64
	for _, d := range all {
		ms = append(ms, float64(d.Microseconds())/1000)
	}
	slices.Sort(ms)
	f := figure{Unit: "ms", N: len(ms)}
	if len(ms) > 0 {
		f.P50, f.P95, f.Max = ms[len(ms)/2], ms[min(len(ms)*95/100, len(ms)-1)], ms[len(ms)-1]
	}
	r.Figures[name] = f
	return f
}

func (r *result) value(name, unit string, v float64) {
	r.Figures[name] = figure{Unit: unit, N: 1, P50: v}
}

// floor says what a figure is to be at most. atLeast turns it round.
func (r *result) floor(name string, limit float64, atLeast bool) {
	f := r.Figures[name]
	met := f.P50 <= limit
	if atLeast {
		met = f.P50 >= limit
	}
	f.Floor, f.Met = &limit, &met
	r.Figures[name] = f
}

func (r *result) note(format string, a ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, a...))
	fmt.Fprintf(os.Stderr, "bench: "+format+"\n", a...)
}

func (r *result) print(w *os.File) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "figure\tp50\tp95\tmax\tunit\tn\tfloor\t\t")
	var names []string
	for n := range r.Figures {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		f := r.Figures[n]
		floor, verdict := "", ""
		if f.Floor != nil {
			floor, verdict = digits(*f.Floor), "missed"
			if *f.Met {
				verdict = "met"
			}
		}
		if f.N > 1 {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t\n", n, digits(f.P50), digits(f.P95), digits(f.Max), f.Unit, f.N, floor, verdict)
		} else {
			fmt.Fprintf(t, "%s\t%s\t\t\t%s\t\t%s\t%s\t\n", n, digits(f.P50), f.Unit, floor, verdict)
		}
	}
	return t.Flush()
}

// digits writes small figures more exactly.
func digits(v float64) string {
	if v > -10 && v < 10 && v != 0 {
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.1f", v)
}

func (r *result) appendTo(path string) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if _, err := f.Write(append(line, '\n')); err != nil {
		return err
	}
	fmt.Println("appended to", path)
	return f.Close()
}
