package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
)

// An errand passes by its own permit. Where that was for one use and has had it, the rules of the proxy, which
// are wider and know nothing of credentials, do not take its place.
func TestAnErrandThatWasForOneUseDoesNotFallBackToTheProxysRules(t *testing.T) {
	s := web(t, func(http.ResponseWriter, *http.Request) { t.Error("a request left") })
	may, _ := leading(t, "api.corp", s.Listener.Addr())
	var asked atomic.Int32
	w := newFixture(t, func(c *Config) {
		c.Used = func(_ context.Context, rule string) (ok, once bool) { asked.Add(1); return rule != "private", true }
		c.Policy = func(Caller) *policy.Compiled {
			wide := private("api.corp", "127.0.0.1", uint16(s.Listener.Addr().(*net.TCPAddr).Port))
			wide.Rules[0].Name = "of the proxy"
			return permit(t, wide)
		}
	})
	_, refusal := w.g.Send(t.Context(), OutboundRequest{
		Caller: Caller{Agent: "one", Tenant: "default", Actor: "agent:one"}, Surface: SurfaceExecute, Permit: always(may), Service: "corp", Credential: true,
		Inject: func(*http.Request) error { t.Error("the credential was put in"); return nil },
	}, request(t, "POST", "http://api.corp:"+port(s.Listener.Addr())+"/", ""))
	if refusal == nil || refusal.Code != problem.HostDenied || asked.Load() != 1 {
		t.Errorf("%v, and %d rules were asked about", refusal, asked.Load())
	}
}

// Asking costs the database and the operator something, so the rate comes first.
func TestNobodyIsAskedForWhomTheRateIsUsedUp(t *testing.T) {
	var asked atomic.Int32
	w := newFixture(t, func(c *Config) {
		c.Rates = func(Caller) Rates { r := DefaultRates(); r.Proxy = 2; return r }
		c.Ask = func(context.Context, Caller, string) bool { asked.Add(1); return false }
	})
	w.admitAgent(jailA, "one", policy.Only())
	for n := range 6 {
		resp, body := w.raw(jailA, "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n")
		want := problem.HostDenied
		if n >= 2 {
			want = problem.RateLimited
		}
		if code, _ := refusal(t, resp, body); code != want {
			t.Errorf("request %d: %s", n, code)
		}
	}
	if n := asked.Load(); n != 2 {
		t.Errorf("asked %d times, where the rate is 2", n)
	}
}

// An agent that was given a new token has two for a while. Sending one and then the other does not pile up what is held.
func TestOneConnectionHoldsOneToken(t *testing.T) {
	keys := newKeyring(map[string]identity.Principal{"cjagt_one": agentToken("one", "t1"), "cjagt_new": agentToken("one", "t2")})
	w := newFixture(t, func(c *Config) { c.Keys = keys })
	s := web(t, func(http.ResponseWriter, *http.Request) {})
	w.public("example.com", "93.184.216.34", s.Listener.Addr())
	w.admitAgent(jailA, "one", policy.PublicWeb())
	c := w.dial(jailA)
	br := bufio.NewReader(c)
	for n := range 20 {
		fmt.Fprintf(c, "GET http://example.com/ HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Bearer %s\r\n\r\n", []string{"cjagt_one", "cjagt_new"}[n%2])
		resp, err := http.ReadResponse(br, nil)
		if err != nil || resp.StatusCode != 200 {
			t.Fatal(resp, err)
		}
		io.Copy(io.Discard, resp.Body)
	}
	if n := keys.open(); n != 2 {
		t.Errorf("%d things are held for one connection of an agent with a token", n)
	}
	// The one that came last is the one that counts.
	keys.cut(func(p identity.Principal) bool { return p.TokenID == "t2" })
	if _, err := br.ReadByte(); err == nil {
		t.Error("the connection outlives its token")
	}
	eventually(t, func() bool { return keys.open() == 0 }, "something is held for a connection that is closed")
}

