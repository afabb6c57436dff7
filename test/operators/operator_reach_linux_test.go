//go:build linux

package operators

import (
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/selftest/website"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/test/testkit"
)

// TestAnOperatorsBrowserReachesWhatItsGrantNames has three browsers ask for the same page of the same server: a clean
// session gets it, an operator session does not, and one whose grant names the host too gets it again.
func TestAnOperatorsBrowserReachesWhatItsGrantNames(t *testing.T) {
	v := visiting(t, instance.Options{Settings: testkit.NoPool})
	v.run("cookies", "import", v.storageState("alice"), "--domain", website.Domain)

	clean := v.Open(session.OpenRequest{})
	v.reaches(clean, "a clean session")
	v.Close(clean)

	narrow, err := v.operator()
	if err != nil {
		t.Fatal(err)
	}
	// Its browser works: what it does not reach is refused, and not broken.
	page, err := v.API.Navigate(t.Context(), narrow.ID, browser.Navigate{URL: v.site.URL("/account")})
	if err != nil || page.Title != website.TitleOf("alice") {
		t.Fatalf("the site of the grant: %+v, %v", page, err)
	}
	before := v.elsewhere.visits.Load()
	page, err = v.API.Navigate(t.Context(), narrow.ID, browser.Navigate{URL: v.elsewhere.url})
	if err == nil && page.Status/100 == 2 || page.Title == elsewhereTitle {
		t.Errorf("another host from an operator session: %+v, %v", page, err)
	}
	if n := v.elsewhere.visits.Load() - before; n != 0 {
		t.Errorf("another host had %d visits from an operator session", n)
	}
	v.Close(narrow.ID)
	rows := v.run("audit", "ls", "--session", narrow.ID, "--json")
	if !strings.Contains(rows, elsewhereDomain) || !strings.Contains(rows, problem.HostDenied) {
		t.Errorf("the gateway has not refused the other host: %s", rows)
	}

	issued, err := client.Call(t.Context(), v.API, op.IssueGrant(), op.NewGrant{Body: op.With(op.GrantRequest{Domains: []string{website.Domain},
		EgressDomains: []string{elsewhereDomain}})})
	if err != nil {
		t.Fatal(err)
	}
	wide, err := v.API.Open(t.Context(), session.OpenRequest{CredentialMode: session.ModeOperator,
		Domains: []string{website.Domain}, Grant: grant.ParseToken(issued.Token)})
	if err != nil {
		t.Fatal(err)
	}
	v.reaches(wide.ID, "an operator session whose grant names the host")
	v.Close(wide.ID)
	v.Clean(20 * time.Second)
}

// reaches looks whether a session gets the page of the other site, and whether its server has seen that.
func (v *visited) reaches(id, who string) {
	v.T.Helper()
	before := v.elsewhere.visits.Load()
	page, err := v.API.Navigate(v.T.Context(), id, browser.Navigate{URL: v.elsewhere.url})
	if err != nil || page.Title != elsewhereTitle || v.elsewhere.visits.Load() == before {
		v.T.Fatalf("%s does not reach the other host, so a refusal shows nothing: %+v, %v", who, page, err)
	}
}
