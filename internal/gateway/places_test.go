package gateway

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/testenv"
)

// The jails of one tenant do not use up the connections of all: another tenant's get through, and so does another agent of theirs.
func TestConnectionsOfATenantLeaveSomeToTheOthers(t *testing.T) {
	// Of 20 connections a tenant has 16, and one agent 12. Two more may be told of it, of which a tenant has one.
	w := newFixture(t, func(c *Config) { c.Connections, c.Tenants = 20, func() int { return 2 } })
	needLoopbacks(t)
	jails := map[string]Caller{
		"127.0.0.11": {Jail: "one", Tenant: "acme", Agent: "ag_1", Actor: "agent:ag_1", Policy: policy.PublicWeb()},
		"127.0.0.12": {Jail: "browser", Session: "s", Tenant: "acme", Opener: "ag_1", Actor: "agent:ag_1", Policy: policy.PublicWeb()}, // of the same agent
		"127.0.0.13": {Jail: "two", Tenant: "acme", Agent: "ag_2", Actor: "agent:ag_2", Policy: policy.PublicWeb()},
		"127.0.0.14": {Jail: "other", Tenant: "rival", Agent: "ag_3", Actor: "agent:ag_3", Policy: policy.PublicWeb()},
	}
	for addr, c := range jails {
		if err := w.g.Admit(netip.MustParseAddr(addr), c); err != nil {
			t.Fatal(err)
		}
	}
	var open []net.Conn
	counted := func(want int64) {
		t.Helper()
		testenv.Eventually(t, patience, func() bool { return w.g.Held(quota.Holder{})[0].Held.All == want }, "%d connections are counted", want)
	}
	hold := func(addr string, n, all int64) {
		t.Helper()
		counted(all - n) // what was only asked is over
		for range n {
			open = append(open, w.dial(addr))
		}
		counted(all)
	}
	told := func(want int64) {
		t.Helper()
		testenv.Eventually(t, patience, func() bool { return w.g.places.told.Amounts(quota.Holder{})[0].Held.All == want }, "%d are told", want)
	}
	const request = "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n"
	ask := func(addr, want, text string) {
		t.Helper()
		if want == problem.RateLimited {
			told(0) // who was told before has gone
		}
		resp, body := w.raw(addr, request)
		if code, _ := refusal(t, resp, body); code != want || !strings.Contains(body, text) {
			t.Errorf("%s: %s %s, want %s and %q", addr, resp.Status, body, want, text)
		}
	}
	ask("127.0.0.11", problem.DNSFailed, "") // it gets through, to where nothing has that name
	hold("127.0.0.11", 6, 6)
	hold("127.0.0.12", 6, 12)
	ask("127.0.0.11", problem.RateLimited, "this agent has 12 of 12 connections")
	ask("127.0.0.12", problem.RateLimited, "this agent has 12 of 12 connections")
	ask("127.0.0.13", problem.DNSFailed, "")
	hold("127.0.0.13", 4, 16)
	ask("127.0.0.13", problem.RateLimited, "tenant acme has 16 of 16 connections")
	w.dial("127.0.0.13") // one of the tenant is told; it does not ask yet
	told(1)
	closedSoon(t, "one more", w.dial("127.0.0.11"))
	ask("127.0.0.14", problem.DNSFailed, "")
	hold("127.0.0.14", 4, 20)
	for _, c := range open {
		c.Close()
	}
	counted(0)
	ask("127.0.0.11", problem.DNSFailed, "")
}
