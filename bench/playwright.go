//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/identity"
)

const (
	// orderLimit bounds one order, and with it what a client that hangs can hold up.
	orderLimit = 2 * time.Minute
	// scriptTimes is how often a script does all that it does, scriptRounds how often it runs for each way.
	scriptTimes, scriptRounds = 20, 5
	// aSession is the way of a user: a session's own endpoint.
	aSession = "a session"
)

// playwright is one process of Node that has Playwright loaded and does what it is told; see arena/arena.mjs.
type playwright struct {
	sandbox bool // whether a Chromium that it starts may have its own sandbox
	cmd     *exec.Cmd
	home    string
	orders  io.WriteCloser
	answers *json.Decoder
	errors  bytes.Buffer
}

// took is what one order answers: how long each stage took, and all of them (sum), in milliseconds.
type took struct {
	ID     string             `json:"id"`
	Warm   bool               `json:"warm"`
	Stages map[string]float64 `json:"stages"`
	Error  string             `json:"error"`
}

func (o took) stage(name string) time.Duration { return milliseconds(o.Stages[name]) }

// add keeps each stage, and their sum.
func (o took) add(t times, name string) {
	for stage := range o.Stages {
		t.add(name+", "+stage, o.stage(stage))
	}
}

// startPlaywright returns nil when the packages of the clients are not there.
func startPlaywright(ctx context.Context) *playwright {
	node := must(filepath.Abs("test/clients/node_modules/.node"))
	if _, err := os.Stat(node); err != nil {
		return nil
	}
	p := &playwright{home: homeOfNobody(), cmd: exec.CommandContext(ctx, node, "bench/arena/arena.mjs")}
	look := exec.CommandContext(ctx, node, "-e", `require("fs").readFileSync("bench/arena/arena.mjs")`)
	asNobody(look, p.home)
	asNobody(p.cmd, p.home)
	if p.sandbox = look.Run() == nil; !p.sandbox { // a checkout may be closed to others
		p.cmd.SysProcAttr = nil
	}
	p.cmd.Stderr = &p.errors
	p.orders, p.answers = must(p.cmd.StdinPipe()), json.NewDecoder(must(p.cmd.StdoutPipe()))
	if err := p.cmd.Start(); err != nil {
		check(err, os.RemoveAll(p.home))
	}
	return p
}

// do has one thing done. An order that takes too long ends the process.
func (p *playwright) do(order string, parameters map[string]any) (out took) {
	parameters["order"] = order
	late := time.AfterFunc(orderLimit, func() { _ = p.cmd.Process.Kill() }) // it may have ended
	defer late.Stop()
	err := json.NewEncoder(p.orders).Encode(parameters)
	if err == nil {
		err = p.answers.Decode(&out)
	}
	if err != nil {
		check(fmt.Errorf("playwright: %s: %w: %.2000s", order, err, p.errors.String()))
	}
	if out.Error != "" {
		check(fmt.Errorf("playwright: %s: %s", order, out.Error))
	}
	sum := 0.0
	for _, ms := range out.Stages {
		sum += ms
	}
	out.Stages["sum"] = sum
	return out
}

func (p *playwright) end() error {
	_ = p.orders.Close() // it ends with its input
	finish(p.cmd)
	return os.RemoveAll(p.home)
}

// arena measures what a user of Playwright waits for: a session is made, connected to, shown a page, and given back. A
// Chromium that Playwright starts itself takes its turn beside it.
func (b *bench) arena(ctx context.Context) {
	b.inTurn(b.runs, 2, func(t times) {
		b.client.do("launch", map[string]any{"program": launch("/nonexistent", nowhere)[0], "sandbox": b.client.sandbox, "page": b.site.URL}).
			add(t, "arena: plain Playwright")
		for _, size := range []int{cold, warm} {
			x := b.boxes[size]
			key := must(os.ReadFile(hostd.AdminKeyPath(x.Config)))
			out := b.client.do("session", map[string]any{"api": "http://" + x.Config.Listen.String(), "key": strings.TrimSpace(string(key)), "page": b.site.address("/")})
			if out.Warm != (size == warm) {
				check(fmt.Errorf("warm is %t", out.Warm))
			}
			out.add(t, "arena: "+coldOrWarm(size))
			x.gone(ctx, out.ID) // nothing of it disturbs the next
			b.boxes[warm].poolFull(ctx)
		}
	})
	r := &b.result
	sum := r.Figures["arena: cold, sum"]
	sum.AtMost(250)
	r.Value("arena: cold, sum, p95", "ms", sum.P95).AtMost(400)
	r.Figures["arena: warm, sum"].AtMost(140)
	for _, stage := range []string{"goto", "release", "sum"} {
		r.Beside("plain Playwright", "arena: plain Playwright, "+stage, "arena: cold, "+stage, "arena: warm, "+stage)
	}
}

// driving measures what the guard costs a script of Playwright, and how quickly a client connects to what is open.
func (b *bench) driving(ctx context.Context) {
	x, r := b.boxes[cold], b.startRelay(ctx)
	s := x.open(ctx)
	b.atEnd(func() error { return x.api.Close(context.WithoutCancel(ctx), s.ID, true) })
	token := must(x.api.SessionToken(ctx, s.ID, api.TokenRequest{Scope: identity.ScopeCDP}))

	const connect = "drive: connectOverCDP, "
	b.inTurn(b.runs, 2, func(t times) {
		for way, url := range map[string]string{direct: r.endpoint(direct), aSession + ", by its WebSocket": token.WSURL, aSession: token.CDPURL} {
			t.add(connect+way, b.client.do("connect", map[string]any{"url": url}).stage("connect"))
		}
	})
	b.result.Figures[connect+aSession].AtMost(50)
	b.result.Beside("plain Chromium, direct CDP", connect+direct, connect+aSession, connect+aSession+", by its WebSocket")

	// The same script in every way, in another order each time. The cost of the guard is computed within each round.
	const script = "drive: script, "
	ways := []string{direct, guardedClean, guardedOperator, aSession}
	calls, n := times{}, 0
	t := b.inTurn(min(scriptRounds, b.runs), 1, func(t times) {
		for i := range ways {
			way, url, often := ways[(i+n)%len(ways)], token.WSURL, scriptTimes
			if way != aSession {
				url = r.endpoint(way)
			}
			if n == 0 {
				often = 3 // it fills the caches
			}
			out := b.client.do("script", map[string]any{"url": url, "page": b.site.address("/form"), "times": often})
			t.add(script+way, out.stage("sum"))
			calls.add(way, out.stage("calls"))
		}
		n++
	})
	for _, way := range ways[1:] {
		b.result.Beside("plain Chromium, direct CDP", script+direct, script+way)
		whole := b.result.Value(script+way+", to direct", "×", ratio(t[script+way], t[script+direct]))
		if way != aSession {
			whole.AtMost(1.08)
		}
		b.result.Value(script+way+", calls alone, to direct", "×", ratio(calls[way][1:], calls[direct][1:]))
	}
}
