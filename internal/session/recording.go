package session

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session/recording"
)

const (
	// recordingsKept is how long recordings for audit are kept.
	recordingsKept = 7 * 24 * time.Hour
	// pictureLimit bounds the picture that a recording takes by itself.
	pictureLimit = 5 * time.Second
	// pictureQuality is that of such a picture.
	pictureQuality = 60
)

// startTape begins the recording of a session, if it is recorded.
func (s *Service) startTape(r *session) error {
	if r.plan.record == RecordOff {
		return nil
	}
	tape, err := s.shelf.Start(recording.Meta{Session: r.id, Tenant: r.plan.tenant, Agent: r.by.AgentID(), OpenedBy: r.by.Actor(), Label: r.plan.label,
		Mode: r.plan.mode, Browser: string(r.plan.shape.build), Kind: recording.Kind(r.plan.record), Created: r.created})
	if err != nil {
		return fmt.Errorf("record the session: %w", err)
	}
	s.mu.Lock()
	r.tape = tape
	s.mu.Unlock()
	return nil
}

// endTape ends the recording of a session of which nothing is left.
func (s *Service) endTape(r *session) {
	s.mu.Lock()
	tape, cause := r.tape, ""
	if r.ended != nil {
		cause = string(r.ended.Cause)
	}
	s.mu.Unlock()
	if tape != nil {
		if err := tape.Close(s.Now(), cause); err != nil {
			s.Log.Error("end a recording", "session", r.id, "error", err)
		}
	}
}

// TidyRecordings removes the recordings that are kept for long enough.
func (s *Service) TidyRecordings() {
	if err := s.shelf.Tidy(); err != nil {
		s.Log.Error("remove old recordings", "error", err)
	}
}

// taped does something that a caller asked for, and keeps that it was done. An operation that a recording for audit cannot keep is not
// done. The operations of a person who has the session in hand are not kept.
func (s *Service) taped(ctx context.Context, r *session, by identity.Principal, b Browser, op browser.Operation, do func() (any, error)) error {
	if r.tape == nil || s.held(r) {
		_, err := do()
		return err
	}
	began := s.Now()
	number, err := r.tape.Begin(recording.Step{At: began, Actor: by.Actor(), Tool: op.Tool(), Target: op.Target()})
	if err != nil && r.plan.record == RecordAudit {
		return err
	}
	if err != nil {
		s.Log.Warn("record a step", "session", r.id, "error", err) // this recording is a convenience
	}
	out, done := do()
	if err != nil {
		return done
	}
	o := recording.Outcome{OK: done == nil, TookMS: s.Now().Sub(began).Milliseconds()}
	if done != nil {
		o.Code, o.Error = problem.CodeOf(done), publicText(done)
	}
	s.picture(ctx, r, b, op, out, &o)
	if err := r.tape.End(number, s.Now(), o); err != nil {
		s.Log.Error("record a step", "session", r.id, "error", err)
		if done == nil && r.plan.record == RecordAudit {
			return err
		}
	}
	return done
}

// picture adds to a step what the page shows: the picture that the caller asked for, and in a recording for audit one
// after everything that changes something.
func (s *Service) picture(ctx context.Context, r *session, b Browser, op browser.Operation, out any, o *recording.Outcome) {
	asked, isPicture := out.(browser.Picture)
	before := s.untaken(r)
	if !isPicture && r.plan.record == RecordAudit && op.Effect() >= browser.Steers && !r.over() && !endedByTakeover(ctx) && before != nil {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), pictureLimit)
		defer cancel()
		taken, err := b.Do(within, browser.Screenshot{Type: browser.JPEG, Quality: pictureQuality})
		if err != nil {
			s.Log.Warn("take the picture of a step", "session", r.id, "error", err)
			return
		}
		if s.untaken(r) != before {
			return // it may show what a person does, who has taken the session over meanwhile
		}
		asked, isPicture = taken.(browser.Picture)
	}
	if format, found := strings.CutPrefix(asked.ContentType, "image/"); isPicture && found {
		o.Picture, o.Format, o.URL = asked.Data, format, asked.URL
		if values := s.valuesOf(r); values != nil {
			o.URL = values.Text(o.URL) // it is kept for a week
		}
	}
}

// untaken is the use period of a session that no person has in hand, nor is about to; nil while one has. The caller holds no lock.
func (s *Service) untaken(r *session) *usePeriod {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.takeover != nil {
		return nil
	}
	return r.period
}

// shotsOf are the pictures that are kept of a session.
func shotsOf(tape *recording.Tape) []Shot {
	if tape == nil {
		return nil
	}
	var out []Shot
	for _, p := range tape.Pictures() {
		out = append(out, Shot{Number: p.Number, At: p.At, Format: p.Format, Bytes: p.Bytes})
	}
	return out
}

// WriteRecording writes what was recorded of a session as one HTML page. It may be one that has ended, if it was recorded
// for audit. The code is not_found when there is nothing.
func (s *Service) WriteRecording(ctx context.Context, by identity.Principal, id string, w io.Writer) error {
	meta, err := s.recorded(ctx, by, identity.SessionRecording, id)
	if err != nil {
		return err
	}
	return s.shelf.WritePage(w, meta)
}
