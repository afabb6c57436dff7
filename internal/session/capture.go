package session

import (
	"context"
	"slices"
	"time"

	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/weblogin"
)

// captureLimit bounds reading a jar.
const captureLimit = 30 * time.Second

// Capture gives the cookies that a session's browser has of some domains, and what their pages have stored, to a function,
// and wipes them after it. Only a
// session that no agent ever touched is captured from: an agent could have logged in to an account of its own, and the
// operator would then work in that one. The caller of Capture records what the function does.
func (svc *Service) Capture(ctx context.Context, by identity.Principal, id string, domains []string, use func(weblogin.Login) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, captureLimit, problem.New(problem.Timeout, "try again", "the cookies were not read within %s", captureLimit))
	defer cancel()
	ctx, s, b, done, err := svc.use(ctx, by, identity.CookiesCapture, id)
	if err != nil {
		return err
	}
	defer done()
	svc.mu.Lock()
	touched := s.touched
	svc.mu.Unlock()
	if touched {
		return problem.New(problem.Forbidden, "open a session of your own, and log in there", "an agent has used session %s", id)
	}
	all, err := b.Cookies(ctx, "")
	if err != nil {
		return svc.why(ctx, s, err)
	}
	defer cookies.Wipe(all)
	visited, err := b.Origins(ctx)
	if err != nil {
		return svc.why(ctx, s, err)
	}
	stored, err := b.Stored(ctx, "", slices.DeleteFunc(visited, func(origin string) bool {
		domain, err := weblogin.DomainOf(origin)
		return err != nil || !slices.Contains(domains, domain)
	}))
	if err != nil {
		return svc.why(ctx, s, err)
	}
	defer weblogin.WipeOrigins(stored)
	// A jar that was lost meanwhile does not have what somebody logged in for.
	if err := svc.vet(ctx, s); err != nil {
		return svc.why(ctx, s, err)
	}
	chosen, _ := cookies.Select(all, domains)
	return use(weblogin.Login{Cookies: chosen, Origins: stored})
}
