//go:build linux

package docker

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// typeLimit is how long what is typed may take to fit into a container's stdin.
const typeLimit = 5 * time.Second

// attach connects pipes to a container that is to be started, and returns the owner's ends.
func (d *Driver) attach(ctx context.Context, name jail.Name) (_ *jail.Stdio, err error) {
	conn, err := d.engine.ContainerAttach(ctx, string(name), client.ContainerAttachOptions{Stream: true, Stdin: true, Stdout: true, Stderr: true})
	if err != nil {
		return nil, err
	}
	out := &jail.Stdio{}
	var ends [3]*os.File
	defer func() {
		if err != nil {
			conn.Close()
			out.Close()
			closeAll(ends)
		}
	}()
	if ends[0], out.In, err = os.Pipe(); err != nil {
		return nil, err
	}
	if out.Out, ends[1], err = os.Pipe(); err != nil {
		return nil, err
	}
	if out.Err, ends[2], err = os.Pipe(); err != nil {
		return nil, err
	}
	d.watchers.Add(1)
	go func() {
		defer d.watchers.Done()
		pump(d.background, conn.HijackedResponse, ends)
	}()
	return out, nil
}

// pump moves bytes between a connection of the engine's and three files, which it closes. It returns when the engine has
// nothing more to say, or the context ends.
func pump(ctx context.Context, conn client.HijackedResponse, ends [3]*os.File) {
	stop := context.AfterFunc(ctx, conn.Close)
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(conn.Conn, ends[0]) // an end of either side is the end of stdin
		_ = conn.CloseWrite()
	}()
	// Output that nobody reads any more is thrown away: the program goes on, as it would with a pipe to a program that ended.
	_, _ = stdcopy.StdCopy(&lenient{w: ends[1]}, &lenient{w: ends[2]}, conn.Reader) // the engine's end is the program's
	conn.Close()
	closeAll(ends) // wakes the copy of stdin
	<-done
}

func closeAll(files [3]*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close() // pipes have nothing to flush
		}
	}
}

// lenient writes until its reader has gone.
type lenient struct {
	w    io.Writer
	gone bool
}

func (l *lenient) Write(p []byte) (int, error) {
	if !l.gone {
		if _, err := l.w.Write(p); err != nil {
			l.gone = true
		}
	}
	return len(p), nil
}

// Type writes to the stdin of a kept container. It says how much was taken.
func (d *Driver) Type(ctx context.Context, name jail.Name, data []byte) (int, error) {
	r, err := d.Running(name)
	if err != nil {
		return 0, err
	}
	if r.Spec.Lifetime != jail.LifetimeKeep {
		return 0, problem.New(problem.Conflict, "type where it was started", "the stdin of container %s belongs to its owner", name)
	}
	conn, err := d.engine.ContainerAttach(ctx, string(name), client.ContainerAttachOptions{Stream: true, Stdin: true})
	if err != nil {
		return 0, d.engineError(err)
	}
	defer conn.Close()
	deadline := d.o.Now().Add(typeLimit)
	if at, ok := ctx.Deadline(); ok && at.Before(deadline) {
		deadline = at
	}
	if err := conn.Conn.SetWriteDeadline(deadline); err != nil {
		return 0, err
	}
	n, err := conn.Conn.Write(data)
	if err == nil {
		err = conn.CloseWrite()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return n, problem.New(problem.Timeout, "its program does not read its stdin", "only %d of %d bytes were taken", n, len(data))
	}
	return n, err
}
