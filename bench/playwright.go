//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

const (
	// nobody is who runs what is compared with a jail: Chromium's own sandbox does not start as root.
	nobody = 65534
	// orderLimit bounds one order, and with it what a client that hangs can hold up.
	orderLimit = 2 * time.Minute
)

// playwright is one process of Node that has Playwright loaded and does what it is told; see arena/arena.mjs.
type playwright struct {
	sandbox bool // whether a Chromium that it starts may have its own sandbox
	cmd     *exec.Cmd
	home    string
	orders  io.WriteCloser
	answers *bufio.Reader
	errors  bytes.Buffer
}

// took is what one order answers: how long each stage took, in milliseconds.
type took struct {
	ID     string             `json:"id"`
	Warm   bool               `json:"warm"`
	Stages map[string]float64 `json:"stages"`
	Error  string             `json:"error"`
}

func (t took) stage(name string) time.Duration {
	return time.Duration(t.Stages[name] * float64(time.Millisecond))
}

func (t took) sum() (sum time.Duration) {
	for name := range t.Stages {
		sum += t.stage(name)
	}
	return sum
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
	home, err := os.MkdirTemp("/dev/shm", "clawjail-bench-")
	if err != nil {
		return nil, err
	}
	p := &playwright{home: home}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(home))
		}
	}()
	if err := os.Chown(home, nobody, nobody); err != nil {
		return nil, err
	}
	ordinary := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	look := exec.CommandContext(ctx, node, "-e", `require("fs").readFileSync("bench/arena/arena.mjs")`)
	look.SysProcAttr = ordinary
	p.sandbox = look.Run() == nil // a checkout may be closed to others

	p.cmd = exec.CommandContext(ctx, node, "bench/arena/arena.mjs")
	p.cmd.Env = []string{"HOME=" + home, "TMPDIR=" + home, "LANG=C.UTF-8", "PATH=/usr/bin:/bin"}
	if p.sandbox {
		p.cmd.SysProcAttr = ordinary
	}
	p.cmd.Stderr = &p.errors
	if p.orders, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	answers, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.answers = bufio.NewReader(answers)
	return p, p.cmd.Start()
}

// do has one thing done. An order that takes too long ends the process.
func (p *playwright) do(order string, parameters map[string]any) (took, error) {
	parameters["order"] = order
	line, err := json.Marshal(parameters)
	if err != nil {
		return took{}, err
	}
	late := time.AfterFunc(orderLimit, func() { _ = p.cmd.Process.Kill() }) // it may have ended
	defer late.Stop()
	if _, err := p.orders.Write(append(line, '\n')); err != nil {
		return took{}, fmt.Errorf("playwright: %s: %w: %.2000s", order, err, p.errors.String())
	}
	answer, err := p.answers.ReadBytes('\n')
	if err != nil {
		return took{}, fmt.Errorf("playwright: %s: it has ended: %w", order, err)
	}
	var out took
	if err := json.Unmarshal(answer, &out); err != nil {
		return took{}, fmt.Errorf("playwright: %s: %w", order, err)
	}
	if out.Error != "" {
		return took{}, fmt.Errorf("playwright: %s: %s", order, out.Error)
	}
	return out, nil
}

func (p *playwright) end() error {
	_ = p.orders.Close() // it ends with its input
	late := time.AfterFunc(5*time.Second, func() { _ = p.cmd.Process.Kill() })
	_ = p.cmd.Wait()
	late.Stop()
	return os.RemoveAll(p.home)
}
