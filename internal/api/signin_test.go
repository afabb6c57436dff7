package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/identity/signin"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
)

func TestALinkToTheConsoleIsWhereItsMakerAsked(t *testing.T) {
	w := newFixture(t, func(o *Options) {
		o.BehindProxy, o.PublicName = []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15")}, "jail.example"
	})
	for host, want := range map[string]string{
		"127.0.0.1:18780 plain": "http://localhost:18780", "[::1]:18780 plain": "http://localhost:18780", "jail.example plain": "http://jail.example",
		"127.0.0.1:18780": "https://127.0.0.1:18780", "localhost:18780": "https://localhost:18780", "jail.example": "https://jail.example",
	} {
		d := &testAPI{API: w.API, key: "wrong"}
		a := d.ask(t, "POST", "/v1/console/links", "", key(w.keys["acme viewer"]), func(r *http.Request) {
			name, plain := strings.CutSuffix(host, " plain")
			r.Host, r.RemoteAddr = name, "198.18.0.1:1"
			if !plain {
				r.Header.Set("X-Forwarded-Proto", "https")
			}
		})
		var link ConsoleLink
		if err := json.Unmarshal([]byte(a.body), &link); err != nil || a.StatusCode != 200 {
			t.Fatalf("%d %s, %v", a.StatusCode, a.body, err)
		}
		if link.URL != want+"/console/sign-in?code="+url.QueryEscape(link.Code) || time.Until(link.ExpiresAt) <= 9*time.Minute {
			t.Errorf("at %s it is %s, until %s", host, link.URL, link.ExpiresAt)
		}
		if said := fmt.Sprintf("%v %+v %#v", link, link, link); strings.Contains(said, link.Code) {
			t.Errorf("it prints as %s", said)
		}
		if _, in, err := w.signIns.WithLink(t.Context(), link.Code, signin.From{}); err != nil || in.Name != "viewer" {
			t.Errorf("signed in as %+v, %v", in, err)
		}
		if strings.Contains(w.written.String(), link.Code) {
			t.Error("the code is in the log")
		}
	}
}

// On the machine itself the command line asks at a loopback address, for a person who is elsewhere.
func TestLinksToTheConsoleAreOfThePublicAddress(t *testing.T) {
	for _, public := range []string{"https://jail.example/jail", ""} {
		d := newTestAPI(t, func(o *Options) {
			o.PublicURL, o.PublicName, o.PublicPath = public, "jail.example", config.PublicPath(public)
			o.Console = http.NotFoundHandler()
		})
		for host, want := range map[string]string{"127.0.0.1:18780": "http://localhost:18780", "[::1]:18780": "http://localhost:18780", "localhost:18780": "http://localhost:18780",
			"jail.example": "http://jail.example" + config.PublicPath(public)} {
			if public != "" && host != "jail.example" {
				want = public
			}
			var refresh RefreshSession
			a := d.ask(t, "POST", "/v1/refreshes", `{"domain":"example.com"}`, func(r *http.Request) { r.Host = host })
			if err := json.Unmarshal([]byte(a.body), &refresh); err != nil || refresh.ConsoleURL != want+"/console/refresh/"+someID {
				t.Errorf("%q, asked at %s: %s, %v", public, host, a.body, err)
			}
		}
	}
}

func TestSignInsAreListedAndEnded(t *testing.T) {
	w := newFixture(t)
	cookie, in, err := w.signIns.WithKey(t.Context(), w.keys["acme viewer"], signin.From{UserAgent: "Firefox"})
	if err != nil {
		t.Fatal(err)
	}
	a := w.request("acme viewer", "GET", "/v1/console/sign-ins", "")
	var list op.SignIns
	if err := json.Unmarshal([]byte(a.body), &list); err != nil || len(list.SignIns) != 1 || list.SignIns[0].ID != in.ID || list.SignIns[0].UserAgent != "Firefox" || list.SignIns[0].Current {
		t.Errorf("%s, %v", a.body, err)
	}
	if a := w.request("acme operator", "GET", "/v1/console/sign-ins", ""); strings.Contains(a.body, in.ID) {
		t.Errorf("another sees it: %s", a.body)
	}
	if a := w.request("acme admin", "DELETE", "/v1/console/sign-ins/"+in.ID, ""); a.StatusCode != 204 {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	if _, _, err := w.signIns.Who(t.Context(), cookie); problem.CodeOf(err) != problem.Unauthorized {
		t.Errorf("it goes on: %v", err)
	}
	w.request("acme viewer", "DELETE", "/v1/console/sign-ins/"+in.ID, "").wantProblem(t, 404, problem.NotFound)
}

func TestWithoutAConsoleThereIsNothingOfIt(t *testing.T) {
	w := newFixture(t, func(o *Options) { o.SignIn = nil })
	for _, route := range [][2]string{{"POST", "/v1/console/links"}, {"GET", "/v1/console/sign-ins"}, {"DELETE", "/v1/console/sign-ins/si_1"}} {
		w.request("admin", route[0], route[1], "").wantProblem(t, 404, problem.NotFound)
	}
}
