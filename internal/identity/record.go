package identity

import (
	"context"
	"errors"
	"fmt"
)

// Record writes an event down and then does it; when that fails, the outcome says so. An act that cannot be written down is
// not done.
func (s *Service) Record(ctx context.Context, e Event, do func() error) error {
	if s.o.Begin != nil {
		end, err := s.o.Begin(ctx, e)
		if err != nil {
			return fmt.Errorf("record %s: %w", e.Action, err)
		}
		if err := do(); err != nil {
			end(resultFailed)
			return err
		}
		end(resultOK)
		return nil
	}
	e.Result = resultOK
	if err := s.o.Audit(ctx, e); err != nil {
		return fmt.Errorf("record %s: %w", e.Action, err)
	}
	err := do()
	if err == nil {
		return nil
	}
	e.Result = resultFailed
	return errors.Join(err, s.o.Audit(context.WithoutCancel(ctx), e))
}

// Ending does something that must not wait for its record.
func (s *Service) Ending(ctx context.Context, e Event, do func() error) error {
	e.Result, e.Ending = resultOK, true
	err := do()
	if err != nil {
		e.Result = resultFailed
	}
	if auditErr := s.o.Audit(ctx, e); auditErr != nil {
		err = errors.Join(err, fmt.Errorf("%s is done and could not be recorded: %w", e.Action, auditErr))
	}
	return err
}

// Note writes down that something was refused. It stays refused when that does not work.
func (s *Service) Note(ctx context.Context, e Event) error {
	e.Result, e.Remote = resultRefused, canonical(e.Remote)
	if err := s.o.Audit(ctx, e); err != nil {
		return fmt.Errorf("record that %s was refused: %w", e.Action, err)
	}
	return nil
}
