package controlplane

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/gateway/relay"
	"github.com/clawjail/clawjail/internal/hostd"
)

// containersEvery is how often the host daemon is asked whether there is a network of containers by now.
const containersEvery = time.Second

// readRelayKey reads what relays prove themselves with, where there is one; the host daemon has made it by now.
func (p *plane) readRelayKey(context.Context) (err error) {
	if p.Config.Gateway.Placement == config.PlacementContainer {
		p.relayKey, err = relay.ReadKey(hostd.RelayKeyPath(p.Config))
	}
	return err
}

// serveContainers serves agents in containers where they reach the gateway: on their bridge, or where a relay brings their
// connections.
func (p *plane) serveContainers(ctx context.Context) error {
	own := containers{port: p.Config.Gateway.Port, serve: p.gateway.Serve, log: p.Log, gateway: p.containerGateway}
	if g := p.Config.Gateway; g.Placement == config.PlacementContainer {
		own.port = g.Relay.Port()
		own.gateway = func(context.Context) (netip.Addr, error) { return g.Relay.Addr(), nil }
		own.serve = func(ctx context.Context, l net.Listener) error {
			return p.gateway.Serve(ctx, relay.Listen(l, p.relayKey, g.Port, p.Log))
		}
	}
	own.run(ctx)
	return nil
}

// containers is a gateway for agents in containers, which have a network of their own.
type containers struct {
	// gateway is where it is to listen; the zero Addr while there is no such network. With a relay it is where that comes to,
	// which may be the address of a network that is not there yet.
	gateway func(ctx context.Context) (netip.Addr, error)
	port    uint16
	// serve serves until ctx ends.
	serve func(ctx context.Context, l net.Listener) error
	log   *slog.Logger
}

// run serves wherever the network is, until ctx ends. The network appears with the first container, and can come back with
// another address. Without it nothing else is worse off, so nothing here is an error.
func (c containers) run(ctx context.Context) {
	every := time.NewTicker(containersEvery)
	defer every.Stop()
	var at netip.Addr
	var done <-chan struct{} // nil while nothing is served
	stop := func() {}
	defer func() { stop() }()
	said := ""
	for {
		addr, err := c.gateway(ctx)
		ended := wake.Closed(done)
		if ended || err == nil && addr != at {
			stop()
			at, done, stop = netip.Addr{}, nil, func() {}
			if err == nil && addr.IsValid() {
				if stop, done, err = c.listen(ctx, netip.AddrPortFrom(addr, c.port)); err == nil {
					at, said = addr, ""
					c.log.Info("the gateway listens for containers", "gateway", netip.AddrPortFrom(addr, c.port))
				} else {
					stop = func() {}
				}
			}
		}
		// A failure is tried again, and told once.
		if err != nil && ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			c.log.Warn("the gateway cannot listen for containers yet", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
	}
}

// listen serves at an address until stop is called, which returns when nothing is served any more, or until it ends by itself.
func (c containers) listen(ctx context.Context, at netip.AddrPort) (stop func(), done <-chan struct{}, err error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", at.String())
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() { // ends with ctx; stop waits for it
		defer close(over)
		if err := c.serve(ctx, listener); err != nil {
			c.log.Warn("the gateway does not listen for containers any more", "error", err)
		}
	}()
	return func() {
		cancel()
		<-over
	}, over, nil
}

// containerGateway asks the host daemon.
func (p *plane) containerGateway(ctx context.Context) (netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, hostLimit)
	defer cancel()
	info, err := p.host.Info(ctx)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("ask the host daemon for the network of containers: %w", err)
	}
	return info.ContainerGateway, nil
}
