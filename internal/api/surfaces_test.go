package api

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/identity"
)

// spied is what a surface was asked.
type spied struct {
	asked   []gateway.Caller
	headers []http.Header
	hold    chan struct{} // when it is not nil, answers wait for it or for the end of the request
	ended   chan error
}

func (s *spied) Serves(path string) bool {
	return path == "/v1/execute" || strings.HasPrefix(path, "/svc/")
}

func (s *spied) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.asked = append(s.asked, gateway.CallerOf(r.Context()))
	s.headers = append(s.headers, r.Header)
	if s.hold != nil {
		close(s.hold)
		<-r.Context().Done()
		s.ended <- context.Cause(r.Context())
		return
	}
	fmt.Fprint(w, "served ", r.URL.EscapedPath())
}

// surfacesFixture is an inside fixture with surfaces.
func newSurfaces(t *testing.T) (*insideFixture, *spied) {
	t.Helper()
	in, spy := newInside(t), new(spied)
	in.API.Surfaces = spy
	return in, spy
}

func basic(password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte("anybody:"+password))
}

func TestSurfacesKnowAnAgentOutsideByItsTokenAlone(t *testing.T) {
	in, spy := newSurfaces(t)
	worker := in.keys["acme agent"]
	for _, c := range []struct {
		name   string
		header map[string]string
		serves bool
	}{
		{"as a bearer", map[string]string{"Authorization": "Bearer " + worker}, true},
		{"as a password", map[string]string{"Authorization": basic(worker)}, true},
		{"as an API key", map[string]string{"X-Api-Key": worker}, true},
		{"the same twice", map[string]string{"X-Api-Key": worker, "Authorization": "Bearer " + worker}, true},
		{"nothing", nil, false},
		{"a placeholder", map[string]string{"Authorization": "Bearer sk-placeholder"}, false},
		{"an admin's key", map[string]string{"Authorization": "Bearer " + in.keys["admin"]}, false},
		{"an operator's key", map[string]string{"Authorization": "Bearer " + in.keys["acme operator"]}, false},
		{"two agents'", map[string]string{"X-Api-Key": in.token2(), "Authorization": "Bearer " + worker}, false},
		{"one that is not good", map[string]string{"Authorization": "Bearer " + identity.PrefixAgent + strings.Repeat("a", 43)}, false},
		{"a token for a session", map[string]string{"Authorization": "Bearer " + in.token("acme agent", identity.ScopeControl)}, false},
	} {
		spy.asked, spy.headers = nil, nil
		r := httptest.NewRequest("POST", "http://127.0.0.1:18780/svc/git/a%2fb", strings.NewReader("x"))
		r.RemoteAddr = "127.0.0.1:1234"
		for name, value := range c.header {
			r.Header.Set(name, value)
		}
		w := httptest.NewRecorder()
		in.ServeHTTP(w, r)
		if c.serves != (w.Code == 200) || c.serves != (len(spy.asked) == 1) {
			t.Errorf("%s: %d %s", c.name, w.Code, w.Body)
			continue
		}
		if !c.serves {
			if w.Code != http.StatusUnauthorized {
				t.Errorf("%s: %d", c.name, w.Code)
			}
			continue
		}
		if got := spy.asked[0]; got.Agent != in.ids["acme"] || got.Tenant != "acme" || got.Actor != "agent:"+in.ids["acme"] || got.Jail != "" {
			t.Errorf("%s: asked as %+v", c.name, got)
		}
		if h := spy.headers[0]; h.Get("Authorization") != "" || h.Get("X-Api-Key") != "" {
			t.Errorf("%s: the token goes on: %v", c.name, h)
		}
		if w.Body.String() != "served /svc/git/a%2fb" {
			t.Errorf("%s: the path was changed: %s", c.name, w.Body)
		}
	}
}

