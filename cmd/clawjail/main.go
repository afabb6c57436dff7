// Command clawjail keeps jails for AI agents. See internal/cli.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/clawjail/clawjail/internal/cli"
)

// version is set when a release is built: -ldflags "-X main.version=v1.2.3".
var version = "dev"

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	log.SetOutput(cli.Unquoted(os.Stderr))
	return cli.Main(ctx, version, os.Args[1:], os.Stdout, os.Stderr)
}
