//go:build linux

// Package containers tries what is made with an engine for containers: agents, the file for Docker Compose, the gateway and webhooks.
package containers

import (
	"fmt"
	"os"
	"testing"

	"github.com/clawjail/clawjail/test/testkit"
)

func TestMain(m *testing.M) {
	status := testkit.Main(m)
	if engine != nil {
		if err := engine.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stop the engine:", err)
			status = 1
		}
	}
	os.Exit(status)
}
