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
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/jail"
)

const (
	// freshAgents are made at once, and steadyAgents are there when nothing is to be done.
	freshAgents, steadyAgents = 20, 50
	// spawns is how many programs are started, one after the other.
	spawns = 30
	// printedLines come from one agent.
	printedLines = 1_000_000
)

// fleet is a file with so many agents that wait.
func fleet(n int) string {
	var b strings.Builder
	b.WriteString("clawbots:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - name: bot-%d\n    command: [/bin/sleep, infinity]\n    limits: {state: 16MiB, memory: 32MiB}\n", i)
	}
	return b.String()
}

// agents measures agents, with the template clawbot.
func (b *bench) agents(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(b.templates, "clawbot", "template.json")); err != nil {
		b.leaveOut("agents", "there is no template clawbot; run make templates")
		return nil
	}
	x := b.boxes[cold]
	return errors.Join(b.syncs(ctx, x), b.spawned(ctx, x), b.printed(ctx, x))
}

// sync makes the instance match a file.
func (x *box) sync(ctx context.Context, text string) (agent.Plan, error) {
	plan, err := x.api.SyncAgents(ctx, api.SyncRequest{Source: "clawbots.yml", Text: text, Dir: "/", Prune: true}, nil)
	for _, s := range plan.Steps {
		if s.Problem != "" {
			err = errors.Join(err, fmt.Errorf("%s %s: %s", s.Verb, s.Name, s.Problem))
		}
	}
	return plan, err
}

// syncs times files that make many agents, and one that changes nothing.
func (b *bench) syncs(ctx context.Context, x *box) error {
	made := func(text string) func() error {
		return func() error { _, err := x.sync(ctx, text); return err }
	}
	fresh, steady := fmt.Sprintf("agents: sync of %d new", freshAgents), fmt.Sprintf("agents: sync of %d unchanged", steadyAgents)
	_, err := b.inTurn(3, 0, func(t times) error {
		return errors.Join(t.timed(fresh, made(fleet(freshAgents))), made("clawbots: []")())
	})
	if err = errors.Join(err, made(fleet(steadyAgents))()); err != nil {
		return err
	}
	_, err = b.inTurn(10, 0, func(t times) error {
		return t.timed(steady, func() error {
			plan, err := x.sync(ctx, fleet(steadyAgents))
			if plan.Changes() {
				err = errors.Join(err, errors.New("a sync of what is there changes something"))
			}
			return err
		})
	})
	if err != nil {
		return err
	}
	b.result.Figures[fresh].AtMost(2000)
	b.result.Figures[steady].AtMost(250)
	return made("clawbots: [{name: bot, command: [/bin/sleep, infinity]}]")()
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
func (b *bench) spawned(ctx context.Context, x *box) error {
	const name = "agents: spawn to first byte, "
	line := []string{"/bin/echo", "here"}
	attach := func(exec bool) func(*firstByte) error {
		return func(out *firstByte) error {
			_, err := x.api.Attach(ctx, "bot", exec, api.ProcessRequest{Argv: line}, client.Streams{Out: out, Err: out})
			return err
		}
	}
	run := func(cmd func() *exec.Cmd) func(*firstByte) error {
		return func(out *firstByte) error {
			c := cmd()
			c.Stdout = out
			return c.Run()
		}
	}
	ways := map[string]func(*firstByte) error{
		"jail of its own":        attach(false),
		"in the agent's jail":    attach(true),
		"command clawjail spawn": run(func() *exec.Cmd { return x.Command(ctx, append([]string{"spawn", "--agent", "bot", "--"}, line...)...) }),
		"plain process":          run(func() *exec.Cmd { return exec.CommandContext(ctx, line[0], line[1:]...) }),
	}
	_, err := b.inTurn(spawns, 0, func(t times) error {
		for way, start := range ways {
			var out firstByte
			began := time.Now()
			if err := start(&out); err != nil || out.text.String() != "here\n" {
				return errors.Join(err, fmt.Errorf("%s: a program printed %q", way, out.text.String()))
			}
			t.add(name+way, out.at.Sub(began))
		}
		return nil
	})
	if err != nil {
		return err
	}
	b.result.Figures[name+"jail of its own"].AtMost(40)
	b.result.Beside("plain process", name+"plain process", name+"jail of its own", name+"in the agent's jail", name+"command clawjail spawn")
	return nil
}

// printed times many lines of an agent on their way into its files, next to a pipe that is only counted.
func (b *bench) printed(ctx context.Context, x *box) error {
	script := fmt.Sprintf(`yes '{"type":"tick","text":"forty characters of something or other"}' | head -n %d`, printedLines)
	began := time.Now()
	counted, err := exec.CommandContext(ctx, "/bin/sh", "-c", script+" | wc -c").Output()
	alone := time.Since(began)
	if err != nil {
		return err
	}
	var want int64
	if _, err := fmt.Sscan(string(counted), &want); err != nil {
		return err
	}
	text := "clawbots:\n  - name: bot\n    command: [/bin/sleep, infinity]\n  - name: flood\n    restart: never\n    limits: {cpu: 2}\n" +
		fmt.Sprintf("    command: [/bin/sh, -c, %q]\n", "sleep 1; "+script+"; sleep infinity")
	if _, err := x.sync(ctx, text); err != nil {
		return err
	}
	reach := func(least int64) func() (bool, error) {
		return func() (bool, error) {
			c, err := x.api.AgentLog(ctx, jail.LogRequest{Name: "flood", Stream: jail.Stdout, Offset: -1})
			if c.End > want {
				err = errors.Join(err, fmt.Errorf("%d bytes arrived of %d", c.End, want))
			}
			return c.End >= least, err
		}
	}
	if err := await(time.Minute, time.Millisecond, "the flood begins", reach(1)); err != nil {
		return err
	}
	began = time.Now()
	if err := await(time.Minute, 2*time.Millisecond, "the flood arrives", reach(want)); err != nil {
		return err
	}
	const name, peer = "agents: lines printed into files", "agents: lines through a plain pipe"
	b.result.Value(name, "1/s", printedLines/time.Since(began).Seconds()).AtLeast(100_000)
	b.result.Value(peer, "1/s", printedLines/alone.Seconds())
	b.result.Beside("plain pipe", peer, name)
	return nil
}
