// Command plane is clawjail, but that its control plane admits jails as agents' when the test says so. Everything else in
// it is the program.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"

	"github.com/clawjail/clawjail/internal/cli"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/test/injail"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return cli.Main(ctx, "test", os.Args[1:], os.Stdout, os.Stderr, admit)
}

// admit takes orders until ctx ends.
func admit(ctx context.Context, exit *gateway.Gateway) error {
	at := slices.Index(os.Args, "--config") + 1
	if at == 0 || at == len(os.Args) {
		return errors.New("plane: --config is missing")
	}
	c, err := config.Load(os.Args[at])
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", injail.Socket(c))
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	var orders sync.WaitGroup
	defer orders.Wait()
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		orders.Go(func() {
			defer conn.Close() // read to its end
			defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
			if err := serve(conn, exit); err != nil {
				slog.Warn("plane: an order", "error", err)
			}
		})
	}
}

func serve(conn net.Conn, exit *gateway.Gateway) error {
	var order injail.Order
	if err := json.NewDecoder(conn).Decode(&order); err != nil {
		return err
	}
	// The policy allows nothing: all that the jail has is what the gateway itself answers.
	err := exit.Admit(order.Address, gateway.Caller{Jail: order.Jail, Tenant: store.DefaultTenant, Agent: order.Agent, Actor: "agent:" + order.Agent, Policy: policy.Only()})
	answer := injail.Admitted{}
	if err != nil {
		answer.Error = err.Error()
	}
	if err := errors.Join(err, json.NewEncoder(conn).Encode(answer)); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, conn) // however the connection ends, the admission does
	return exit.Forget(order.Address, order.Jail)
}
