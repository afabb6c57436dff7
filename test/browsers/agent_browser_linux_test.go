package browsers

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/injail"
)

// boundByItsAgent has an agent without rules open a browser, and changes what the agent may while it is open. A browser that
// a person opened reaches the lab all the time.
func boundByItsAgent(t *testing.T, v *laboratory, a *agent) {
	a.do(t, injail.Command{Do: injail.Connect, URL: gatewayURL + "/mcp", Key: a.key})
	own := a.openOne(t)
	opened, err := v.API.Open(t.Context(), session.OpenRequest{})
	if err != nil {
		t.Fatal(err)
	}
	persons := opened.ID
	defer v.Close(persons)
	defer a.call(t, "browser_close_session", map[string]any{"session": own})
	const refused, reached = "Refused by the gateway", "lab"
	see := func(what, session, want string) {
		t.Helper()
		p, err := v.API.Navigate(t.Context(), session, browser.Navigate{URL: v.lab.URL("/login"), TimeoutMS: 60000})
		if err != nil || p.Title != want {
			t.Fatalf("%s, the browser sees %q, want %q: %v\nlog of the instance:\n%s", what, p.Title, want, err, v.Log())
		}
	}
	rule := func(action policy.Action, target, address string) (remove func()) {
		t.Helper()
		r := op.RuleRequest{Whose: op.Whose{Agent: "worker"}, Action: action, Target: target, Priority: 10}
		if address != "" {
			r.Address = netip.MustParseAddr(address)
		}
		made, err := client.Call(t.Context(), v.API, op.AddRule(), op.NewRule{Body: op.With(r)})
		if err != nil {
			t.Fatal(err)
		}
		return func() {
			t.Helper()
			if err := client.Do(t.Context(), v.API, op.RemoveRule(), op.RuleNamed{ID: made.ID}); err != nil {
				t.Fatal(err)
			}
		}
	}
	reach := func(reach egress.BrowserReach) {
		t.Helper()
		if _, err := v.API.PutSettings(t.Context(), op.Whose{Agent: "worker"}, op.SettingsRequest{Browser: reach}); err != nil {
			t.Fatal(err)
		}
	}
	lab := strings.TrimSuffix(v.lab.URL("/"), "/")

	see("opened by a person", persons, reached)
	see("of an agent without rules", own, refused)
	text, err := v.Run(t.Context(), "session", "dom", own, "--format", "text")
	if err != nil || !strings.Contains(text, "rules add allow HOST --agent worker") || !strings.Contains(text, "browser: open") {
		t.Errorf("the refusal does not say how to open it: %v\n%s", err, text)
	}
	explained, err := v.Run(t.Context(), "rules", "explain", lab, "--agent", "worker", "--surface", "browser")
	if err == nil || !strings.Contains(explained, "no rule allows") {
		t.Errorf("rules explain says %v: %s", err, explained)
	}

	remove := rule(policy.Allow, lab, "127.0.0.1")
	see("with a rule of the agent", own, reached)
	if r := a.try(t, injail.Command{Do: injail.Request, Method: http.MethodGet, URL: v.lab.URL("/login"), Proxy: gatewayURL}); r.Status != http.StatusOK {
		t.Errorf("the agent itself is answered %d by what its browser reaches", r.Status)
	}
	remove()
	see("when the rule is gone", own, refused)

	reach(egress.BrowserOpen)
	see("with browser: open", own, reached)
	remove = rule(policy.Deny, lab, "")
	see("with browser: open and a rule of the agent that denies", own, refused)
	see("opened by a person, with a rule of an agent that denies", persons, reached)
	remove()
	reach(egress.BrowserRules)
	see("with browser: rules again", own, refused)
	reach("") // as its tenant has it

	// A wait of an agent in vain is nothing that the operator has to look at.
	if _, err := v.API.Drive(t.Context(), own, browser.WaitDownload{TimeoutMS: 1000}); problem.CodeOf(err) != problem.Timeout {
		t.Errorf("a download that does not come: %v", err)
	}
	testenv.Eventually(t, 10*time.Second, func() bool { return strings.Contains(v.Log(), "timeout") }, "the log does not say that it took too long")
	for line := range strings.Lines(v.Log()) {
		if strings.Contains(line, "ERROR") && strings.Contains(line, "timeout") {
			t.Errorf("a failure of clawjail's is said to be %s", line)
		}
	}
}
