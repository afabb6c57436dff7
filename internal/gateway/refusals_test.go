package gateway

import (
	"bufio"
	"fmt"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/problem"
)

func TestTheGatewaySaysWhyItRefusedAWay(t *testing.T) {
	w := newFixture(t)
	w.admit(jailA, policy.Only(policy.Rule{Name: "lost", Action: policy.Allow, Host: pattern(t, "lost.example"), Ports: policy.Ports(443)}))
	w.admit(jailB, policy.Only())
	ask := func(target string) {
		t.Helper()
		conn := w.dial(jailA)
		defer conn.Close()
		fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target)
		resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodConnect})
		if err != nil || resp.StatusCode < 400 {
			t.Fatalf("CONNECT %s: %v %v", target, resp, err)
		}
	}
	to := func(authority string) hostport.Endpoint {
		t.Helper()
		e, err := hostport.ParseAuthority(authority)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	a, b := netip.MustParseAddr(jailA), netip.MustParseAddr(jailB)
	began := w.g.now()
	ask("DENIED.example:443")
	ask("lost.example:443")
	for authority, code := range map[string]string{"denied.example:443": problem.HostDenied, "lost.example:443": problem.DNSFailed} {
		if why := w.g.Refused(a, to(authority), began); why == nil || why.Code != code || why.Message == "" {
			t.Errorf("%s: %v", authority, why)
		}
		// Not of another one, not of another port, and not of before.
		if why := w.g.Refused(b, to(authority), began); why != nil {
			t.Errorf("%s of another jail: %v", authority, why)
		}
		if why := w.g.Refused(a, to(authority), w.g.now().Add(time.Hour)); why != nil {
			t.Errorf("%s later: %v", authority, why)
		}
	}
	if why := w.g.Refused(a, to("denied.example:8443"), began); why != nil {
		t.Errorf("of another port: %v", why)
	}
	for n := range keptRefusals {
		ask(fmt.Sprintf("d%d.example:443", n))
	}
	if why := w.g.Refused(a, to("denied.example:443"), began); why != nil {
		t.Errorf("they are kept without a bound: %v", why)
	}
	// The next jail of the address begins with none.
	if err := w.g.Forget(a, ""); err != nil {
		t.Fatal(err)
	}
	w.admit(jailA, policy.Only())
	if why := w.g.Refused(a, to("d1.example:443"), began); why != nil {
		t.Errorf("it was inherited: %v", why)
	}
}
