package signin

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

const (
	// linkLife is how long a link is good.
	linkLife = 10 * time.Minute
	// maxLinks is how many of one owner's are good at a time. The oldest is forgotten first.
	maxLinks = 16
	// linkMake is what making one is called in the audit log. Everybody who may sign in may make one.
	linkMake = "console.link"
)

// NewLink makes a link with which the caller signs in, once.
func (s *Service) NewLink(ctx context.Context, by identity.Principal) (Link, error) {
	if by.Kind == identity.KindAgent {
		return Link{}, s.o.Identity.Refuse(by, identity.SignIn, "", agentsHaveNone())
	}
	if err := s.o.Identity.Authorize(ctx, by, identity.SignIn, by.Tenant); err != nil {
		return Link{}, err
	}
	code, sum := newToken(PrefixLink, s.o.Tag)
	out := Link{Code: code, ExpiresAt: s.now().Add(linkLife)}
	i := audit.Intent{Action: linkMake, Tenant: by.Tenant, Actor: by.Actor()}
	err := s.o.Identity.Record(ctx, i, func() error {
		s.links.add(sum, link{owner: s.owner(by), expires: out.ExpiresAt})
		return nil
	})
	if err != nil {
		return Link{}, fmt.Errorf("make a link: %w", err)
	}
	return out, nil
}

// WithLink signs in with a link's code.
func (s *Service) WithLink(ctx context.Context, code string, from From) (cookie string, in SignIn, err error) {
	if err := s.o.Identity.RateLimited(ctx, from.Remote); err != nil {
		return "", SignIn{}, err
	}
	sum, ok := hashOf(PrefixLink, code)
	one, found := s.links.take(sum)
	if !ok || !found || !s.o.Now().Before(one.expires) {
		return "", SignIn{}, s.guessed(ctx, methodLink, from, problem.New(problem.Unauthorized, "make a new one: clawjail console",
			"invalid or expired link; a link works once, within %s", linkLife))
	}
	p, err := s.standing(ctx, one.owner)
	if err != nil {
		return "", SignIn{}, s.refuse(methodLink, identity.Principal{}, from, err)
	}
	return s.enter(ctx, p, methodLink, from, nil)
}

// links are the unused ones, by their hashes.
type links struct {
	mu     sync.Mutex
	unused map[[sha256.Size]byte]link
}

type link struct {
	owner   store.Owner
	expires time.Time
}

func (l *links) add(sum [sha256.Size]byte, one link) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unused == nil {
		l.unused = map[[sha256.Size]byte]link{}
	}
	count, oldest, found := 0, sum, false
	for sum, other := range l.unused {
		if other.owner != one.owner {
			continue
		}
		if count++; !found || other.expires.Before(l.unused[oldest].expires) {
			oldest, found = sum, true
		}
	}
	if count >= maxLinks {
		delete(l.unused, oldest)
	}
	l.unused[sum] = one
}

// take finds one and removes it, so that no other call finds it.
func (l *links) take(sum [sha256.Size]byte) (link, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	one, ok := l.unused[sum]
	delete(l.unused, sum)
	return one, ok
}

// forget forgets those that have expired.
func (l *links) forget(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for sum, one := range l.unused {
		if !now.Before(one.expires) {
			delete(l.unused, sum)
		}
	}
}
