//go:build linux

// Package agents tries agents in jails without containers: sync, confinement, programs that are started, models and MCP servers.
package agents

import (
	"os"
	"testing"

	"github.com/clawjail/clawjail/test/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }
