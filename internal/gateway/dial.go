package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"
)

// dialFunc connects to one address. check is asked again at the last moment.
type dialFunc func(ctx context.Context, target netip.AddrPort, check func(netip.AddrPort) error) (net.Conn, error)

// attemptDelay is how long one address is tried alone before the next is tried
// beside it (RFC 8305 §5 recommends 250 ms).
const attemptDelay = 250 * time.Millisecond

var errNoTarget = errors.New("there is no address to connect to")

var errOtherAddress = errors.New("the socket is about to connect to another address than the one that was checked")

// dialChecked dials exactly target. The comparison happens when the socket
// exists and the kernel is about to be asked, so nothing between the check and
// the connection can exchange the address.
func dialChecked(ctx context.Context, target netip.AddrPort, check func(netip.AddrPort) error) (net.Conn, error) {
	d := net.Dialer{ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
		return confirm(target, address, check)
	}}
	network := "tcp4"
	if target.Addr().Is6() {
		network = "tcp6"
	}
	return d.DialContext(ctx, network, target.String())
}

func confirm(target netip.AddrPort, address string, check func(netip.AddrPort) error) error {
	actual, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: %s", errOtherAddress, address)
	}
	if actual != target {
		return fmt.Errorf("%w: %s", errOtherAddress, actual)
	}
	return check(actual)
}

// dialAny connects to the first of the targets that answers. They are tried in
// order, the next one starting when the one before fails or is slow. It returns
// when no attempt is left running.
func dialAny(ctx context.Context, dial dialFunc, targets []netip.AddrPort, check func(netip.AddrPort) error) (net.Conn, netip.AddrPort, error) {
	if len(targets) == 0 {
		return nil, netip.AddrPort{}, errNoTarget
	}
	type result struct {
		conn   net.Conn
		target netip.AddrPort
		err    error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan result)
	var (
		won     result
		errs    []error
		next    int
		running int
	)
	startNext := func() {
		target := targets[next]
		next++
		running++
		go func() {
			c, err := dial(ctx, target, check)
			results <- result{c, target, err}
		}()
	}
	timer := time.NewTimer(attemptDelay)
	defer timer.Stop()
	for next < len(targets) || running > 0 {
		if running == 0 {
			if won.conn != nil || ctx.Err() != nil {
				break
			}
			startNext()
			timer.Reset(attemptDelay)
		}
		select {
		case r := <-results:
			running--
			switch {
			case r.err != nil:
				errs = append(errs, r.err)
				timer.Reset(0)
			case won.conn != nil:
				_ = r.conn.Close() // the slower one; never used
			default:
				won = r
				cancel()
			}
		case <-timer.C:
			if next < len(targets) && won.conn == nil && ctx.Err() == nil {
				startNext()
				timer.Reset(attemptDelay)
			}
		}
	}
	if won.conn != nil {
		return won.conn, won.target, nil
	}
	return nil, netip.AddrPort{}, errors.Join(append(errs, ctx.Err())...)
}
