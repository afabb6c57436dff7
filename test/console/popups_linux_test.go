//go:build linux

package console

import (
	"net/url"
	"strings"
	"testing"
)

// These reach a person past the picture: windows that the browser in a jail draws by itself, and attempts of a page to get out of its
// box. And the way in that needs no key.
func TestAnOperatorAnswersABrowserAndNoPageLeavesItsBox(t *testing.T) {
	v := newOperated(t)
	t.Run("passkeys", func(t *testing.T) {
		// Browsers have passkeys for names alone, and the console has them at its own port alone: the cable's is another.
		v.script(t, "console_passkey.mjs", map[string]string{"CONSOLE": "http://localhost:" + v.port(v.env["API"]), "ELSEWHERE": "http://localhost:" + v.port(v.env["CONSOLE"])})
	})
	t.Run("popups", func(t *testing.T) {
		v.script(t, "console_popups.mjs", nil)
		if v.portal.uploaded() == "" {
			t.Error("the site has no file")
		}
	})
	t.Run("keyboards", func(t *testing.T) {
		v.script(t, "console_keyboards.mjs", nil)
		if written := v.written(); strings.Contains(written, "hunter2") {
			t.Error("what was pasted is written down")
		} else if !strings.Contains(written, "session.control") && !strings.Contains(written, "take_over") {
			t.Error("nothing written down says that somebody steered, so nothing was looked at")
		}
	})
	t.Run("a hostile page", func(t *testing.T) {
		v.script(t, "console_hostile.mjs", nil)
	})
	if strings.Contains(v.Log(), "builder") {
		t.Error("the password for a site is in the log")
	}
}

// port is that of an address.
func (v *operated) port(address string) string {
	v.T.Helper()
	u, err := url.Parse(address)
	if err != nil {
		v.T.Fatal(err)
	}
	return u.Port()
}
