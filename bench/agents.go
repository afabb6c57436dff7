//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/op"
)

const (
	// freshAgents are made at once, and steadyAgents are there when nothing is to be done.
	freshAgents, steadyAgents = 20, 50
	// printedLines come from one agent.
	printedLines = 1_000_000
)

// fleet is a file with n agents that wait.
func fleet(n int) string {
	var b strings.Builder
	b.WriteString("clawbots:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - name: bot-%d\n    command: [/bin/sleep, infinity]\n    limits: {state: 16MiB, memory: 32MiB}\n", i)
	}
	return b.String()
}

// agents measures agents, with the template clawbot.
func (b *bench) agents(ctx context.Context) {
	if _, err := os.Stat(filepath.Join(b.templates, "clawbot", "template.json")); err != nil {
		b.leaveOut("agents", "there is no template clawbot; run make templates")
		return
	}
	x := b.boxes[cold]
	check(attempt(func() { b.syncs(ctx, x) }), attempt(func() { b.spawned(ctx, x) }), attempt(func() { b.printed(ctx, x) }))
}

// sync makes the instance match a file.
func (x *testInstance) sync(ctx context.Context, text string) agent.Plan {
	plan, err := x.api.SyncAgents(ctx, agent.SyncRequest{Source: "clawbots.yml", Text: text, Dir: "/", Prune: true}, nil)
	for _, s := range plan.Steps {
		if s.Problem != "" {
			err = errors.Join(err, fmt.Errorf("%s %s: %s", s.Verb, s.Name, s.Problem))
		}
	}
	return must(plan, err)
}

// syncs times files that make many agents, and one that changes nothing.
func (b *bench) syncs(ctx context.Context, x *testInstance) {
	fresh, steady := fmt.Sprintf("agents: sync of %d new", freshAgents), fmt.Sprintf("agents: sync of %d unchanged", steadyAgents)
	b.inTurn(3, 0, func(t times) {
		t.timed(fresh, func() { x.sync(ctx, fleet(freshAgents)) })
		x.sync(ctx, "clawbots: []")
	})
	x.sync(ctx, fleet(steadyAgents))
	b.inTurn(10, 0, func(t times) {
		t.timed(steady, func() {
			if x.sync(ctx, fleet(steadyAgents)).Changes() {
				check(errors.New("a sync of what is there changes something"))
			}
		})
	})
	b.result.Figures[fresh].AtMost(2000)
	b.result.Figures[steady].AtMost(250)
	x.sync(ctx, "clawbots: [{name: bot, command: [/bin/sleep, infinity]}]")
}

// firstByte notes when something is written to it first.
type firstByte struct {
	text bytes.Buffer // not embedded: its ReadFrom would be called instead of Write
	at   time.Time
}

func (f *firstByte) Write(p []byte) (int, error) {
	if f.at.IsZero() {
		f.at = time.Now()
	}
	return f.text.Write(p)
}

// spawned times a program from the request to the first byte that it prints: in a jail of its own, in the agent's jail, by
// the command line, and plainly on this host.
func (b *bench) spawned(ctx context.Context, x *testInstance) {
	const name = "agents: spawn to first byte, "
	line := []string{"/bin/echo", "here"}
	attach := func(exec bool) func(*firstByte) {
		return func(out *firstByte) {
			must(x.api.Attach(ctx, "bot", exec, op.ProcessRequest{Argv: line}, client.Streams{Out: out, Err: out}))
		}
	}
	run := func(out *firstByte, cmd *exec.Cmd) {
		cmd.Stdout = out
		check(cmd.Run())
	}
	ways := map[string]func(*firstByte){
		"jail of its own":     attach(false),
		"in the agent's jail": attach(true),
		"command clawjail spawn": func(out *firstByte) {
			run(out, x.Command(ctx, append([]string{"spawn", "--agent", "bot", "--"}, line...)...))
		},
		"plain process": func(out *firstByte) { run(out, exec.CommandContext(ctx, line[0], line[1:]...)) },
	}
	b.inTurn(30, 0, func(t times) {
		for way, start := range ways {
			var out firstByte
			began := time.Now()
			start(&out)
			if out.text.String() != "here\n" {
				check(fmt.Errorf("%s: a program printed %q", way, out.text.String()))
			}
			t.add(name+way, out.at.Sub(began))
		}
	})
	b.result.Figures[name+"jail of its own"].AtMost(25)
	b.result.Figures[name+"in the agent's jail"].AtMost(12)
	b.result.Beside("plain process", name+"plain process", name+"jail of its own", name+"in the agent's jail", name+"command clawjail spawn")
}

// printed times many lines of an agent on their way into its files, next to a pipe that is only counted.
func (b *bench) printed(ctx context.Context, x *testInstance) {
	script := fmt.Sprintf(`yes '{"type":"tick","text":"forty characters of something or other"}' | head -n %d`, printedLines)
	began := time.Now()
	counted := must(exec.CommandContext(ctx, "/bin/sh", "-c", script+" | wc -c").Output())
	alone := time.Since(began)
	want := must(strconv.ParseInt(strings.TrimSpace(string(counted)), 10, 64))
	x.sync(ctx, "clawbots:\n  - name: bot\n    command: [/bin/sleep, infinity]\n  - name: flood\n    restart: never\n    limits: {cpu: 2}\n"+
		fmt.Sprintf("    command: [/bin/sh, -c, %q]\n", "sleep 1; "+script+"; sleep infinity"))
	reached := func(minimum int64) func() bool {
		return func() bool {
			end := must(x.api.AgentLog(ctx, jail.LogRequest{Name: "flood", Stream: jail.Stdout, Offset: -1})).End
			if end > want {
				check(fmt.Errorf("%d bytes arrived of %d", end, want))
			}
			return end >= minimum
		}
	}
	await(time.Minute, time.Millisecond, "the flood begins", reached(1))
	began = time.Now()
	await(time.Minute, 2*time.Millisecond, "the flood arrives", reached(want))
	const name, peer = "agents: lines printed into files", "agents: lines through a plain pipe"
	b.result.Value(name, "1/s", printedLines/time.Since(began).Seconds()).AtLeast(100_000)
	b.result.Value(peer, "1/s", printedLines/alone.Seconds())
	b.result.Beside("plain pipe", peer, name)
}

// templatesPart times the command that shows a template to be unchanged, next to the same command that does nothing.
func (b *bench) templatesPart(ctx context.Context) {
	x := b.boxes[cold]
	const nothing, quick, whole = "templates: program that does nothing", "templates: verify --quick", "templates: verify"
	b.inTurn(5, 1, func(t times) {
		t.timed(nothing, func() { must(x.Run(ctx, "version")) })
		t.timed(quick, func() { must(x.Run(ctx, "template", "verify", "browser", "--quick")) })
		t.timed(whole, func() { must(x.Run(ctx, "template", "verify", "browser")) })
	})
	b.result.Beside("program that does nothing", nothing, quick, whole)
}
