package api

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/config"
)

// underPath is a proxy that serves a server below /jail and nothing beside it.
func underPath(t *testing.T, server http.Handler, takesAway bool) string {
	t.Helper()
	at, err := url.Parse(serve(t, server).URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := http.Handler(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(at)
		r.Out.Host = r.In.Host
	}})
	if takesAway {
		proxy = http.StripPrefix("/jail", proxy)
	}
	mux := http.NewServeMux()
	mux.Handle("/jail/", proxy)
	return serve(t, mux).URL + "/jail"
}

func TestEverythingIsBelowThePathOfAProxy(t *testing.T) {
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	for name, takesAway := range map[string]bool{"a proxy that takes the path away": true, "a proxy that leaves it": false} {
		t.Run(name, func(t *testing.T) {
			d := newTestAPI(t, func(o *Options) {
				o.BehindProxy, o.PublicName, o.PublicPath = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}, "127.0.0.1", "/jail"
			})
			d.holder(goodToken, "cdp", d.clock.Add(1<<40))
			at := underPath(t, d, takesAway)
			response, err := http.Get(at + "/v1/sessions/" + someID + "/cdp/json/version?token=" + goodToken)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(response.Body)
			if err := errors.Join(err, response.Body.Close()); err != nil {
				t.Fatal(err)
			}
			said := string(text)
			endpoint := "ws" + strings.TrimPrefix(at, "http") + "/v1/sessions/" + someID + "/cdp?token=" + goodToken
			if !strings.Contains(said, endpoint) {
				t.Fatalf("the endpoint is not below the path: %s", said)
			}
			conn := dial(t, endpoint) // a WebSocket goes through both
			_ = conn.CloseNow()
			<-d.client(t).Done()
		})
	}
}

func TestWhatIsNotBelowThePathIsNotTakenForIt(t *testing.T) {
	seen := ""
	h := Below("/jail", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = r.URL.EscapedPath()
		w.Header().Set("Location", r.URL.Query().Get("to"))
		w.WriteHeader(http.StatusSeeOther)
	}))
	for _, test := range []struct{ path, seen, location string }{
		{"/jail/v1/info?to=/x", "/v1/info", "/jail/x"},
		{"/v1/info?to=/x", "/v1/info", "/jail/x"}, // the proxy has taken it away
		{"/jailed/v1?to=/x", "/jailed/v1", "/jail/x"},
		{"/jail/jail/v1?to=/x", "/jail/v1", "/jail/x"},
		{"/jail/svc/a%2fb?to=/x", "/svc/a%2fb", "/jail/x"},
		{"/jail/a?to=//other.example/x", "/a", "//other.example/x"},
		{"/jail/a?to=https://other.example/x", "/a", "https://other.example/x"},
		{"/jail", "", "/jail/"},
	} {
		seen = ""
		out := httptest.NewRecorder()
		h.ServeHTTP(out, httptest.NewRequest(http.MethodGet, test.path, nil))
		if got := out.Header().Get("Location"); seen != test.seen || got != test.location {
			t.Errorf("%s: seen is %q, and it leads to %q", test.path, seen, got)
		}
	}
}

// An address below a path that begins as one of ours does could be read in two ways.
func TestNoPathOfOursIsAPublicPath(t *testing.T) {
	w := newFixture(t)
	paths := []string{consolePath, mcpPath, metricsPath, "/svc/github", "/api/chat", "/openapi.json"}
	for path := range w.api.OpenAPI().Paths {
		paths = append(paths, path)
	}
	for _, path := range paths {
		c := config.Default()
		c.PublicURL = "https://example.com/" + strings.Split(path, "/")[1]
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "public_url") {
			t.Errorf("%s is taken: %v", c.PublicURL, err)
		}
	}
}
