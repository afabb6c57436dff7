package session

import (
	"context"
	"fmt"
	"time"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// thumbnailAge is how long a thumbnail is good, thumbnailLimit how long one may take.
	thumbnailAge   = 3 * time.Second
	thumbnailLimit = 5 * time.Second
)

// thumbnail is the last small picture of a session, and the one that is being made.
type thumbnail struct {
	jpeg   []byte
	at     time.Time
	making *exposure
}

// exposure is a thumbnail for everybody who waits for it. jpeg and err are set before done is closed.
type exposure struct {
	done chan struct{}
	jpeg []byte
	at   time.Time
	err  error
}

// Thumbnail is a small picture (JPEG) of a session that is ready, at most some seconds old. The code is not_found while a
// person has it, and of a refresh session. It is no use of the session.
func (svc *Service) Thumbnail(ctx context.Context, by identity.Principal, id string) ([]byte, time.Time, error) {
	s, b, err := svc.ready(ctx, by, identity.SessionLook, id)
	if err != nil {
		return nil, time.Time{}, err
	}
	svc.mu.Lock()
	if s.takeover != nil || s.state != StateReady {
		svc.mu.Unlock()
		return nil, time.Time{}, noThumbnail(s)
	}
	if s.thumbnail.jpeg != nil && svc.Now().Sub(s.thumbnail.at) < thumbnailAge {
		defer svc.mu.Unlock()
		return s.thumbnail.jpeg, s.thumbnail.at, nil
	}
	m := s.thumbnail.making
	if m == nil {
		m = &exposure{done: make(chan struct{})}
		s.thumbnail.making = m
		svc.tasks.Go(func() { svc.makeThumbnail(s.life, s, b, m) })
	}
	svc.mu.Unlock()
	select {
	case <-m.done:
	case <-ctx.Done():
		return nil, time.Time{}, context.Cause(ctx)
	}
	if m.err != nil {
		return nil, time.Time{}, svc.why(ctx, s, m.err)
	}
	return m.jpeg, m.at, nil
}

func noThumbnail(s *session) error {
	return problem.New(problem.NotFound, "there is one while it is ready, and not taken over", "there is no picture of session %s now", s.id)
}

// makeThumbnail makes one. A picture of the page after a take-over is thrown away.
func (svc *Service) makeThumbnail(ctx context.Context, s *session, b Browser, m *exposure) {
	defer close(m.done)
	ctx, cancel := context.WithTimeout(ctx, thumbnailLimit)
	defer cancel()
	m.jpeg, m.err = b.Live().Thumbnail(ctx)
	svc.mu.Lock()
	defer svc.mu.Unlock()
	m.at = svc.Now()
	if s.thumbnail.making != m { // a take-over has begun meanwhile
		m.jpeg, m.err = nil, noThumbnail(s)
		return
	}
	s.thumbnail.making = nil
	if m.err != nil {
		m.jpeg, m.err = nil, fmt.Errorf("make a small picture: %w", m.err)
		return
	}
	s.thumbnail.jpeg, s.thumbnail.at = m.jpeg, m.at
}
