//go:build linux

// Command bench measures clawjail next to what it is compared with, in one run, because machines are noisy: the same
// browser started plainly on this host and by docker run from the same root filesystem, a proxy and a relay that do nothing
// else, the bare protocol, a plain process. The Go benchmarks of the packages are a part of it.
//
//	make bench
//	bin/bench -only starts,arena
//	bin/bench -table bench/results/2026-11-22T2331Z.json
//	bin/bench -compare bench/results/A.json,bench/results/B.json
//	bin/bench -page bench/results/A.json
//
// A run writes one file, bench/results/TIME.json, whose form is package report's, and prints it as a table. It needs root
// and the templates; without Docker, or without the packages of stock clients, it says so and leaves out what is measured
// with them. A run that is interrupted ends what it started, and writes nothing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/clawjail/clawjail/bench/report"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := attempt(func() { run(ctx) }); err != nil {
		fmt.Fprintln(os.Stderr, "bench: error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) {
	b := &bench{began: time.Now(), boxes: map[int]*testInstance{}}
	binary := flag.String("binary", "bin/clawjail", "the program to measure")
	flag.StringVar(&b.templates, "templates", "/var/lib/clawjail/templates", "folder of the templates")
	flag.IntVar(&b.runs, "runs", 25, "rounds of each start")
	flag.IntVar(&b.cycles, "cycles", 1000, "cycles of the growth test; 0 leaves it out")
	only := flag.String("only", "", "measure these parts, with commas between them: "+strings.Join(partNames(), ", "))
	out := flag.String("out", "bench/results", "folder that the file of the run is written to")
	table := flag.String("table", "", "print this file as a table, and measure nothing")
	compare := flag.String("compare", "", "print the difference of two files, A,B, and measure nothing")
	page := flag.String("page", "", "write the figures of this file into docs/figures.md, and measure nothing")
	flag.Parse()
	first, second, two := strings.Cut(*compare, ",")
	switch {
	case flag.NArg() > 0:
		check(fmt.Errorf("%q is no flag", flag.Arg(0)))
	case *table != "":
		check(must(report.Read(*table)).Table(os.Stdout, *table))
	case two:
		check(report.Difference(os.Stdout, must(report.Read(first)), must(report.Read(second))))
	case *compare != "":
		check(errors.New("-compare takes two files with a comma between them"))
	case *page != "":
		check(report.WritePage("docs/figures.md", *page))
	case os.Geteuid() != 0:
		check(errors.New("it needs root: sudo bin/bench"))
	case b.runs < 1 || b.cycles < 0:
		check(errors.New("-runs is at least 1, and -cycles at least 0"))
	default:
		if *only != "" {
			b.only = strings.Split(*only, ",")
		}
		b.binary = must(filepath.Abs(*binary))
		b.result = report.Run{Time: b.began.UTC().Truncate(time.Second), Commit: commit(), Host: host(), Only: b.only, Figures: map[string]*report.Figure{}}
		b.all(ctx)
		b.keep(*out)
	}
}

// keep writes and prints the results.
func (b *bench) keep(out string) {
	b.result.Took = time.Since(b.began).Round(time.Second).Seconds()
	if len(b.result.Figures) == 0 {
		check(fmt.Errorf("nothing was measured; nothing is written: %v %v", b.result.Failed, b.result.LeftOut))
	}
	check(b.result.Table(os.Stdout, must(b.result.Write(out))))
	if n := len(b.result.Failed); n > 0 {
		check(fmt.Errorf("%d parts failed", n))
	}
}

// commit is what the checkout is at; empty where git cannot say.
func commit() string {
	out, _ := exec.Command("git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*").Output()
	return strings.TrimSpace(string(out))
}

func host() map[string]string {
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease") // every Linux has it
	load, _ := os.ReadFile("/proc/loadavg")
	h := map[string]string{
		"cpus": fmt.Sprint(runtime.NumCPU()), "kernel": strings.TrimSpace(string(kernel)), "go": runtime.Version(),
		"load_before": strings.TrimSpace(string(load)),
	}
	if docker, err := exec.Command("docker", "--version").Output(); err == nil {
		h["docker"] = strings.TrimSpace(strings.TrimPrefix(string(docker), "Docker version "))
	}
	return h
}

type bench struct {
	binary, templates string
	runs, cycles      int
	only              []string // the names of parts; empty is all
	result            report.Run

	began  time.Time
	site   *site                 // what browsers load
	client *playwright           // nil while no part needs it, and when it is not installed
	boxes  map[int]*testInstance // instances by the size of their warm pool
	ends   []func() error
}

// The sizes of warm pools.
const cold, warm = 0, 2

// part is what can be measured alone.
type part struct {
	name    string
	boxes   []int // the instances that it needs
	own     bool  // what it leaves in them is in the way of others
	client  bool  // it needs Playwright
	measure func(*bench, context.Context)
}

// parts are measured one after the other, those that need the same beside each other.
func parts() []part {
	one, both := []int{cold}, []int{cold, warm}
	return []part{
		{name: "gateway", measure: (*bench).gatewayPart},
		{name: "agents", boxes: one, own: true, measure: (*bench).agents},
		{name: "templates", boxes: one, own: true, measure: (*bench).templatesPart},
		{name: "console", boxes: one, own: true, measure: (*bench).console},
		{name: "starts", boxes: both, measure: (*bench).starts},
		{name: "arena", boxes: both, client: true, measure: (*bench).arena},
		{name: "injection", boxes: both, measure: (*bench).warmInjection},
		{name: "identity", boxes: one, measure: (*bench).identity},
		{name: "memory", boxes: one, measure: (*bench).memory},
		{name: "sustained", boxes: one, measure: (*bench).sustained},
		{name: "twenty", boxes: one, measure: (*bench).twenty},
		{name: "growth", boxes: one, measure: (*bench).growth},
		{name: "driving", boxes: one, client: true, measure: (*bench).driving},
		{name: "snapshot", measure: (*bench).snapshot},
		{name: "go", measure: (*bench).goPart},
	}
}

func partNames() (names []string) {
	for _, p := range parts() {
		names = append(names, p.name)
	}
	return names
}

// all measures what was asked for. A part that fails is noted, and the others are measured all the same: it gives up only
// when nothing of this run is to be kept, because it was interrupted or what it started is not gone.
func (b *bench) all(ctx context.Context) {
	wanted := parts()
	for _, name := range b.only {
		if !slices.Contains(partNames(), name) {
			check(fmt.Errorf("%q is none of the parts, which are %s", name, strings.Join(partNames(), ", ")))
		}
	}
	if len(b.only) > 0 {
		wanted = slices.DeleteFunc(wanted, func(p part) bool { return !slices.Contains(b.only, p.name) })
	}
	b.site = startSite()
	defer b.site.Close()
	check(b.within(func() {
		b.atEnd(func() error {
			if b.client == nil {
				return b.endBoxes(nil)
			}
			return errors.Join(b.endBoxes(nil), b.client.end())
		})
		for n, p := range wanted {
			b.progress("part %d of %d: %s", n+1, len(wanted), p.name)
			err := b.one(ctx, p)
			if ctx.Err() != nil {
				check(fmt.Errorf("interrupted in part %s; nothing is written", p.name))
			}
			if err != nil {
				b.result.Failed = append(b.result.Failed, report.LeftOut{What: p.name, Why: err.Error()})
				b.progress("%s: failed: %v", p.name, err)
			}
		}
	}))
}

// one measures a part. It first starts the installations that the part needs, and ends those that it does not need, which would
// disturb it.
func (b *bench) one(ctx context.Context, p part) error {
	err := b.within(func() {
		check(b.endBoxes(p.boxes))
		if p.client && b.client == nil {
			b.client = startPlaywright(ctx)
		}
		if p.client && b.client == nil {
			b.leaveOut(p.name, "Playwright is not installed; run scripts/clients.sh")
			return
		}
		for _, size := range p.boxes {
			if b.boxes[size] == nil {
				b.boxes[size] = b.start(ctx, size)
			}
		}
		p.measure(b, ctx)
	})
	if p.own {
		err = errors.Join(err, b.endBoxes(nil))
	}
	return err
}

// within does something, and then what that has said to be done at its end, the last first.
func (b *bench) within(do func()) error {
	before := len(b.ends)
	err := attempt(do)
	for _, end := range slices.Backward(b.ends[before:]) {
		err = errors.Join(err, end())
	}
	b.ends = b.ends[:before]
	return err
}

func (b *bench) atEnd(end func() error) { b.ends = append(b.ends, end) }

// endBoxes ends the instances but those that are needed.
func (b *bench) endBoxes(needed []int) (err error) {
	for size, x := range b.boxes {
		if !slices.Contains(needed, size) {
			err = errors.Join(err, x.end())
			delete(b.boxes, size)
		}
	}
	return err
}

// progress prints a line for the person who waits, with the time that has passed.
func (b *bench) progress(format string, a ...any) {
	passed := time.Since(b.began).Round(time.Second)
	fmt.Fprintf(os.Stderr, "%5s  %s\n", passed, strings.ReplaceAll(fmt.Sprintf(format, a...), "\n", "\n       "))
}

// leaveOut keeps what is not measured, and why.
func (b *bench) leaveOut(what, format string, a ...any) {
	l := report.LeftOut{What: what, Why: fmt.Sprintf(format, a...)}
	b.result.LeftOut = append(b.result.LeftOut, l)
	b.progress("left out: %s: %s", l.What, l.Why)
}
