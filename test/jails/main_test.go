//go:build linux

// Package jails tries jails: that drivers conform, that nothing leaves but by the gateway, and that nothing is left when something is killed.
package jails

import (
	"os"
	"testing"

	"github.com/clawjail/clawjail/test/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }
