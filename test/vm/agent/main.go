//go:build linux

// Command agent runs in the guest of a test, as root, and does what the test asks for over a serial port.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/clawjail/clawjail/test/vm/wire"
)

func main() {
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
}

// serve answers requests until the port is closed. Each runs by itself, so that a test can look while another command runs.
func serve() error {
	port, err := open("/dev/virtio-ports/" + wire.Port)
	if err != nil {
		return err
	}
	defer port.Close() // the process ends with it
	var mu sync.Mutex
	answers := json.NewEncoder(port)
	answer := func(r wire.Reply) {
		mu.Lock()
		defer mu.Unlock()
		if err := answers.Encode(r); err != nil {
			fmt.Fprintln(os.Stderr, "agent:", err)
		}
	}
	answer(wire.Reply{})
	requests := json.NewDecoder(port)
	var running sync.WaitGroup
	defer running.Wait()
	for {
		var r wire.Request
		if err := requests.Decode(&r); err != nil {
			return fmt.Errorf("read a request: %w", err)
		}
		running.Go(func() {
			reply, err := do(r)
			reply.ID = r.ID
			if err != nil {
				reply.Error = err.Error()
			}
			answer(reply)
		})
	}
}

// open waits for the port, whose driver is loaded while the guest starts.
func open(path string) (*os.File, error) {
	for range 600 {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if !errors.Is(err, os.ErrNotExist) {
			return f, err
		}
		time.Sleep(100 * time.Millisecond) // udev makes the name, and says so to nobody who could be asked here
	}
	return nil, fmt.Errorf("there is no port %s", path)
}

func do(r wire.Request) (wire.Reply, error) {
	switch {
	case r.Put != "":
		return wire.Reply{}, errors.Join(os.MkdirAll(filepath.Dir(r.Put), 0o755), os.WriteFile(r.Put, r.Stdin, os.FileMode(r.Mode)), os.Chmod(r.Put, os.FileMode(r.Mode)))
	case r.Get != "":
		b, err := os.ReadFile(r.Get)
		return wire.Reply{Stdout: b}, err
	case len(r.Run) == 0:
		return wire.Reply{}, errors.New("the request asks for nothing")
	}
	return run(r)
}

func run(r wire.Request) (wire.Reply, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(r.Seconds)*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.Run[0], r.Run[1:]...)
	cmd.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8",
		"DEBIAN_FRONTEND=noninteractive"}, r.Env...)
	cmd.Dir = "/root"
	cmd.Stdin = bytes.NewReader(r.Stdin)
	var out, words bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &words
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // for what it has left behind with its output open
	err := cmd.Run()
	reply := wire.Reply{Stdout: out.Bytes(), Stderr: words.Bytes()}
	if ctx.Err() != nil {
		return reply, fmt.Errorf("it did not end within %d seconds", r.Seconds)
	}
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) && !errors.Is(err, exec.ErrWaitDelay) {
		return reply, err
	}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		reply.Status = 128 + int(status.Signal())
	} else {
		reply.Status = cmd.ProcessState.ExitCode()
	}
	return reply, nil
}
