package cdp

import (
	"context"
	"fmt"

	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/target"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Call sends a command and waits for its reply. An empty session is the browser itself. params is encoded to a JSON
// object and may be nil; the reply is decoded into result unless that is nil. An error that the browser reports
// comes back as an [*Error]. When ctx ends, the command may still run; its reply is thrown away.
func (c *Conn) Call(ctx context.Context, session, method string, params, result any) error {
	return c.call(ctx, session, method, params, result, nil)
}

// call is Call. seen, which may be nil, is called when the result is decoded and before anything that the browser said later
// is looked at by anybody; it must neither wait nor call.
func (c *Conn) call(ctx context.Context, session, method string, params, result any, seen func()) error {
	m := &Message{Kind: Command, SessionID: session, Method: method}
	if params != nil {
		raw, err := json.Marshal(params, jsontext.AllowInvalidUTF8(true))
		if err != nil {
			return fmt.Errorf("%s: encode parameters: %w", method, err)
		}
		if jsontext.Value(raw).Kind() != '{' {
			return fmt.Errorf("%s: parameters are not an object", method)
		}
		m.Params = raw
	}
	type outcome struct {
		reply *Message
		err   error
	}
	decode := func(out outcome) error {
		switch {
		case out.err != nil:
			return fmt.Errorf("%s: %w", method, out.err)
		case out.reply.Error != nil:
			return fmt.Errorf("%s: %w", method, out.reply.Error)
		case result == nil:
			return nil
		}
		if err := Decode(out.reply.Result, result); err != nil {
			return fmt.Errorf("%s: decode result: %w", method, err)
		}
		return nil
	}
	answered := make(chan outcome, 1)
	err := c.submit(ctx, nil, m, func(reply *Message, err error) {
		if seen != nil && err == nil && decode(outcome{reply, nil}) == nil {
			seen()
		}
		answered <- outcome{reply, err}
	})
	if err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	var out outcome
	select {
	case out = <-answered:
	case <-ctx.Done():
		if c.forget(m.ID) {
			return fmt.Errorf("%s: %w", method, context.Cause(ctx))
		}
		out = <-answered
	}
	return decode(out)
}

// Session is one attached session of a connection, or the browser itself.
type Session struct {
	conn *Conn
	id   string
}

// Browser is the browser itself: commands without a session.
func (c *Conn) Browser() Session { return Session{conn: c} }

// Session is the session with an id, as Target.attachToTarget with flatten returned it.
func (c *Conn) Session(id string) Session { return Session{conn: c, id: id} }

// ID is the session's id, empty for the browser itself.
func (s Session) ID() string { return s.id }

// Attach attaches to a target; s is the browser, or a session of a page whose targets end with it.
func (s Session) Attach(ctx context.Context, id target.ID) (Session, error) {
	flatten := true
	attached, err := Do(ctx, s, target.AttachToTarget, target.AttachToTargetParams{TargetID: id, Flatten: &flatten})
	return s.conn.Session(string(attached.SessionID)), err
}

// Detach ends a session that s has attached.
func (s Session) Detach(ctx context.Context, attached Session) error {
	_, err := Do(ctx, s, target.DetachFromTarget, target.DetachFromTargetParams{SessionID: target.SessionID(attached.id)})
	return err
}

// Call is [Conn.Call] on this session.
func (s Session) Call(ctx context.Context, method string, params, result any) error {
	return s.conn.Call(ctx, s.id, method, params, result)
}

// Subscribe is [Conn.Subscribe] on this session.
func (s Session) Subscribe(methods ...string) (*Subscription, error) {
	return s.conn.Subscribe(s.id, methods...)
}

// Do runs a command of the protocol's types: Do(ctx, session, page.Navigate, page.NavigateParams{URL: url}).
func Do[P, R any](ctx context.Context, s Session, command protocol.Command[P, R], params P) (R, error) {
	var result R
	if err := s.Call(ctx, command.Method, params, &result); err != nil {
		var none R
		return none, err
	}
	return result, nil
}

// DoSeen is [Do], but calls seen with the result before any later message of the browser is delivered.
// The goroutine that reads the pipe calls it, so it must neither wait nor call.
func DoSeen[P, R any](ctx context.Context, s Session, command protocol.Command[P, R], params P, seen func(R)) (R, error) {
	var result, none R
	if err := s.conn.call(ctx, s.id, command.Method, params, &result, func() { seen(result) }); err != nil {
		return none, err
	}
	return result, nil
}

// Decode decodes a result or the parameters of an event. Names match exactly. A lone surrogate in a page's text
// becomes U+FFFD, and a name that a page used twice keeps its last value: neither is the caller's fault.
func Decode(raw jsontext.Value, into any) error {
	if raw == nil {
		raw = jsontext.Value("{}")
	}
	return json.Unmarshal(raw, into, jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
}