// token2 is a token of another agent of the same tenant.
func (in *insideFixture) token2() string {
	in.t.Helper()
	key, _, err := in.identity.CreateAgent(in.ctx, in.admin, "acme", "second", identity.NeverExpires)
	if err != nil {
		in.t.Fatal(err)
	}
	return key.Reveal()
}

func TestSurfacesKnowAnAgentInsideByItsAddressAndItsTokenMustAgree(t *testing.T) {
	in, spy := newSurfaces(t)
	second := in.token2()
	for _, c := range []struct {
		name, jail, key string
		serves          bool
	}{
		{"no token", in.ids["acme"], "", true},
		{"its own", in.ids["acme"], "Bearer " + in.keys["acme agent"], true},
		{"a placeholder", in.ids["acme"], "Bearer sk-placeholder", true},
		{"another agent's", in.ids["acme"], "Bearer " + second, false},
		{"another agent's, as a password", in.ids["acme"], basic(second), false},
		{"not an agent's jail", "", "", false},
		{"not an agent's jail, with a token", "", "Bearer " + in.keys["acme agent"], false},
	} {
		spy.asked, spy.headers = nil, nil
		r := httptest.NewRequest("POST", "/v1/execute", strings.NewReader("{}"))
		r.Host, r.RemoteAddr = "gateway:3000", "10.0.0.150:1234"
		if c.key != "" {
			r.Header.Set("Authorization", c.key)
		}
		ctx := context.WithValue(r.Context(), http.LocalAddrContextKey, insideAddr)
		r = r.WithContext(gateway.WithCaller(ctx, gateway.Caller{Agent: c.jail, Jail: "a1", Tenant: "acme"}))
		w := httptest.NewRecorder()
		in.handler.ServeHTTP(w, r)
		if c.serves != (w.Code == 200) || c.serves != (len(spy.asked) == 1) {
			t.Errorf("%s: %d %s", c.name, w.Code, w.Body)
			continue
		}
		if c.serves && (spy.asked[0].Agent != in.ids["acme"] || spy.asked[0].Jail != "a1") {
			t.Errorf("%s: asked as %+v", c.name, spy.asked[0])
		}
		if c.name == "a placeholder" && spy.headers[0].Get("Authorization") == "" {
			t.Error("what is no token of ours was taken away")
		}
	}
	// A web page that a tool of the agent shows asks under another name, or says where it comes from.
	for name, change := range map[string]func(*http.Request){
		"another host": func(r *http.Request) { r.Host = "evil.example:3000" },
		"another page": func(r *http.Request) { r.Header.Set("Origin", "http://evil.example") },
		"another site": func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") },
	} {
		spy.asked = nil
		r := httptest.NewRequest("POST", "/svc/git/x", nil)
		r.Host = "gateway:3000"
		change(r)
		r = r.WithContext(gateway.WithCaller(context.WithValue(r.Context(), http.LocalAddrContextKey, insideAddr), gateway.Caller{Agent: in.jail}))
		w := httptest.NewRecorder()
		in.handler.ServeHTTP(w, r)
		if w.Code == 200 || len(spy.asked) != 0 {
			t.Errorf("%s: %d", name, w.Code)
		}
	}
}

func TestARevokedAgentsRequestToASurfaceEnds(t *testing.T) {
	in, spy := newSurfaces(t)
	spy.hold, spy.ended = make(chan struct{}), make(chan error, 1)
	r := httptest.NewRequest("GET", "http://127.0.0.1:18780/svc/git/x", nil)
	r.RemoteAddr = "127.0.0.1:1234"
	r.Header.Set("Authorization", "Bearer "+in.keys["acme agent"])
	done := make(chan struct{})
	go func() {
		defer close(done)
		in.ServeHTTP(httptest.NewRecorder(), r)
	}()
	<-spy.hold
	if err := in.identity.RevokeAgent(in.ctx, in.admin, "acme", "worker"); err != nil {
		t.Fatal(err)
	}
	if err := <-spy.ended; err == nil {
		t.Error("the request ended without a reason")
	}
	<-done
}

