//go:build !linux && !freebsd

package hostd

import (
	"context"
	"runtime"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// Assemble says that there is no driver for this host.
func Assemble(context.Context, AssembleOptions) (Parts, error) {
	return Parts{}, noDriver()
}

// Uninstall says that there is no driver for this host.
func Uninstall(context.Context, config.Config, jail.Installation, *jail.Pool) error {
	return noDriver()
}

func noDriver() error {
	return problem.New(problem.Unsupported, "run the daemons on Linux; the command line works from here with CLAWJAIL_URL",
		"there is no driver for jails on %s", runtime.GOOS)
}

// Trees is nil: plain folders.
func Trees(config.Config) (TreeMaker, error) { return nil, nil }
