//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// orderLimit bounds one order, and with it what a client that hangs can hold up.
const orderLimit = 2 * time.Minute

// playwright is one process of Node that has Playwright loaded and does what it is told; see arena/arena.mjs.
type playwright struct {
	sandbox bool // whether a Chromium that it starts may have its own sandbox
	cmd     *exec.Cmd
	home    string
	orders  io.WriteCloser
	answers *json.Decoder
	errors  bytes.Buffer
}

// took is what one order answers: how long each stage took, in milliseconds.
type took struct {
	ID     string             `json:"id"`
	Warm   bool               `json:"warm"`
	Stages map[string]float64 `json:"stages"`
	Error  string             `json:"error"`
}

func (o took) stage(name string) time.Duration { return milliseconds(o.Stages[name]) }

func (o took) sum() (sum time.Duration) {
	for name := range o.Stages {
		sum += o.stage(name)
	}
	return sum
}

// add keeps each stage, and their sum.
func (o took) add(t times, name string) {
	for stage := range o.Stages {
		t.add(name+", "+stage, o.stage(stage))
	}
	t.add(name+", sum", o.sum())
}

// startPlaywright returns nil when the packages of the clients are not there.
func startPlaywright(ctx context.Context) (_ *playwright, err error) {
	node, err := filepath.Abs("test/clients/node_modules/.node")
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(node); err != nil {
		return nil, nil
	}
	home, err := homeOfNobody()
	if err != nil {
		return nil, err
	}
	look := exec.CommandContext(ctx, node, "-e", `require("fs").readFileSync("bench/arena/arena.mjs")`)
	p := &playwright{home: home, cmd: exec.CommandContext(ctx, node, "bench/arena/arena.mjs")}
	asNobody(look, home)
	p.sandbox = look.Run() == nil // a checkout may be closed to others
	asNobody(p.cmd, home)
	if !p.sandbox {
		p.cmd.SysProcAttr = nil
	}
	p.cmd.Stderr = &p.errors
	orders, err := p.cmd.StdinPipe()
	answers, err2 := p.cmd.StdoutPipe()
	if err = errors.Join(err, err2); err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(home))
	}
	p.orders, p.answers = orders, json.NewDecoder(answers)
	return p, nil
}

// do has one thing done. An order that takes too long ends the process.
func (p *playwright) do(order string, parameters map[string]any) (out took, err error) {
	parameters["order"] = order
	late := time.AfterFunc(orderLimit, func() { _ = p.cmd.Process.Kill() }) // it may have ended
	defer late.Stop()
	if err = json.NewEncoder(p.orders).Encode(parameters); err == nil {
		err = p.answers.Decode(&out)
	}
	switch {
	case err != nil:
		return out, fmt.Errorf("playwright: %s: %w: %.2000s", order, err, p.errors.String())
	case out.Error != "":
		return out, fmt.Errorf("playwright: %s: %s", order, out.Error)
	}
	return out, nil
}

func (p *playwright) end() error {
	_ = p.orders.Close() // it ends with its input
	gone(p.cmd)
	return os.RemoveAll(p.home)
}