// A record has room for so much: what a jail writes in the place of a method must not fill it, nor the log.
func TestALongMethodIsCutInRecordsAndLogs(t *testing.T) {
	w := newFixture(t)
	s := web(t, func(http.ResponseWriter, *http.Request) {})
	w.public("example.com", "93.184.216.34", s.Listener.Addr())
	w.admit(jailA, policy.PublicWeb())
	for _, host := range []string{"example.com", "10.0.0.1"} {
		w.raw(jailA, strings.Repeat("M", 20_000)+" http://"+host+"/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	}
	all := w.recorded()
	if len(all) != 2 {
		t.Fatalf("%d records", len(all))
	}
	for _, d := range all {
		if len(d.Method) > maxMethod || len(d.Method) <= 32 {
			t.Errorf("a method of %d bytes on record; one of 32 could be that of a rule", len(d.Method))
		}
	}
	eventually(t, func() bool { return strings.Count(w.logs.String(), "\n") >= 2 }, "the log has no lines")
	if n := len(w.logs.String()); n > 4000 {
		t.Errorf("%d bytes in the log", n)
	}
}

func TestRefusalsSayWhenToComeBack(t *testing.T) {
	for _, wait := range []any{7, int64(7)} {
		rec := httptest.NewRecorder()
		Refuse(rec, httptest.NewRequest("GET", "/", nil), problem.New(problem.RateLimited, "Wait.", "too many").With("retry_after", wait))
		if got := rec.Header().Get("Retry-After"); got != "7" {
			t.Errorf("%T: Retry-After is %q", wait, got)
		}
	}
}

// Refusals that are not bounded by a rate do not fill the log: those because of the rate, and those of wrong tokens.
func TestWhatNoRateBoundsDoesNotFillTheLog(t *testing.T) {
	for name, header := range map[string]string{"too often": "", "a wrong token": "Proxy-Authorization: Bearer cjagt_wrong\r\n", "a stranger": ""} {
		t.Run(name, func(t *testing.T) {
			still := time.Now()
			w := newFixture(t, func(c *Config) {
				c.Rates = func(Caller) Rates { r := DefaultRates(); r.Proxy = 1; return r }
				c.Keys = newKeyring(nil)
				c.Now = func() time.Time { return still }
			})
			if name != "a stranger" {
				w.admitAgent(jailA, "one", policy.Only())
			}
			const many = 4 * linesAtOnce
			for range many {
				w.raw(jailA, "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n"+header+"\r\n")
			}
			if n := strings.Count(w.logs.String(), "\n"); n > 2*linesAtOnce || n < linesAtOnce {
				t.Errorf("%d lines of %d refusals", n, many)
			}
		})
	}
}

// A tunnel that stays open is what the rules would open now: to the address that they lead to, and looked at where they
// say so.
func TestAnOpenTunnelEndsWhenItsRuleLeadsElsewhereOrLooksCloser(t *testing.T) {
	s := server(t, echo)
	port := uint16(s.Addr().(*net.TCPAddr).Port)
	corp := func(change func(*policy.Rule)) policy.Policy {
		p := private("api.corp", "127.0.0.1", port)
		p.Rules[0].Opaque = true
		change(&p.Rules[0])
		return p
	}
	for name, test := range map[string]struct {
		later func(*policy.Rule)
		stays bool
	}{
		"as it was":           {func(*policy.Rule) {}, true},
		"by another name":     {func(r *policy.Rule) { r.Name = "renamed" }, true},
		"to another address":  {func(r *policy.Rule) { r.Address = netip.MustParseAddr("127.0.0.9") }, false},
		"to where DNS says":   {func(r *policy.Rule) { r.Address = netip.Addr{} }, false},
		"to TLS or HTTP only": {func(r *policy.Rule) { r.Opaque = false }, false},
	} {
		t.Run(name, func(t *testing.T) {
			o, change := changing(t, corp(func(*policy.Rule) {}))
			w := newFixture(t, o)
			w.admit(jailA, policy.Only())
			c, from := w.connect(jailA, fmt.Sprintf("api.corp:%d", port))
			said := func() bool {
				if _, err := io.WriteString(c, "x"); err != nil {
					return false
				}
				_, err := from.ReadByte()
				return err == nil
			}
			if !said() {
				t.Fatal("no tunnel")
			}
			change(corp(test.later))
			w.g.reviewUnderWay()
			if said() != test.stays {
				t.Errorf("goes on: %t", !test.stays)
			}
		})
	}
}

// A server that does not read the bodies of some requests takes them for the beginning of the next one. An agent that has put
// the beginning of a request of its own there would get what follows, and with it the credential. So what carries a credential
// goes over a connection on which nothing was sent whose end the server and the agent may see differently.
func TestCredentialsDoNotFollowWhatAnAgentSentOnTheSameConnection(t *testing.T) {
	still := time.Now()
	w := newFixture(t, func(c *Config) { c.Now = func() time.Time { return still } })
	var connections atomic.Int64
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	s.Start()
	defer s.Close()
	may, _ := leading(t, "api.corp", s.Listener.Addr())
	base := "http://api.corp:" + port(s.Listener.Addr()) + "/"
	w.admitAgent(jailA, "one", private("api.corp", "127.0.0.1", uint16(s.Listener.Addr().(*net.TCPAddr).Port)))
	send := func(service string, surface Surface, method, body string) {
		t.Helper()
		if service == "" {
			resp, text := w.raw(jailA, fmt.Sprintf("%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", method, base, len(body), body))
			if resp.StatusCode != 200 {
				t.Fatal(resp.Status, text)
			}
			return
		}
		resp, refusal := w.g.Send(w.jailed(jailA), OutboundRequest{Caller: Caller{Agent: "one", Jail: "a" + jailA}, Surface: surface, Permit: always(may),
			Service: service, Credential: true}, request(t, method, base, body))
		if refusal != nil {
			t.Fatal(refusal)
		}
		finish(t, resp)
	}
	idle := func() int {
		who := w.jailed(jailA).Value(jailKey{}).(*caller)
		who.idle.mu.Lock()
		defer who.idle.mu.Unlock()
		return who.idle.count
	}
	for n, step := range []struct {
		service string
		surface Surface
		method  string
		body    string
		fresh   bool
		kept    int // connections that wait afterwards
	}{
		{"", SurfaceForward, "POST", "GET /sink?text=", true, 1},
		{"corp", SurfaceService, "GET", "", true, 2},
		{"corp", SurfaceService, "GET", "", false, 2},
		{"other", SurfaceService, "GET", "", true, 3},
		{"corp", SurfaceService, "POST", "GET /sink?text=", false, 2},
		{"corp", SurfaceExecute, "GET", "", true, 3},
		// The body of a request to a model is a JSON object, with which no request begins.
		{"model", SurfaceLLM, "POST", "{}", true, 4},
		{"model", SurfaceLLM, "POST", "{}", false, 4},
	} {
		before := connections.Load()
		send(step.service, step.surface, step.method, step.body)
		eventually(t, func() bool { return idle() == step.kept }, fmt.Sprintf("step %d: not %d connections wait", n, step.kept))
		if fresh := connections.Load() > before; fresh != step.fresh {
			t.Errorf("step %d: a new connection: %t", n, fresh)
		}
	}
}

// Go's error about an answer that is no HTTP quotes the answer, and a server that repeats the request puts the credential there.
func TestTheLogQuotesNoAnswerToARequestWithACredential(t *testing.T) {
	for name, inject := range map[string]func(*http.Request){
		"in the query": func(r *http.Request) { r.URL.RawQuery = "key=sk-canary-1234" },
		"in a header":  func(r *http.Request) { r.Header.Set("A", "sk-canary-1234") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			s := server(t, func(c *net.TCPConn) {
				r, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					return
				}
				said := r.Header.Get("A") + "?" + r.URL.RawQuery
				if r.URL.Path == "/trailer" {
					said = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + said
				}
				io.WriteString(c, said+"\r\n\r\n")
			})
			may, _ := leading(t, "api.corp", s.Addr())
			e := OutboundRequest{
				Caller: Caller{Agent: "one", Tenant: "default", Actor: "agent:one"}, Surface: SurfaceService, Permit: always(may), Service: "corp", Credential: true,
				Inject: func(r *http.Request) error { inject(r); return nil },
			}
			base := "http://api.corp:" + port(s.Addr())
			resp, refusal := w.g.Send(t.Context(), e, request(t, "GET", base+"/trailer", ""))
			if refusal != nil {
				t.Fatal(refusal)
			}
			if _, err := io.ReadAll(resp.Body); err == nil || strings.Contains(err.Error(), "canary") {
				t.Errorf("the end of the answer: %v", err)
			}
			resp.Body.Close()
			_, refusal = w.g.Send(t.Context(), e, request(t, "GET", base+"/", ""))
			if refusal == nil || refusal.Code != problem.UpstreamUnreachable {
				t.Errorf("%v", refusal)
			}
			if strings.Contains(refusal.Error(), "canary") {
				t.Errorf("the refusal says %v", refusal)
			}
			if log := w.logs.String(); strings.Contains(log, "canary") || !strings.Contains(log, `"error"`) {
				t.Errorf("the log says %s", log)
			}
		})
	}
}

