//go:build linux

// Package containers tries what is made with an engine for containers: agents, the file for Docker Compose, the gateway and webhooks.
package containers

import (
	"os"
	"testing"

	"github.com/clawjail/clawjail/test/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }
