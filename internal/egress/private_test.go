package egress

import (
	"net/netip"
	"testing"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/hostport"
)

func TestExecuteReachesAServiceWhereItsOperatorLeadsIt(t *testing.T) {
	w := newFixture(t)
	if _, err := w.PutService(w.ctx, w.admin, Service{Meta: Meta{Tenant: "acme"}, Name: "git", Allow: []Allowance{{Path: "/**"}}, Inject: Injection{Type: InjectBearer},
		Upstream: Upstream{BaseURL: "http://git.corp:8080/api", Address: netip.MustParseAddr("10.1.2.3")}}); err != nil {
		t.Fatal(err)
	}
	_, err := w.PutSettings(w.ctx, w.operator, Settings{Meta: Meta{Tenant: "acme"}, Tools: []Tool{{URL: "http://git.corp:8080/api/**", Methods: []string{"GET"}}, {URL: "http://git.corp:9090/**", Methods: []string{"GET"}},
		{URL: "http://other.corp:8080/**", Methods: []string{"GET"}}}})
	w.must(err)
	ask := func(service, host string, port uint16) netip.Addr {
		return w.View(agent(w.bot)).Tool(service).Decide(policy.Request{Scheme: policy.HTTP, Host: hostport.MustParseHost(host), Port: port, Method: "GET", Path: "/api/x"}).Address
	}
	if got := ask("git", "git.corp", 8080); got != netip.MustParseAddr("10.1.2.3") {
		t.Errorf("the service is at %s", got)
	}
	for name, got := range map[string]netip.Addr{
		"another port": ask("git", "git.corp", 9090), "another host": ask("git", "other.corp", 8080), "another credential": ask("jira", "git.corp", 8080),
	} {
		if got.IsValid() {
			t.Errorf("%s is led to %s", name, got)
		}
	}
}
