package session

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// vetLimit bounds how long a new connection of a browser waits until it is known whose cookies it was made with.
const vetLimit = 15 * time.Second

// vet is asked by the gateway for each new connection of a session's browser, before anything is done for it. An error
// keeps the connection from everything. A browser whose cookies are lost makes its next requests as a stranger: none of
// them leaves, and the session ends.
func (svc *Service) vet(ctx context.Context, s *session) error {
	svc.mu.Lock()
	b := s.browser
	svc.mu.Unlock()
	if b == nil {
		return problem.New(problem.Conflict, "wait until the session is open", "the browser of session %s is still being started", s.id)
	}
	ctx, cancel := context.WithTimeout(ctx, vetLimit)
	defer cancel()
	err := b.Network(ctx)
	if problem.CodeOf(err) == problem.CookiesLost {
		// Ending the session here would deadlock: the end waits for the gateway, which waits for this answer. watchUntilEnd ends it.
		s.noteLost()
		return svc.lostProblem(s)
	}
	return err
}

// suspect looks whether the cookies are still there, behind the caller.
func (svc *Service) suspect(s *session) {
	svc.tasks.Go(func() { // ends with its limit, or with the session
		if err := svc.vet(s.life, s); err != nil && !s.over() && problem.CodeOf(err) != problem.CookiesLost && problem.CodeOf(err) != problem.AccountLost {
			svc.Log.Warn("look whether a browser has its cookies", "session", s.id, "error", err)
		}
	})
}

// lostCause is why a session ends whose browser has lost its cookies.
func lostCause(p plan) Cause {
	if p.mode == ModeOperator {
		return CauseAccountLost
	}
	return CauseCookiesLost
}

// lostProblem is what somebody gets who uses a session whose browser has lost its cookies.
func (svc *Service) lostProblem(s *session) error {
	cause := lostCause(s.plan)
	return problem.New(lostCodes[cause], "open a new one", "session %s ends: %s", s.id, sentence(Ended{Cause: cause}, s.plan))
}

// lostCodes are the codes of the two.
var lostCodes = map[Cause]string{CauseAccountLost: problem.AccountLost, CauseCookiesLost: problem.CookiesLost}

// noteLost says that the cookies of a session are lost. An opening ends with it.
func (s *session) noteLost() { s.losing.Do(func() { close(s.lost) }) }

// unlost is an error when the cookies of a session that is being opened are lost already.
func (svc *Service) unlost(s *session) error {
	if wake.Closed(s.lost) {
		return svc.lostProblem(s)
	}
	return nil
}

// whyLost is the sentence of a session whose network process the kernel has ended, with the reason.
func whyLost(e *Ended, x jail.Exit) {
	if e.LimitsHit = x.Hit; slices.Contains(x.Hit, jail.LimitTenantMemory) {
		e.Message += "; its jail had run into its limit of " + jail.LimitTenantMemory.Words()
	} else if slices.Contains(x.Hit, jail.LimitMemory) {
		e.Message += fmt.Sprintf("; its jail had run into its limit of %s", jail.LimitMemory)
	}
}

// networkGone is what Chromium prints when its network process has ended: content/browser/network_service_instance_impl.cc.
var networkGone = []byte("Network service crashed")

// heard looks through what a browser prints. It only says when to look at the browser, since a process in the jail can
// print anything; a line that is cut in two is no loss, since each new connection is vetted.
func (i *instance) heard(printed []byte) {
	if !bytes.Contains(printed, networkGone) {
		return
	}
	i.suspected.Send()
}
