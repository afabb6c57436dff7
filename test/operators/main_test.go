//go:build linux

// Package operators tries what people do with an installation: a day with logins and the audit log, a backup, the end of it; and with a browser on
// their own machine.
package operators

import (
	"os"
	"testing"

	"github.com/clawjail/clawjail/test/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }
