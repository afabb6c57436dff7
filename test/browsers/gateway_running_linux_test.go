package browsers

import (
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/injail"
	"github.com/clawjail/clawjail/test/testkit"
)

// TestRegressionAPooledBrowserHasThePolicyOfWhoTakesIt adds a rule while a browser waits in the pool: pools of others
// have handed out browsers with the policy of the day on which they were started.
func TestRegressionAPooledBrowserHasThePolicyOfWhoTakesIt(t *testing.T) {
	settings, address := testkit.Page(t, `<!doctype html><title>hello</title>`)
	b := testkit.Start(t, instance.Options{Settings: "warm_pool:\n  size: 1\n" + settings})
	filled := func() {
		t.Helper()
		testenv.Eventually(t, 30*time.Second, func() bool {
			info, err := b.API.Info(t.Context())
			return err == nil && info.Service.WarmReady == 1
		}, "the pool is not filled")
	}
	warm := func() string {
		t.Helper()
		s, err := b.API.Open(t.Context(), session.OpenRequest{})
		if err != nil || !s.Warm {
			t.Fatalf("a session with a full pool: %+v, %v", s, err)
		}
		return s.ID
	}
	see := func(id string) string {
		t.Helper()
		p, err := b.API.Navigate(t.Context(), id, browser.Navigate{URL: address, TimeoutMS: 60000})
		if err != nil {
			t.Fatalf("navigate: %v", err)
		}
		return p.Title
	}
	filled()
	rule, err := client.Call(t.Context(), b.API, op.AddRule(), op.NewRule{Body: op.With(op.RuleRequest{Whose: op.Whose{AllTenants: true}, Action: policy.Deny, Target: strings.TrimSuffix(address, "/"), Priority: 1, Name: "while-it-waits"})})
	if err != nil {
		t.Fatal(err)
	}
	first := warm()
	if title := see(first); title != "Refused by the gateway" {
		t.Errorf("with a rule that was added while it waited, the browser sees %q", title)
	}
	// And the other way round, in a browser that runs.
	if err := client.Do(t.Context(), b.API, op.RemoveRule(), op.RuleNamed{ID: rule.ID}); err != nil {
		t.Fatal(err)
	}
	if title := see(first); title != "hello" {
		t.Errorf("without the rule, the browser sees %q", title)
	}
	if _, err := client.Call(t.Context(), b.API, op.AddRule(), op.NewRule{Body: op.With(op.RuleRequest{Whose: op.Whose{AllTenants: true}, Action: policy.Deny, Target: strings.TrimSuffix(address, "/"), Priority: 1})}); err != nil {
		t.Fatal(err)
	}
	if title := see(first); title != "Refused by the gateway" {
		t.Errorf("with a rule that was added while it runs, the browser sees %q", title)
	}
	b.Close(first)
}

const linkLocalAddress = "169.254.77.77"

// TestRegressionProxyVariablesAreNotTheEnforcement has an agent in its jail leave the proxy out: the gateway is the only
// wire there is, whatever a program's environment says.
func TestRegressionProxyVariablesAreNotTheEnforcement(t *testing.T) {
	v := newAgents(t)
	a := v.newAgent(v.issue("writer"))
	defer a.admit()()
	everywhere, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("reached")) })}
	go func() { _ = server.Serve(everywhere) }() // ends with Close
	t.Cleanup(func() { _ = server.Close() })
	port := strconv.Itoa(everywhere.Addr().(*net.TCPAddr).Port)

	if _, err := client.Call(t.Context(), v.API, op.AddRule(), op.NewRule{Body: op.With(op.RuleRequest{Whose: op.Whose{AllTenants: true}, Action: policy.Allow, Target: "page.clawjail.test:" + port,
		Address: netip.MustParseAddr("127.0.0.1"), Name: "page"})}); err != nil {
		t.Fatal(err)
	}
	// Addresses of somewhere else, and a link-local one as metadata services have: this host has them, for as long as this takes.
	for _, address := range []string{testkit.ElsewhereAddress, linkLocalAddress} {
		testkit.Run(t, testenv.Tool(t, "ip"), "address", "add", address+"/32", "dev", "lo")
		t.Cleanup(func() { testkit.Run(t, testenv.Tool(t, "ip"), "address", "del", address+"/32", "dev", "lo") })
		answer, err := http.Get("http://" + address + ":" + port)
		if err != nil || answer.Body.Close() != nil {
			t.Fatalf("%s is not reached from the host, so that a jail does not shows nothing: %v", address, err)
		}
	}
	for _, target := range []string{
		"http://gateway:" + port, "http://page.clawjail.test:" + port, "http://" + testkit.ElsewhereAddress + ":" + port, "http://" + linkLocalAddress + ":" + port,
	} {
		if r := a.try(t, injail.Command{Do: injail.Request, Method: http.MethodGet, URL: target}); r.Error == "" {
			t.Errorf("without the proxy, %s answers %d %s", target, r.Status, r.Body)
		}
	}
	r := a.try(t, injail.Command{Do: injail.Request, Method: http.MethodGet, URL: "http://page.clawjail.test:" + port, Proxy: gatewayURL})
	if r.Error != "" || r.Body != "reached" {
		t.Errorf("through the proxy: %+v\nlog of the instance:\n%s", r, v.Log())
	}
}
