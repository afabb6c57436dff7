//go:build linux

package operators

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/test/testkit"
)

// A sign-in that was begun at one control plane is ended at any: a load balancer may send each request to another one.
func TestASignInIsEndedByWayOfAnyControlPlane(t *testing.T) {
	first, second := sharing(t, true, "public_url: https://clawjail.test\nbehind_proxy: [127.0.0.1/32]\n")
	person := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	post := func(at *testkit.Installation, path, kind, body string) (status int, text string, cookies []*http.Cookie) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, at.URL()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Host = "clawjail.test" // what both are called by
		r.Header.Set("Origin", "https://clawjail.test")
		r.Header.Set("X-Forwarded-For", "192.0.2.1")
		r.Header.Set("Content-Type", kind)
		answer, err := person.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = answer.Body.Close() }()
		said, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(said), answer.Cookies()
	}
	const form, script = "application/x-www-form-urlencoded", "application/json"
	links := func(at *testkit.Installation) string {
		t.Helper()
		link, err := at.API.ConsoleLink(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return url.Values{"code": {link.Code}}.Encode()
	}
	refresh, err := first.API.OpenRefresh(t.Context(), api.RefreshRequest{Domain: "example.com"})
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []*testkit.Installation{first, second} {
		code := links(first)
		status, text, cookies := post(at, "/console/sign-in", form, code)
		if status != http.StatusSeeOther || len(cookies) == 0 {
			t.Fatalf("a link of the first is answered %d by %s: %.2000s", status, at.Config.Node, text)
		}
		for _, one := range []*testkit.Installation{first, second} {
			for path, want := range map[string]int{"sessions": http.StatusOK, "refresh/" + refresh.Session.ID: http.StatusOK, "refresh/" + refresh.Session.ID + "x": http.StatusNotFound} {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, one.URL()+"/console/"+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				r.Host = "clawjail.test"
				r.Header.Set("X-Forwarded-For", "192.0.2.1")
				for _, c := range cookies {
					r.AddCookie(c)
				}
				answer, err := person.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				if _ = answer.Body.Close(); answer.StatusCode != want {
					t.Errorf("who is signed in by %s is answered %s by %s at %s", at.Config.Node, answer.Status, one.Config.Node, path)
				}
			}
			if status, _, _ := post(one, "/console/sign-in", form, code); status != http.StatusUnauthorized {
				t.Errorf("a link that was used is answered %d by %s", status, one.Config.Node)
			}
		}
	}

	// What a browser has signed is looked at by who has asked it, and nobody else knows what that was.
	refusal := func(at *testkit.Installation, challenge string) string {
		t.Helper()
		body, err := json.Marshal(map[string]any{"challenge": challenge, "response": map[string]any{}})
		if err != nil {
			t.Fatal(err)
		}
		status, text, _ := post(at, "/console/sign-in/passkey", script, string(body))
		if status/100 != 4 {
			t.Errorf("%s answers %d: %s", at.Config.Node, status, text)
		}
		return text
	}
	status, text, _ := post(first, "/console/sign-in/passkey/begin", script, "{}")
	var begun struct{ Challenge string }
	if err := json.Unmarshal([]byte(text), &begun); err != nil || status != http.StatusOK {
		t.Fatalf("a passkey is asked for with %d %s: %v", status, text, err)
	}
	if here, there := refusal(first, begun.Challenge), refusal(second, begun.Challenge); here != there || strings.Contains(there, "was used already") {
		t.Errorf("what no passkey has signed is answered %s by the one that has asked, and %s by the other", here, there)
	}
	if text := refusal(second, begun.Challenge[:len(begun.Challenge)-4]+"AAAA"); !strings.Contains(text, "was used already") {
		t.Errorf("what nobody has asked is answered %s", text)
	}

	// A link of one that is gone is none.
	code := links(second)
	if err := second.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if status, text, _ := post(first, "/console/sign-in", form, code); status != http.StatusUnauthorized {
		t.Errorf("a link of one that has stopped is answered %d: %.2000s", status, text)
	}
}
