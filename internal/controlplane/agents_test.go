package controlplane

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestTheGatewayListensWhereContainersAre(t *testing.T) {
	port := testenv.FreePort(t)
	var mu sync.Mutex // guards what follows
	var at netip.Addr
	var away error
	var served atomic.Int32 // the first time it ends by itself
	set := func(a netip.Addr, err error) {
		mu.Lock()
		defer mu.Unlock()
		at, away = a, err
	}
	c := containers{port: port, log: slog.New(slog.DiscardHandler),
		gateway: func(context.Context) (netip.Addr, error) {
			mu.Lock()
			defer mu.Unlock()
			return at, away
		},
		serve: func(ctx context.Context, l net.Listener) error {
			defer context.AfterFunc(ctx, func() { _ = l.Close() })()
			if served.Add(1) == 1 {
				return errors.Join(errors.New("it broke"), l.Close())
			}
			for {
				conn, err := l.Accept()
				if err != nil {
					return nil
				}
				_, _ = io.WriteString(conn, "hello")
				_ = conn.Close()
			}
		}}
	answers := func(addr string) bool {
		conn, err := net.DialTimeout("tcp4", netip.AddrPortFrom(netip.MustParseAddr(addr), port).String(), time.Second)
		if err != nil {
			return false
		}
		defer conn.Close() // it was read
		text, _ := io.ReadAll(conn)
		return string(text) == "hello"
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { c.run(ctx) })
	set(netip.MustParseAddr("127.0.0.1"), nil)
	testenv.Eventually(t, 10*time.Second, func() bool { return answers("127.0.0.1") }, "it does not listen when there is a network, or not again")
	set(netip.Addr{}, errors.New("away"))
	set(netip.MustParseAddr("127.0.0.2"), nil)
	testenv.Eventually(t, 10*time.Second, func() bool { return answers("127.0.0.2") && !answers("127.0.0.1") }, "it does not follow the network")
	set(netip.Addr{}, nil)
	testenv.Eventually(t, 10*time.Second, func() bool { return !answers("127.0.0.2") }, "it listens where no network is")
	cancel()
	running.Wait()
}

func TestTheDefaultDriverIsTheConfigured(t *testing.T) {
	if DefaultDriver(config.AgentDriverDocker) != agent.DriverDocker || DefaultDriver(config.AgentDriverLinux) != agent.DriverLinux {
		t.Error("the configured driver is not used")
	}
	if got := gatewayOfJails(config.Default()); got != "http://gateway:3000" {
		t.Errorf("the gateway of jails is %s", got)
	}
}
