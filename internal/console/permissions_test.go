package console

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestAnAccountIsPermittedAndTakenBackInTheConsole(t *testing.T) {
	w := newFixture(t)
	w.account("acme", "example.com", 90*24*time.Hour)
	const place = "/console/credentials/accounts/acme/example.com"
	w.get("acme operator", place).holds(t, http.StatusOK, "each session with it needs a grant", "There is no agent yet")
	w.agent("acme", "shopper")
	w.agent("beta", "theirs")
	form := w.get("acme operator", place)
	form.holds(t, http.StatusOK, "Let an agent use it", `<option value="shopper"`)
	form.lacks(t, "theirs")
	w.get("acme operator", "/console/credentials/permissions").holds(t, http.StatusOK, "No permissions")

	allow := func(who string, pairs ...string) page { return w.post(who, place+"/allow", pairs...) }
	good := []string{"agent", "shopper", "access", "tools", "ask", "first", "for", "30d", "times", "20", "hours", "08-18"}
	for what, c := range map[string]struct{ field, value, says string }{
		"a time":    {"for", "soon", `id="f-for-wrong"`},
		"a number":  {"times", "many", `id="f-times-wrong"`},
		"none":      {"times", "0", `id="f-times-wrong"`},
		"hours":     {"hours", "8-18", `id="f-hours-wrong"`},
		"an access": {"access", "cdp", "may not be used with access cdp"},
		"an agent":  {"agent", "theirs", "there is no agent"},
	} {
		bad := append([]string{}, good...)
		for n := 0; n < len(bad); n += 2 {
			if bad[n] == c.field {
				bad[n+1] = c.value
			}
		}
		p := allow("acme operator", bad...)
		if !strings.Contains(p.body, c.says) || p.status/100 != 4 {
			t.Errorf("%s: %d without %s\n%s", what, p.status, c.says, p.body)
		}
	}
	allow("acme viewer", good...).holds(t, http.StatusForbidden)
	allow("beta operator", good...).holds(t, http.StatusNotFound)
	if all, err := w.accounts.Permissions(w.ctx, w.admin, ""); err != nil || len(all) != 0 {
		t.Fatalf("%+v, %v", all, err)
	}

	w.follow("acme operator", allow("acme operator", good...)).holds(t, http.StatusOK, "shopper may use the account of example.com now", "08-18 UTC", "asks before the first use",
		"20 left", "operator operator", "Take it back")
	all, err := w.accounts.Permissions(w.ctx, w.admin, "")
	if err != nil || len(all) != 1 || all[0].ExpiresAt.IsZero() {
		t.Fatalf("%+v, %v", all, err)
	}
	list := w.get("acme operator", "/console/credentials/permissions")
	list.holds(t, http.StatusOK, "example.com", "shopper", "Take it back")
	viewer := w.get("acme viewer", "/console/credentials/permissions")
	viewer.holds(t, http.StatusOK, "shopper")
	viewer.lacks(t, "Take it back")
	w.get("acme viewer", place).lacks(t, "Let an agent use it")
	w.get("beta operator", "/console/credentials/permissions").lacks(t, "shopper")
	const disallow = "/console/credentials/permissions/disallow"
	w.post("acme viewer", disallow, "id", all[0].ID).holds(t, http.StatusForbidden)
	w.post("beta operator", disallow, "id", all[0].ID).holds(t, http.StatusNotFound)
	w.follow("acme operator", w.post("acme operator", disallow, "id", all[0].ID)).holds(t, http.StatusOK, "shopper may no longer use the account of example.com. 0 sessions ended.", "No permissions")
}
