package gateway

import (
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"testing"

	"github.com/clawjail/clawjail/internal/policy"
)

func TestHostsAreThoseThatASessionWasLetConnectTo(t *testing.T) {
	w := newFixture(t)
	s := web(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello") })
	for _, name := range []string{"b.example", "a.example", "denied.example"} {
		w.public(name, "93.184.216.34", s.Listener.Addr())
	}
	w.admit(jailA, policy.Only(
		policy.Rule{Name: "b", Action: policy.Allow, Host: pattern(t, "b.example"), Ports: policy.Ports(80)},
		policy.Rule{Name: "a", Action: policy.Allow, Host: pattern(t, "a.example"), Ports: policy.Ports(80)}))
	w.admit(jailB, policy.PublicWeb())
	for _, name := range []string{"B.example", "denied.example", "a.example", "b.example"} {
		resp, err := w.client(jailA).Get("http://" + name + "/")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	addr := netip.MustParseAddr(jailA)
	if got := w.g.Hosts(addr); !slices.Equal(got, []string{"b.example", "a.example"}) {
		t.Errorf("the hosts are %q", got)
	}
	if got := w.g.Hosts(netip.MustParseAddr(jailB)); len(got) != 0 {
		t.Errorf("the hosts of another one are %q", got)
	}
	// The next jail of the address begins with none.
	if err := w.g.Forget(addr, ""); err != nil {
		t.Fatal(err)
	}
	w.admit(jailA, policy.PublicWeb())
	if got := w.g.Hosts(addr); len(got) != 0 {
		t.Errorf("the hosts were inherited: %q", got)
	}
}

func TestHostsAreBounded(t *testing.T) {
	var h hosts
	for n := range 2 * maxHosts {
		h.add(fmt.Sprintf("h%d.example", n))
		h.add("h0.example")
	}
	if len(h.order) != maxHosts || len(h.known) != maxHosts || h.order[0] != "h0.example" || h.order[maxHosts-1] != fmt.Sprintf("h%d.example", maxHosts-1) {
		t.Errorf("%d hosts, from %s", len(h.order), h.order[0])
	}
}

func pattern(t *testing.T, text string) policy.Pattern {
	t.Helper()
	p, err := policy.ParsePattern(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
