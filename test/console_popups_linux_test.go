//go:build linux

package test

import (
	"net/url"
	"strings"
	"testing"
)

// What reaches a person past the picture: what the browser in a jail draws by itself, and what a page does to get out of its
// box. And the way in that needs no key.
func TestAnOperatorAnswersABrowserAndNoPageLeavesItsBox(t *testing.T) {
	v := newOperated(t)
	console, err := url.Parse(v.env["CONSOLE"])
	if err != nil {
		t.Fatal(err)
	}
	t.Run("passkeys", func(t *testing.T) {
		// Browsers have passkeys for names alone.
		v.script(t, "console_passkey.mjs", map[string]string{"CONSOLE": "http://localhost:" + console.Port()})
	})
	t.Run("popups", func(t *testing.T) {
		v.script(t, "console_popups.mjs", nil)
		if v.portal.uploaded() == "" {
			t.Error("the site has no file")
		}
	})
	t.Run("a hostile page", func(t *testing.T) {
		v.script(t, "console_hostile.mjs", nil)
	})
	if strings.Contains(v.Log(), "builder") {
		t.Error("the password for a site is in the log")
	}
}