// A task, or a question to a model, is not broken off because its agent was given a new token; what listens comes again with it.
func TestWhatIsDoneOutlivesTheRotationOfItsToken(t *testing.T) {
	for method, goesOn := range map[string]bool{"POST": true, "GET": false} {
		in, spy := newSurfaces(t)
		spy.hold, spy.ended = make(chan struct{}), make(chan error, 1)
		r := httptest.NewRequest(method, "http://127.0.0.1:18780/svc/git/x", nil)
		r.RemoteAddr = "127.0.0.1:1234"
		r.Header.Set("Authorization", "Bearer "+in.keys["acme agent"])
		done := make(chan struct{})
		go func() {
			defer close(done)
			in.ServeHTTP(httptest.NewRecorder(), r)
		}()
		<-spy.hold
		_, _, err := in.identity.RotateToken(in.ctx, in.admin, "acme", "worker", identity.NeverExpires, time.Nanosecond)
		if err != nil {
			t.Fatal(err)
		}
		if goesOn {
			// A request that is not held so is cut by the same goroutine, after this one.
			sooner := make(chan struct{})
			by := identity.OfJail(in.jail, "acme")
			by.ExpiresAt = time.Now().Add(20 * time.Millisecond)
			if _, err := in.identity.WatchValidity(in.ctx, by, func(error) { close(sooner) }); err != nil {
				t.Fatal(err)
			}
			<-sooner
			select {
			case err := <-spy.ended:
				t.Errorf("%s was ended: %v", method, err)
			default:
			}
			if err := in.identity.RevokeAgent(in.ctx, in.admin, "acme", "worker"); err != nil {
				t.Fatal(err)
			}
		}
		if err := <-spy.ended; err == nil {
			t.Errorf("%s ended without a reason", method)
		}
		<-done
	}
}

func TestMetricsAreForAdminsUnlessTheyAreOpen(t *testing.T) {
	for _, open := range []bool{false, true} {
		w := newFixture(t, func(o *Options) {
			o.Metrics, o.OpenMetrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "clawjail_x 1") }), open
		})
		for who, want := range map[string]int{"admin": 200, "acme operator": 403, "acme agent": 403, "": 401} {
			if open {
				want = 200
			}
			r := httptest.NewRequest("GET", "http://127.0.0.1:18780/metrics", nil)
			r.RemoteAddr = netip.MustParseAddrPort("127.0.0.1:1234").String()
			if who != "" {
				r.Header.Set("Authorization", "Bearer "+w.keys[who])
			}
			rec := httptest.NewRecorder()
			w.ServeHTTP(rec, r)
			if rec.Code != want {
				t.Errorf("open %t, %q: %d, want %d", open, who, rec.Code, want)
			}
		}
	}
}

func TestARevokedAgentsRequestFromItsJailEndsWithoutATokenToo(t *testing.T) {
	in, spy := newSurfaces(t)
	spy.hold, spy.ended = make(chan struct{}), make(chan error, 1)
	r := httptest.NewRequest("GET", "/svc/git/x", nil)
	r.Host = "gateway:3000"
	ctx := context.WithValue(r.Context(), http.LocalAddrContextKey, insideAddr)
	r = r.WithContext(gateway.WithCaller(ctx, gateway.Caller{Agent: in.jail, Jail: "a1", Tenant: "acme"}))
	done := make(chan struct{})
	go func() {
		defer close(done)
		in.handler.ServeHTTP(httptest.NewRecorder(), r)
	}()
	<-spy.hold
	if err := in.identity.RevokeAgent(in.ctx, in.admin, "acme", "worker"); err != nil {
		t.Fatal(err)
	}
	if err := <-spy.ended; err == nil {
		t.Error("the request ended without a reason")
	}
	<-done
	again := httptest.NewRecorder()
	in.handler.ServeHTTP(again, r)
	if again.Code != http.StatusUnauthorized {
		t.Errorf("a revoked agent is answered %d", again.Code)
	}
}
