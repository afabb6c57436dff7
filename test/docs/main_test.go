//go:build linux

// Package docs does what the documentation says: every command, the examples, and the files for reverse proxies.
package docs

import (
	"os"
	"testing"

	"github.com/clawjail/clawjail/test/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }
