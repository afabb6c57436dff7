package console

import (
	"net/http"
	"strings"
	"testing"
)

func TestOverviewIsShownToWhoIsSignedIn(t *testing.T) {
	w := newFixture(t)
	if p := w.get("admin", "/console/"); p.status != http.StatusOK || !strings.Contains(p.body, "<h1>Overview</h1>") {
		t.Errorf("%d\n%s", p.status, p.body)
	}
	if p := w.get("", "/console/"); p.status != http.StatusSeeOther || p.location != "/console/sign-in?next=%2Fconsole%2F" {
		t.Errorf("%d to %q", p.status, p.location)
	}
}
