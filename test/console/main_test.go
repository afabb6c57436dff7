//go:build linux

// Package console tries the console with a browser: every page, live views, and who steers.
package console

import (
	"os"
	"testing"

	"github.com/clawjail/clawjail/test/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }
