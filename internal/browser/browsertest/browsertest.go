//go:build unix

// Package browsertest starts browsers for tests of what uses them. Only tests import it.
package browsertest

import (
	"testing"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/cdp/cdptest"
	"github.com/clawjail/clawjail/internal/testenv"
)

// Shell starts a headless shell as a session does, without its jail, before a proxy.
func Shell(t testing.TB, proxy string) *cdptest.Browser {
	t.Helper()
	home := cdptest.Dir(t)
	o := browser.Options{Build: browser.Shell, Binary: testenv.Chromium(t), Proxy: proxy, ProfileDir: home + "/profile", Home: home, TempDir: home}
	line, err := browser.Command(o)
	if err != nil {
		t.Fatal(err)
	}
	env, err := browser.Environment(o)
	if err != nil {
		t.Fatal(err)
	}
	return cdptest.Start(t, line, env)
}
