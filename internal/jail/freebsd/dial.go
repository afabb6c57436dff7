//go:build linux || freebsd

package freebsd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/jail"
)

// Dial connects to a port of the jail: on its loopback, or else on its own address. A process of a jail cannot be made by a
// thread of this one, so a relay runs inside, as the jail's user: nc(1) of the base system, between a pair of sockets and
// the port. It ends when either side closes, and with the jail.
func (r *Runtime) Dial(ctx context.Context, p jail.Placement, _ jail.Process, port uint16) (*os.File, error) {
	if err := errors.Join(r.o.check(p.Name), ctx.Err()); err != nil {
		return nil, err
	}
	return jail.DialEither(ctx, p, port, func(ctx context.Context, to netip.AddrPort) (*os.File, error) { return r.dial(ctx, p, to) })
}

func (r *Runtime) dial(ctx context.Context, p jail.Placement, to netip.AddrPort) (_ *os.File, err error) {
	addr, port := to.Addr().String(), strconv.Itoa(int(to.Port()))
	cmd, err := r.o.Commands.Command(context.Background(), "jexec", r.inside(p, "/usr/bin/nc", "-n", "-v", "-N", addr, port)...)
	if err != nil {
		return nil, err
	}
	ours, theirs, err := jail.SocketPair()
	if err != nil {
		return nil, err
	}
	said, says, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, ours.Close(), theirs.Close())
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, says
	r.mu.Lock()
	err = cmd.Start()
	if err == nil {
		r.relays[cmd] = true
	}
	r.mu.Unlock()
	if err := errors.Join(err, theirs.Close(), says.Close()); err != nil {
		return nil, errors.Join(err, ours.Close(), said.Close())
	}
	connected := make(chan error, 1)
	r.working.Go(func() {
		defer func() { _ = said.Close() }() // opened for reading
		var last string
		for lines := bufio.NewScanner(said); lines.Scan(); {
			if last = lines.Text(); strings.Contains(last, "succeeded!") { // usr.bin/nc/netcat.c
				connected <- nil
				last = ""
			}
		}
		err := cmd.Wait()
		r.mu.Lock()
		delete(r.relays, cmd)
		r.mu.Unlock()
		select {
		case connected <- fmt.Errorf("connect to %s port %s in the jail: %s: %w", addr, port, last, errors.Join(err, errors.New("not connected"))):
		default:
		}
	})
	select {
	case err = <-connected:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		r.mu.Lock()
		if r.relays[cmd] {
			_ = cmd.Process.Kill() // it may just have ended
		}
		r.mu.Unlock()
		return nil, errors.Join(err, ours.Close())
	}
	return ours, nil
}
