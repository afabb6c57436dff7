package service

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway/access/accesstest"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// bot is a credential that may stand in a path.
const bot = "123456789:AAF-bot_tok.en"

// botFixture is the service telegram behind the real gateway, with its credential in the path.
type botFixture struct {
	*accesstest.Real
	t      *testing.T
	origin string
	seen   accesstest.Seen
	logs   testenv.Buffer
	client *http.Transport
}

func newBotFixture(t *testing.T, upstream http.HandlerFunc) *botFixture {
	t.Helper()
	w := &botFixture{Real: accesstest.NewReal(t), t: t, client: &http.Transport{DisableCompression: true}}
	t.Cleanup(w.client.CloseIdleConnections)
	o := w.Options()
	o.Log = slog.New(slog.NewTextHandler(&w.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	h, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	h.views = w.View
	w.Handle(h)
	var tool policy.Rule
	w.origin, tool = w.Lead("http", "api.example", w.seen.Handler(upstream))
	tool.Methods, tool.Path = []string{"GET", "POST"}, policy.MustParsePath("/bot%7Bsecret%7D/*")
	w.Secret("telegram", bot)
	w.Services["telegram"] = egress.Service{Name: "telegram", Upstream: egress.Upstream{BaseURL: w.origin + "/bot{secret}"}, Inject: egress.Injection{Type: egress.InjectPath}}
	w.Permits["telegram"] = w.Allow(tool)
	return w
}

// leaks says whether a text has the credential, or the half of it that is secret, as it is or with escapes.
func leaks(text string) bool {
	plain, _ := url.PathUnescape(text)
	for _, part := range []string{bot, "AAF-bot_tok.en"} {
		if strings.Contains(text, part) || strings.Contains(plain, part) {
			return true
		}
	}
	return false
}

// scrubbed sets what becomes of answers with the credential in them.
func (w *botFixture) scrubbed(how egress.Scrub) {
	s := w.Services["telegram"]
	s.Scrub = how
	w.Services["telegram"] = s
}

func (w *botFixture) get(path string, header ...string) (*http.Response, string) {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, w.URL+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := w.client.RoundTrip(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	if leaks(fmt.Sprint(resp.Header, resp.Trailer)) || w.Services["telegram"].Scrub != egress.ScrubOff && leaks(string(body)) {
		w.t.Errorf("%s: the answer has the credential: %q %s", path, resp.Header, body)
	}
	return resp, string(body)
}

// kept says that no record and no log has the credential.
func (w *botFixture) kept() {
	w.t.Helper()
	if all := fmt.Sprintf("%+v %+v %s", w.Begun(), w.Denied(), w.logs.String()); leaks(all) {
		w.t.Errorf("a record or the log has the credential: %s", all)
	}
}

func TestACredentialInThePathIsSeenByTheServiceAlone(t *testing.T) {
	w := newBotFixture(t, func(rw http.ResponseWriter, r *http.Request) {
		escaped := strings.NewReplacer(":", "%3a").Replace(bot)
		rw.Header().Set("X-Echo", r.RequestURI)
		rw.Header().Set("Link", "<"+r.RequestURI+`>; rel="self"`)
		_, _ = fmt.Fprintf(rw, "%s %s %s %s %q", r.RequestURI, r.URL.Path, url.QueryEscape(bot), escaped, bot)
	})
	resp, body := w.get("/svc/telegram/getMe?offset=5", "Referer", w.URL+"/svc/telegram/getMe", "Authorization", "Bearer mine")
	got := w.seen.Last(t)
	if got.Target != "/bot"+bot+"/getMe?offset=5" || got.Header.Get("Referer") != "" || got.Header.Get("Authorization") != "" {
		t.Errorf("%+v", got)
	}
	if resp.StatusCode != 200 || resp.Header.Get("X-Echo") != "/bot[redacted]/getMe?offset=5" || !strings.HasPrefix(body, "/bot[redacted]/getMe?offset=5 /bot[redacted]/getMe [redacted] [redacted]") {
		t.Errorf("%s %q %s", resp.Status, resp.Header, body)
	}
	if d := w.Begun()[0]; d.Path != "/bot{secret}/getMe" || !d.Credential || d.Service != "telegram" {
		t.Errorf("%+v", d)
	}
	// What the agent writes comes behind the base URL, and is not the place.
	for path, target := range map[string]string{
		"/svc/telegram/%7Bsecret%7D":     "/bot" + bot + "/%7Bsecret%7D",
		"/svc/telegram/x?y=%7Bsecret%7D": "/bot" + bot + "/x?y=%7Bsecret%7D",
	} {
		w.get(path)
		if got := w.seen.Last(t); got.Target != target {
			t.Errorf("%s: %s, want %s", path, got.Target, target)
		}
	}
	sent := len(w.seen.All())
	for _, path := range []string{"/svc/telegram", "/svc/telegram/a/b", "/svc/telegram/../x", "/svc/telegram/%2e%2e/bot%7Bsecret%7D/x", "/svc/telegram/a%2Fb", "/svc/telegram//getMe"} {
		if resp, body := w.get(path); resp.Header.Get("Clawjail-Refusal") != problem.PathDenied {
			t.Errorf("%s: %s %s", path, resp.Status, body)
		}
	}
	if n := len(w.seen.All()); n != sent {
		t.Errorf("%d requests left that were refused", n-sent)
	}
	s := w.Services["telegram"]
	s.EncodedSlash = egress.EncodedSlashAllow
	w.Services["telegram"] = s
	w.get("/svc/telegram/a%2fb")
	if got := w.seen.Last(t); got.Target != "/bot"+bot+"/a%2Fb" {
		t.Errorf("%+v", got)
	}
	w.scrubbed(egress.ScrubBlock)
	if resp, body := w.get("/svc/telegram/getMe"); resp.Header.Get("Clawjail-Refusal") != problem.ResponseBlocked {
		t.Errorf("%s %s", resp.Status, body)
	}
	w.kept()
}

// What stands for the placeholder could be any path, also one that is denied.
func TestAPathThatIsDeniedClosesTheHostToACredentialInThePath(t *testing.T) {
	w := newBotFixture(t, nil)
	allowed := w.Permits["telegram"].Policy().Rules[0]
	for host, refused := range map[string]bool{"api.example": true, "other.example": false} {
		deny := allowed
		deny.Name, deny.Action, deny.Address, deny.Methods = "never", policy.Deny, netip.Addr{}, nil
		deny.Host, deny.Path = policy.MustParsePattern(host), policy.MustParsePath("/internal/**")
		w.Permits["telegram"] = w.Allow(deny, allowed)
		sent := len(w.seen.All())
		resp, body := w.get("/svc/telegram/getMe")
		if got := resp.Header.Get("Clawjail-Refusal") != ""; got != refused || refused == (len(w.seen.All()) > sent) || strings.Contains(body, bot) {
			t.Errorf("%s: %s %s", host, resp.Status, body)
		}
	}
}

func TestARedirectOfAServiceWithItsCredentialInThePath(t *testing.T) {
	var location string
	w := newBotFixture(t, func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Location", location)
		rw.Header().Set("Content-Location", location)
		rw.WriteHeader(http.StatusFound)
	})
	for _, how := range []egress.Scrub{egress.ScrubRedact, egress.ScrubBlock, egress.ScrubOff} {
		w.scrubbed(how)
		for _, test := range [][2]string{
			{"/bot" + bot + "/next?x=1", "/svc/telegram/next?x=1"}, {w.origin + "/bot" + bot + "/next", "/svc/telegram/next"}, {"next", "/svc/telegram/next"},
			{"/bot" + strings.ReplaceAll(bot, ":", "%3a") + "/next", "/svc/telegram/next"}, {"/bot" + bot, "/svc/telegram"},
			{"/file/bot" + bot + "/f", w.origin + "/file/bot%7Bsecret%7D/f"}, {"/bot" + bot + "x/next", w.origin + "/bot%7Bsecret%7Dx/next"},
			{"http://other.example/?t=" + url.QueryEscape(bot), "http://other.example/?t={secret}"}, {"/login", w.origin + "/login"},
		} {
			location = test[0]
			resp, _ := w.get("/svc/telegram/getMe")
			if resp.StatusCode != 302 || resp.Header.Get("Location") != test[1] || resp.Header.Get("Content-Location") != test[1] {
				t.Errorf("%s, %s: %s %q, want %q", how, test[0], resp.Status, resp.Header, test[1])
			}
		}
	}
	w.kept()
}

func TestNothingIsSentWithACredentialThatNoPathCanHave(t *testing.T) {
	w := newBotFixture(t, nil)
	for _, value := range []string{"1234/AAF-bot_tok.en", "..%2fAAF-bot_tok.en", "1234?AAF-bot_tok.en", "1234#AAF-bot_tok.en", `1234\AAF-bot_tok.en`, "1234\nAAF-bot_tok.en", "........"} {
		w.Secret("telegram", value)
		if resp, body := w.get("/svc/telegram/getMe"); resp.Header.Get("Clawjail-Refusal") != problem.BadSecret {
			t.Errorf("%q: %s %s", value, resp.Status, body)
		}
	}
	if n := len(w.seen.All()); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
	w.Secret("telegram", bot)
	if resp, body := w.get("/svc/telegram/getMe"); resp.StatusCode != 200 || len(w.seen.All()) != 1 {
		t.Errorf("%s %s", resp.Status, body)
	}
	w.kept()
}
