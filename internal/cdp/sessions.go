package cdp

import (
	"errors"
	"fmt"
)

// session is one attached session, as the browser's events report it. A session that is attached under another belongs to
// the owner of that one.
type session struct {
	parent   string
	owner    *Client // nil: the control plane
	children map[string]struct{}
}

const (
	attachedToTarget   = "Target.attachedToTarget"
	detachedFromTarget = "Target.detachedFromTarget"
)

// event keeps the table of sessions, and delivers to the client or the subscribers that the event's session belongs to. With left
// the event was too large, and has no parameters.
func (c *Conn) event(m *Message, left bool) error {
	var gone []*call
	var ended []*Subscription
	var orphan *Client

	c.mu.Lock()
	if c.cause != nil {
		c.mu.Unlock()
		return nil
	}
	owner, known := c.ownerOf(m.SessionID)
	if !known {
		c.mu.Unlock()
		c.unclaimed.Add(1)
		return nil
	}
	var err error
	switch m.Method {
	case attachedToTarget:
		err = c.attached(m, owner)
		if owner != nil && errors.Is(err, ErrTooManySessions) {
			c.mu.Unlock()
			owner.end(err) // with which the browser lets go of what is not in the table
			return nil
		}
	case detachedFromTarget:
		gone, ended, orphan, err = c.detached(m)
	}
	var subs []*Subscription
	if owner == nil {
		subs = c.subscribers(m)
	}
	c.mu.Unlock()
	if err != nil {
		return err
	}

	for _, call := range gone {
		call.answer(nil, ErrSessionGone)
	}
	if owner != nil {
		owner.event(m, left)
	}
	for _, sub := range subs {
		if left || !sub.queue.push(m) {
			sub.queue.leaveOut(m.SessionID, m.Method, !IsNoise(m.Method))
		}
	}
	for _, sub := range ended {
		sub.queue.close(ErrSessionGone, false)
	}
	if orphan != nil {
		orphan.end(fmt.Errorf("the browser detached the client: %w", ErrSessionGone))
	}
	return nil
}

// ownerOf says whose a session is; known is false when it is not attached. c.mu is held.
func (c *Conn) ownerOf(id string) (owner *Client, known bool) {
	if id == "" {
		return nil, true
	}
	s, ok := c.sessions[id]
	if !ok {
		return nil, false
	}
	return s.owner, true
}

// attached adds a session under the one that reported it. c.mu is held.
func (c *Conn) attached(m *Message, owner *Client) error {
	id, err := sessionParam(m)
	if err != nil {
		return err
	}
	if _, taken := c.sessions[id]; taken {
		return fmt.Errorf("%w: session %q attached twice", ErrProtocol, id)
	}
	if len(c.sessions) >= maxSessions {
		return fmt.Errorf("%w: the browser has %d", ErrTooManySessions, len(c.sessions))
	}
	if owner != nil && owner.attached >= maxSessionsOfClient {
		return fmt.Errorf("%w: the client has %d", ErrTooManySessions, owner.attached)
	}
	c.sessions[id] = &session{parent: m.SessionID, owner: owner}
	if owner != nil {
		owner.attached++
	}
	if parent := c.sessions[m.SessionID]; parent != nil {
		if parent.children == nil {
			parent.children = make(map[string]struct{})
		}
		parent.children[id] = struct{}{}
	}
	return nil
}

// detached removes a session and all below it, and returns who waited on them: Chromium answers nothing more there.
// orphan is the client whose own browser session it was. c.mu is held.
func (c *Conn) detached(m *Message) (gone []*call, ended []*Subscription, orphan *Client, err error) {
	id, err := sessionParam(m)
	if err != nil {
		return nil, nil, nil, err
	}
	s := c.sessions[id]
	if s == nil || s.parent != m.SessionID {
		// Sessions can only be ended by the one they were attached under.
		return nil, nil, nil, nil
	}
	if s.owner != nil && m.SessionID == "" {
		orphan = s.owner
	}
	removed := make(map[string]struct{})
	c.remove(id, removed)
	for n, call := range c.pending {
		if _, hit := removed[call.session]; hit {
			delete(c.pending, n)
			gone = append(gone, call)
		}
	}
	for sub := range c.subs {
		if _, hit := removed[sub.session]; hit {
			delete(c.subs, sub)
			ended = append(ended, sub)
		}
	}
	return gone, ended, orphan, nil
}

func (c *Conn) remove(id string, removed map[string]struct{}) {
	s := c.sessions[id]
	if s == nil {
		return
	}
	delete(c.sessions, id)
	if s.owner != nil && s.parent != "" {
		s.owner.attached--
	}
	removed[id] = struct{}{}
	if parent := c.sessions[s.parent]; parent != nil {
		delete(parent.children, id)
	}
	for child := range s.children {
		c.remove(child, removed)
	}
}

// assign gives a session of the browser itself to a client.
func (c *Conn) assign(id string, owner *Client) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil {
		return c.cause
	}
	s := c.sessions[id]
	if s == nil || s.parent != "" || s.owner != nil {
		return fmt.Errorf("%w: %q is not a new session of the browser", ErrProtocol, id)
	}
	s.owner = owner
	return nil
}

// owns reports whether a session is a client's.
func (c *Conn) owns(owner *Client, id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.sessions[id]
	return s != nil && s.owner == owner
}

// attachedSessions counts the table, for tests and figures.
func (c *Conn) attachedSessions() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.sessions)
}

func sessionParam(m *Message) (string, error) {
	var params struct {
		SessionID string `json:"sessionId"`
	}
	if err := Decode(m.Params, &params); err != nil {
		return "", fmt.Errorf("%w: %s: %v", ErrProtocol, m.Method, err)
	}
	if params.SessionID == "" || len(params.SessionID) > maxSessionID {
		return "", fmt.Errorf("%w: %s with a session id of %d bytes", ErrProtocol, m.Method, len(params.SessionID))
	}
	return params.SessionID, nil
}