// Requests that a surface refuses before it takes from the rate do not fill the audit log either.
func TestRefusalsBeforeTheRateDoNotFillTheAuditLog(t *testing.T) {
	still := time.Now()
	w := newFixture(t, func(c *Config) { c.Now = func() time.Time { return still } })
	h := w.g.Watched(SurfaceLLM, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		p := problem.New(r.URL.Query().Get("code"), "Do not.", "no")
		NoteRefusal(r.Context(), p)
		Refuse(rw, r, p)
	}))
	for _, code := range []string{problem.Unsupported, problem.Forbidden, problem.NotFound, problem.BadRequest, problem.Unauthorized} {
		before := len(w.recorded())
		for range 3 * linesAtOnce {
			r := httptest.NewRequest("GET", "/v1/chat/completions?code="+code, nil)
			h.ServeHTTP(httptest.NewRecorder(), r.WithContext(WithCaller(r.Context(), Caller{Agent: code, Tenant: "default"})))
		}
		if n := len(w.recorded()) - before; n != linesAtOnce {
			t.Errorf("%s: %d records", code, n)
		}
	}
}

// A refusal is a record in the audit log. A request that is refused before any decision comes out of the same rate.
func TestRefusalsOfWhatIsNotDecidedAboutAreBoundByTheRate(t *testing.T) {
	const perMinute = 5
	for name, request := range map[string]string{
		"a scheme":         "GET https://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"no host":          "GET http://user@example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"a method":         "TRACE http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"a tunnel nowhere": "CONNECT nowhere HTTP/1.1\r\nHost: nowhere\r\n\r\n",
		"a denied host":    "GET http://denied.example/ HTTP/1.1\r\nHost: denied.example\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, func(c *Config) {
				c.Rates = func(Caller) Rates { r := DefaultRates(); r.Proxy = perMinute; return r }
			})
			w.admit(jailA, policy.Only())
			limited := 0
			for range 4 * perMinute {
				resp, body := w.raw(jailA, request)
				if code, _ := refusal(t, resp, body); code == problem.RateLimited {
					limited++
				}
			}
			if n := len(w.recorded()); n < perMinute || n > perMinute+1 || limited < 4*perMinute-n {
				t.Errorf("%d refusals are on record, %d were told to wait", n, limited)
			}
		})
	}
}
