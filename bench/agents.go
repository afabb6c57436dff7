//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
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

// agentsPart measures agents: in an instance of its own, with the template clawbot.
func (b *bench) agentsPart(ctx context.Context) (err error) {
	if !b.hasTemplate("clawbot") {
		b.leaveOut("agents", "there is no template clawbot; run make templates")
		return nil
	}
	x, err := b.start(ctx, 1_879_700_000, "warm_pool:\n  size: 0\n")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.end()) }()
	return errors.Join(b.syncs(ctx, x), b.spawned(ctx, x), b.printed(ctx, x))
}

func syncAgents(ctx context.Context, x *box, text string) (agent.Plan, time.Duration, error) {
	began := time.Now()
	plan, err := x.api.SyncAgents(ctx, api.SyncRequest{Source: "clawbots.yml", Text: text, Dir: "/", Prune: true}, nil)
	took := time.Since(began)
	for _, s := range plan.Steps {
		if s.Problem != "" {
			err = errors.Join(err, fmt.Errorf("%s %s: %s", s.Verb, s.Name, s.Problem))
		}
	}
	return plan, took, err
}

// syncs times files that make many agents, and one that changes nothing.
func (b *bench) syncs(ctx context.Context, x *box) error {
	var fresh, steady []time.Duration
	for range 3 {
		_, took, err := syncAgents(ctx, x, fleet(freshAgents))
		if err != nil {
			return err
		}
		fresh = append(fresh, took)
		if _, _, err := syncAgents(ctx, x, "clawbots: []"); err != nil {
			return err
		}
	}
	if _, _, err := syncAgents(ctx, x, fleet(steadyAgents)); err != nil {
		return err
	}
	for range 10 {
		plan, took, err := syncAgents(ctx, x, fleet(steadyAgents))
		if err != nil {
			return err
		}
		if plan.Changes() {
			return errors.New("a sync of what is there changes something")
		}
		steady = append(steady, took)
	}
	b.result.Times(fmt.Sprintf("agents: sync of %d new", freshAgents), fresh)
	b.result.AtMost(fmt.Sprintf("agents: sync of %d new", freshAgents), 2000)
	b.result.Times(fmt.Sprintf("agents: sync of %d unchanged", steadyAgents), steady)
	b.result.AtMost(fmt.Sprintf("agents: sync of %d unchanged", steadyAgents), 250)
	_, _, err := syncAgents(ctx, x, "clawbots: [{name: bot, command: [/bin/sleep, infinity]}]")
	return err
}

// firstByte notes when something is written to it first.
type firstByte struct {
	text bytes.Buffer // not embedded: its ReadFrom would be called instead of Write
	at   time.Time
}

func (f *firstByte) String() string { return f.text.String() }

func (f *firstByte) Write(p []byte) (int, error) {
	if f.at.IsZero() {
		f.at = time.Now()
	}
	return f.text.Write(p)
}

// spawned times a program from the request to the first byte that it prints: in a jail of its own, in the agent's jail, by
// the command line, and plainly on this host.
func (b *bench) spawned(ctx context.Context, x *box) error {
	var own, inside, command, plain []time.Duration
	for range spawns {
		for _, way := range []struct {
			into *[]time.Duration
			exec bool
		}{{&own, false}, {&inside, true}} {
			var out firstByte
			began := time.Now()
			_, err := x.api.Attach(ctx, "bot", way.exec, api.ProcessRequest{Argv: []string{"/bin/echo", "here"}}, client.Streams{Out: &out, Err: &out})
			if err != nil {
				return err
			}
			if out.String() != "here\n" {
				return fmt.Errorf("a program printed %q", out.String())
			}
			*way.into = append(*way.into, out.at.Sub(began))
		}
		for _, way := range []struct {
			into *[]time.Duration
			cmd  *exec.Cmd
		}{{&command, x.Command(ctx, "spawn", "--agent", "bot", "--", "/bin/echo", "here")}, {&plain, exec.CommandContext(ctx, "/bin/echo", "here")}} {
			var out firstByte
			began := time.Now()
			way.cmd.Stdout = &out
			if err := way.cmd.Run(); err != nil {
				return fmt.Errorf("%s: %w", way.cmd.Args, err)
			}
			*way.into = append(*way.into, out.at.Sub(began))
		}
	}
	b.result.Times("agents: spawn to first byte, jail of its own", own)
	b.result.AtMost("agents: spawn to first byte, jail of its own", 40)
	b.result.Times("agents: spawn to first byte, in the agent's jail", inside)
	b.result.Times("agents: spawn to first byte, command clawjail spawn", command)
	b.result.Times("agents: spawn to first byte, plain process", plain)
	for _, where := range []string{"jail of its own", "in the agent's jail", "command clawjail spawn"} {
		b.result.Beside("agents: spawn to first byte, "+where, "agents: spawn to first byte, plain process", "plain process")
	}
	return nil
}

// printed times many lines of an agent on their way into its files, next to a pipe that is only counted.
func (b *bench) printed(ctx context.Context, x *box) error {
	script := fmt.Sprintf(`yes '{"type":"tick","text":"forty characters of something or other"}' | head -n %d`, printedLines)
	before, err := x.api.AgentLog(ctx, jail.LogRequest{Name: "flood", Stream: jail.Stdout, Offset: -1})
	if err == nil {
		return fmt.Errorf("there is an agent flood already, with %d bytes", before.End)
	}
	plain := exec.CommandContext(ctx, "/bin/sh", "-c", script+" | wc -c")
	began := time.Now()
	counted, err := plain.Output()
	if err != nil {
		return err
	}
	alone := time.Since(began)
	var want int64
	if _, err := fmt.Sscan(string(counted), &want); err != nil {
		return err
	}
	text := "clawbots:\n  - name: bot\n    command: [/bin/sleep, infinity]\n  - name: flood\n    restart: never\n    limits: {cpu: 2}\n    command: [/bin/sh, -c, " +
		fmt.Sprintf("%q", "sleep 1; "+script+"; sleep infinity") + "]\n"
	if _, _, err := syncAgents(ctx, x, text); err != nil {
		return err
	}
	end := func() (int64, error) {
		c, err := x.api.AgentLog(ctx, jail.LogRequest{Name: "flood", Stream: jail.Stdout, Offset: -1})
		return c.End, err
	}
	for deadline := time.Now().Add(time.Minute); ; {
		n, err := end()
		if err != nil {
			return err
		}
		if n > 0 {
			break
		}
		if time.Now().After(deadline) {
			return errors.New("the flood does not begin")
		}
		time.Sleep(time.Millisecond)
	}
	began = time.Now()
	for {
		n, err := end()
		if err != nil {
			return err
		}
		if n == want {
			break
		}
		if n > want || time.Since(began) > time.Minute {
			return fmt.Errorf("%d bytes arrived of %d", n, want)
		}
		time.Sleep(2 * time.Millisecond)
	}
	b.result.Value("agents: lines printed into files", "1/s", printedLines/time.Since(began).Seconds())
	b.result.AtLeast("agents: lines printed into files", 100_000)
	b.result.Value("agents: lines through a plain pipe", "1/s", printedLines/alone.Seconds())
	b.result.Beside("agents: lines printed into files", "agents: lines through a plain pipe", "plain pipe")
	return nil
}
