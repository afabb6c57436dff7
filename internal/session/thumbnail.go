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
func (s *Service) Thumbnail(ctx context.Context, by identity.Principal, id string) ([]byte, time.Time, error) {
	r, b, err := s.ready(ctx, by, identity.SessionLook, id)
	if err != nil {
		return nil, time.Time{}, err
	}
	s.mu.Lock()
	if r.grip != nil || r.state != StateReady {
		s.mu.Unlock()
		return nil, time.Time{}, noThumbnail(r)
	}
	if r.thumbnail.jpeg != nil && s.Now().Sub(r.thumbnail.at) < thumbnailAge {
		defer s.mu.Unlock()
		return r.thumbnail.jpeg, r.thumbnail.at, nil
	}
	m := r.thumbnail.making
	if m == nil {
		m = &exposure{done: make(chan struct{})}
		r.thumbnail.making = m
		s.tasks.Go(func() { s.makeThumbnail(r.life, r, b, m) })
	}
	s.mu.Unlock()
	select {
	case <-m.done:
	case <-ctx.Done():
		return nil, time.Time{}, context.Cause(ctx)
	}
	if m.err != nil {
		return nil, time.Time{}, s.why(ctx, r, m.err)
	}
	return m.jpeg, m.at, nil
}

func noThumbnail(r *session) error {
	return problem.New(problem.NotFound, "there is one while it is ready, and not taken over", "there is no picture of session %s now", r.id)
}

// makeThumbnail makes one. A picture of the page after a take-over is thrown away.
func (s *Service) makeThumbnail(ctx context.Context, r *session, b Browser, m *exposure) {
	defer close(m.done)
	ctx, cancel := context.WithTimeout(ctx, thumbnailLimit)
	defer cancel()
	m.jpeg, m.err = b.Live().Thumbnail(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	m.at = s.Now()
	if r.thumbnail.making != m { // a take-over has begun meanwhile
		m.jpeg, m.err = nil, noThumbnail(r)
		return
	}
	r.thumbnail.making = nil
	if m.err != nil {
		m.jpeg, m.err = nil, fmt.Errorf("make a small picture: %w", m.err)
		return
	}
	r.thumbnail.jpeg, r.thumbnail.at = m.jpeg, m.at
}
