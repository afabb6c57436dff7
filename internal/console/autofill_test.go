package console

import (
	"io/fs"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// A browser that was told to keep the console's key would fill it in wherever the console asks for a password: also for
// one that a page in a jail asks for, who gets it.
func TestTheKeyOfTheConsoleIsFilledInNowhereElse(t *testing.T) {
	w := newFixture(t)
	field := regexp.MustCompile(`<input type="password"[^>]*>`)
	for _, path := range []string{"/console/credentials/secrets/add", "/console/sessions?open=yes"} {
		p := w.get("admin", path)
		all := field.FindAllString(p.body, -1)
		if p.status != http.StatusOK || len(all) == 0 {
			t.Errorf("%s: %d, and no password is asked for", path, p.status)
		}
		for _, one := range all {
			if !strings.Contains(one, `autocomplete="new-password"`) {
				t.Errorf("%s: %s", path, one)
			}
		}
	}
	scripted := regexp.MustCompile(`type: 'password'[^}]*`)
	found := 0
	names, err := fs.Glob(staticFiles, "static/*.js")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		text, err := staticFiles.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range scripted.FindAllString(string(text), -1) {
			if found++; !strings.Contains(one, "autocomplete: 'new-password'") {
				t.Errorf("%s: %s", name, one)
			}
		}
	}
	if found == 0 {
		t.Error("no script asks for a password")
	}
}
