package mcp

import (
	"context"
	"crypto/rand"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/mcpserver"
	"github.com/clawjail/clawjail/internal/problem"
)

// Bounds of what is remembered of clients.
const (
	maxConversations    = 4096
	maxConversationsOf  = 64 // of one key; the one that was not used for longest goes for a new one
	conversationIdle    = 12 * time.Hour
	maxRememberedOfTalk = 64 // browser sessions of one conversation; the oldest is forgotten
)

// conversation is what one client has opened, so that it need not name the session in every call, and which lists it knows.
type conversation struct {
	mu       sync.Mutex
	sessions []string
	lists    mcpserver.Views // those that it has listed; see Foreign
	ear      *ear            // nil while it does not listen
	over     bool
}

// listed keeps what the client knows of a kind.
func (c *conversation) listed(kind mcpserver.Kind, view string) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lists == nil {
		c.lists = mcpserver.Views{}
	}
	c.lists[kind] = view
	if c.ear == nil {
		return
	}
	select {
	case c.ear.listed <- struct{}{}:
	default: // it will be looked at
	}
}

// seen is which lists the client knows. A list that it has not asked for is not among them.
func (c *conversation) seen() mcpserver.Views {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.lists)
}

// hear lets the client listen, in the place of where it listened before, until deafen. cancel is called when it is to end. It is nil
// when the conversation is over.
func (c *conversation) hear(cancel context.CancelFunc) *ear {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return nil
	}
	if c.ear != nil {
		c.ear.cancel()
	}
	c.ear = &ear{listed: make(chan struct{}, 1), cancel: cancel}
	return c.ear
}

func (c *conversation) deafen(own *ear) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ear == own {
		c.ear = nil
	}
}

// end ends what listens to it.
func (c *conversation) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	if c.ear != nil {
		c.ear.cancel()
	}
}

func (c *conversation) opened(id string) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sessions = append(c.sessions, id)
	c.sessions = c.sessions[max(0, len(c.sessions)-maxRememberedOfTalk):]
}

func (c *conversation) closed(id string) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sessions = slices.DeleteFunc(c.sessions, func(s string) bool { return s == id })
}

func (c *conversation) open() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.sessions)
}

// conversations are those of the clients over HTTP, by the Mcp-Session-Id that each was given when it initialized. An id
// is good with the key that it was given to, and with no other.
type conversations struct {
	tag string
	now func() time.Time
	mu  sync.Mutex
	all map[string]*talking
}

type talking struct {
	owner, tenant string
	used          time.Time
	conversation
}

func newConversations(tag string, now func() time.Time) *conversations {
	return &conversations{tag: tag, now: now, all: map[string]*talking{}}
}

// keyOf names the key that a principal called with. The token of a session is another one than the key of who made it.
func keyOf(by identity.Principal) string {
	key := by.Actor() + "/" + by.TokenID
	if by.Scope != "" {
		key += "/" + by.Session + "/" + string(by.Scope)
	}
	return key
}

// begin makes a conversation of a key of a tenant. When there are too many, one goes that was not used for longest: of the key, or
// of the tenant that has the most.
func (c *conversations) begin(owner, tenant string) (string, *conversation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	of := 0
	tenants := map[string]int{}
	for id, t := range c.all {
		if now.Sub(t.used) >= conversationIdle {
			c.drop(id)
			continue
		}
		tenants[t.tenant]++
		if t.owner == owner {
			of++
		}
	}
	if of >= maxConversationsOf {
		c.forget(func(t *talking) bool { return t.owner == owner })
	}
	if len(c.all) >= maxConversations {
		busiest := tenant
		for t, n := range tenants {
			if n > tenants[busiest] {
				busiest = t
			}
		}
		c.forget(func(t *talking) bool { return t.tenant == busiest })
	}
	id := "m_" + c.tag + rand.Text()
	t := &talking{owner: owner, tenant: tenant, used: now}
	c.all[id] = t
	return id, &t.conversation
}

// forget removes the one of some that was not used for longest. c.mu is held.
func (c *conversations) forget(some func(*talking) bool) {
	oldest := ""
	for id, t := range c.all {
		if some(t) && (oldest == "" || t.used.Before(c.all[oldest].used)) {
			oldest = id
		}
	}
	c.drop(oldest)
}

// drop removes a conversation that is there. c.mu is held.
func (c *conversations) drop(id string) {
	c.all[id].end()
	delete(c.all, id)
}

// find returns a conversation, nil when there is none of that key.
func (c *conversations) find(id, owner string) *conversation {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.all[id]
	now := c.now()
	if t == nil || t.owner != owner || now.Sub(t.used) >= conversationIdle {
		return nil
	}
	t.used = now
	return &t.conversation
}

// end forgets a conversation that was found.
func (c *conversations) end(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all[id] != nil {
		c.drop(id)
	}
}

// turnstile bounds how much one principal does at the same time.
type turnstile struct {
	limit int
	mu    sync.Mutex
	in    map[string]int
}

func newTurnstile(limit int) *turnstile { return &turnstile{limit: limit, in: map[string]int{}} }

// enter lets one more in, until leave. The code is rate_limited when there are too many.
func (t *turnstile) enter(who string) (leave func(), err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.in[who] >= t.limit {
		return nil, problem.New(problem.RateLimited, "wait for answers before asking for more", "%d calls of yours are under way", t.limit)
	}
	t.in[who]++
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.in[who]--; t.in[who] == 0 {
			delete(t.in, who)
		}
	}, nil
}

// until is a context that ends with another one as well.
func until(ctx, other context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return ctx, func() { stop(); cancel(nil) }
}
