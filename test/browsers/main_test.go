//go:build linux

// Package browsers tries browsers in jails with stock clients of others: what they can do, and that no value of a login reaches them.
package browsers

import (
	"os"
	"testing"

	"github.com/clawjail/clawjail/test/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }
