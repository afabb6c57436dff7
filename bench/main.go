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
	b := &bench{began: time.Now(), boxes: map[int]*box{}}
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
		b.whole(ctx, *out)
	}
}

// whole measures, and writes and prints the results.
func (b *bench) whole(ctx context.Context, out string) {
	b.result = report.Run{Time: b.began.UTC().Truncate(time.Second), Commit: commit(), Host: host(), Only: b.only, Figures: map[string]*report.Figure{}}
	b.all(ctx)
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
