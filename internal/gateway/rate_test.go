package gateway

import (
	"fmt"
	"net/http"
	"reflect"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

func eventually(t *testing.T, f func() bool, what string) {
	t.Helper()
	testenv.Eventually(t, patience, f, what)
}

func newClock() *testenv.Clock { return testenv.NewClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)) }

func TestTheSixtyFirstRequestOfAMinuteWaits(t *testing.T) {
	at := newClock()
	w := newFixture(t, func(c *Config) { c.Now = at.Now })
	one, two := Caller{Agent: "one", Jail: "a1"}, Caller{Agent: "two", Jail: "a2"}
	for n := range 60 {
		if p := w.g.Take(one, SurfaceExecute); p != nil {
			t.Fatalf("request %d: %v", n+1, p)
		}
	}
	p := w.g.Take(one, SurfaceExecute)
	if p == nil || p.Code != problem.RateLimited || p.Details["retry_after"] != int64(1) {
		t.Fatalf("request 61: %v", p)
	}
	if p := w.g.Take(Caller{Agent: "one", Jail: "another jail"}, SurfaceExecute); p == nil {
		t.Error("a second jail of the agent has an account of its own")
	}
	if p := w.g.Take(two, SurfaceExecute); p != nil {
		t.Errorf("another agent waits: %v", p)
	}
	if p := w.g.Take(one, SurfaceService); p != nil {
		t.Errorf("another surface waits: %v", p)
	}
	at.Forward(time.Second)
	if p := w.g.Take(one, SurfaceExecute); p != nil {
		t.Errorf("a second later: %v", p)
	}
	if p := w.g.Take(one, SurfaceExecute); p == nil {
		t.Error("a second brings more than one")
	}
}

func TestAChangedRateCountsAtOnce(t *testing.T) {
	at := newClock()
	rates := DefaultRates()
	w := newFixture(t, func(c *Config) { c.Now, c.Rates = at.Now, func(Caller) Rates { return rates } })
	one := Caller{Agent: "one"}
	if p := w.g.Take(one, SurfaceExecute); p != nil {
		t.Fatal(p)
	}
	rates.Execute = 1
	if p := w.g.Take(one, SurfaceExecute); p != nil {
		t.Fatalf("the bucket of one is empty: %v", p)
	}
	if p := w.g.Take(one, SurfaceExecute); p == nil || p.Details["retry_after"] != int64(60) {
		t.Errorf("the old rate goes on: %v", p)
	}
}

func TestSilentCallersAreForgotten(t *testing.T) {
	at := newClock()
	w := newFixture(t, func(c *Config) { c.Now = at.Now })
	for n := range 100 {
		w.g.Take(Caller{Jail: fmt.Sprint(n)}, SurfaceForward)
	}
	at.Forward(3 * time.Minute)
	w.g.Take(Caller{Jail: "last"}, SurfaceForward)
	w.g.quotas.mu.Lock()
	defer w.g.quotas.mu.Unlock()
	if n := len(w.g.quotas.users); n != 1 {
		t.Errorf("%d callers are remembered", n)
	}
}

func TestTheProxyObeysItsRate(t *testing.T) {
	at := newClock()
	rates := DefaultRates()
	rates.Proxy = 2
	w := newFixture(t, func(c *Config) { c.Now, c.Rates = at.Now, func(Caller) Rates { return rates } })
	s := web(t, func(http.ResponseWriter, *http.Request) {})
	w.public("example.com", "93.184.216.34", s.Listener.Addr())
	w.admit(jailA, policy.PublicWeb())
	get := "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n"
	for range 2 {
		if resp, body := w.raw(jailA, get); resp.StatusCode != 200 {
			t.Fatal(resp.Status, body)
		}
	}
	for _, request := range []string{get, "CONNECT example.com:443 HTTP/1.1\r\nHost: x\r\n\r\n", "GET http://denied.example:22/ HTTP/1.1\r\nHost: x\r\n\r\n"} {
		resp, body := w.raw(jailA, request)
		if code, _ := refusal(t, resp, body); code != problem.RateLimited || resp.StatusCode != 429 || resp.Header.Get("Retry-After") != "30" {
			t.Errorf("%.30q: %s %v", request, resp.Status, resp.Header)
		}
	}
	if n := len(w.recorded()); n != 2 {
		t.Errorf("%d records: who asks too often fills the log", n)
	}
}

func TestOpenTunnelsAreBounded(t *testing.T) {
	rates := DefaultRates()
	rates.Tunnels = 2
	w := newFixture(t, func(c *Config) { c.Rates = func(Caller) Rates { return rates } })
	w.public("example.com", "93.184.216.34", server(t, echo).Addr())
	w.admit(jailA, policy.PublicWeb())
	first, _ := w.connect(jailA, "example.com:443")
	w.connect(jailA, "example.com:443")
	request := "CONNECT example.com:443 HTTP/1.1\r\nHost: x\r\n\r\n"
	resp, body := w.rawHead(jailA, request)
	if code, _ := refusal(t, resp, body); code != problem.RateLimited || resp.Header.Get("Retry-After") == "" {
		t.Errorf("the third: %s %v", resp.Status, resp.Header)
	}
	first.Close()
	eventually(t, func() bool {
		resp, _ := w.rawHead(jailA, request)
		return resp.StatusCode == 200
	}, "a closed tunnel still counts")
}

func TestRatesMustBePositive(t *testing.T) {
	if err := DefaultRates().Validate(); err != nil {
		t.Error(err)
	}
	if err := (Rates{}).Validate(); err == nil {
		t.Error("no rate at all is valid")
	}
	fields := reflect.TypeFor[Rates]()
	for n := range fields.NumField() {
		for _, value := range []int64{0, -1} {
			one := DefaultRates()
			reflect.ValueOf(&one).Elem().Field(n).SetInt(value)
			if err := one.Validate(); err == nil {
				t.Errorf("%s may be %d", fields.Field(n).Name, value)
			}
		}
	}
}
