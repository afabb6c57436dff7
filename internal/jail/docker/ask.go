package docker

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/moby/moby/client"
)

// Engine is what an engine says of itself, as far as it matters to agents.
type Engine struct {
	Version string
	// Mapped says how users of containers are other users of the host: rootless or userns; empty when they are the same.
	Mapped string
	// Seccomp says that it can filter system calls.
	Seccomp bool
}

// maxVersion bounds what is shown of an engine's version.
const maxVersion = 60

// Ask asks an engine what it is. It needs no Driver, and makes nothing.
func Ask(ctx context.Context, socket string) (Engine, error) {
	engine, err := client.New(client.WithHost("unix://" + socket))
	if err != nil {
		return Engine{}, fmt.Errorf("use the engine at %s: %w", socket, err)
	}
	defer engine.Close() // it has nothing that could be lost
	answer, err := engine.Info(ctx, client.InfoOptions{})
	if err != nil {
		return Engine{}, fmt.Errorf("ask the engine at %s: %w", socket, err)
	}
	return engineOf(answer.Info.ServerVersion, answer.Info.SecurityOptions), nil
}

// engineOf reads the security options, which are lists such as "name=seccomp,profile=builtin".
func engineOf(version string, options []string) Engine {
	e := Engine{Version: version[:min(len(version), maxVersion)]}
	for _, o := range options {
		for field := range strings.SplitSeq(o, ",") {
			switch name := strings.TrimPrefix(field, "name="); {
			case name == "seccomp":
				e.Seccomp = true
			case slices.Contains([]string{"rootless", "userns"}, name):
				e.Mapped = name
			}
		}
	}
	return e
}
