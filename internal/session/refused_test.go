package session

import (
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/problem"
)

// A browser says of every tunnel that was refused that it could not be made. Its caller is told what the gateway said.
func TestARefusalOfTheGatewaysIsToldAsItsOwn(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		out := mustOpen(t, svc, OpenRequest{})
		w.mu.Lock()
		w.refusals = map[string]*problem.Error{
			"denied.example:443": problem.New(problem.HostDenied, "Do not retry: this is policy", "no rule allows denied.example port 443"),
			"lost.example:8443":  problem.New(problem.DNSFailed, "see the spelling", "lost.example has no address"),
		}
		w.mu.Unlock()
		for _, c := range []struct{ address, code, says string }{
			{"https://denied.example/a?b", problem.HostDenied, "the page could not be loaded: no rule allows denied.example port 443"},
			{"https://lost.example:8443/", problem.DNSFailed, "the page could not be loaded: lost.example has no address"},
			// Nothing was refused: the browser's own words stay.
			{"https://denied.example:8443/", problem.NavigationFailed, "it failed"},
			{"https://other.example/", problem.NavigationFailed, "it failed"},
			{"no address", problem.NavigationFailed, "it failed"},
		} {
			w.failOnce("navigate", problem.New(problem.NavigationFailed, "", "it failed").With("url", c.address).With("net_error", "net::ERR_TUNNEL_CONNECTION_FAILED"))
			_, err := svc.Drive(t.Context(), admin, out.ID, visiting{c.address, time.Second, browser.Steers})
			p, ok := problem.As(err)
			if !ok || p.Code != c.code || p.Message != c.says || p.Details["net_error"] != "net::ERR_TUNNEL_CONNECTION_FAILED" ||
				(p.Code != problem.NavigationFailed) != (p.Details["blocked"] == true) {
				t.Errorf("%s: %v, %+v", c.address, err, p)
			}
		}
		// Another error is not about the way.
		w.failOnce("navigate", problem.New(problem.PageCrashed, "", "it crashed").With("url", "https://denied.example/"))
		if _, err := svc.Drive(t.Context(), admin, out.ID, visiting{"https://denied.example/", time.Second, browser.Steers}); problem.CodeOf(err) != problem.PageCrashed {
			t.Errorf("a crash: %v", err)
		}
	})
}

// A person who goes somewhere by hand hears it as well.
func TestARefusalOfTheGatewaysIsToldToWhoSteers(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		out := mustOpen(t, svc, OpenRequest{})
		takeOver(t, svc, ann, out.ID)
		hers := watch(t, svc, ann, out.ID)
		defer func() {
			if err := hers.Close(); err != nil {
				t.Error(err)
			}
		}()
		w.mu.Lock()
		w.refusals = map[string]*problem.Error{"denied.example:443": problem.New(problem.HostDenied, "Do not retry: this is policy", "no rule allows denied.example port 443")}
		w.mu.Unlock()
		for address, want := range map[string]string{"https://denied.example/a": problem.HostDenied, "https://other.example/": problem.NavigationFailed} {
			for _, how := range []string{"go", "back", "reload"} {
				w.failOnce("do", problem.New(problem.NavigationFailed, "", "it failed").With("url", address))
				_, err := hers.Input(t.Context(), browser.LiveInput{Type: how})
				if p, ok := problem.As(err); !ok || p.Code != want || p.Hint == "" != (want == problem.NavigationFailed) {
					t.Errorf("%s to %s: %v", how, address, err)
				}
			}
		}
	})
}
