package egress

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"time"

	strict "github.com/go-json-experiment/json"

	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// The kinds of entries.
const (
	kindRule     = "rule"
	kindService  = "service"
	kindProvider = "provider"
	kindSettings = "settings"
	kindAccess   = "access"
)

// KindDeclaration is the kind of entries that package agent keeps beside these, kindServer that of package mcpserver, and
// those of [grant.KindPermission] are package grant's.
// They decide nothing here.
const (
	KindDeclaration = "declaration"
	kindServer      = "mcpserver"
)

func ofOthers(kind string) bool {
	return kind == KindDeclaration || kind == kindServer || kind == grant.KindPermission
}

// theSettings is the name of every entry with settings, so that the database keeps no two of one scope.
const theSettings = "settings"

// scope is the tenant and the agent that an entry is for. Empty is all of them.
type scope struct{ tenant, agent string }

// item is an entry that was read. It does not change. One of the pointers is set; in a damaged one none is, but for the
// rule that stands for it.
type item struct {
	entry store.Entry // without its body
	sum   uint64      // of the body

	rule     *Rule
	service  *Service
	provider *Provider
	settings *Settings
	access   *AccessRequest
	damaged  error
}

func (i *item) scope() scope { return scope{i.entry.Tenant, i.entry.Agent} }

func (i *item) expired(now time.Time) bool { return expired(i.entry.ExpiresAt, now) }

func expired(at, now time.Time) bool { return !at.IsZero() && !now.Before(at) }

// kept is what a body holds of Meta; the rest are columns.
func kept(m Meta) Meta { return Meta{Note: m.Note, CreatedBy: m.CreatedBy} }

// metaOf is what the columns say, with what the body does.
func metaOf(e store.Entry, body Meta) Meta {
	return Meta{
		ID: e.ID, Tenant: e.Tenant, Agent: e.Agent, Note: body.Note, CreatedBy: body.CreatedBy, CreatedAt: e.CreatedAt,
		UpdatedAt: e.UpdatedAt, ExpiresAt: e.ExpiresAt, Version: e.Version,
	}
}

// entryOf is the row of something; body is without what the columns hold.
func entryOf(kind, name string, m Meta, body any) (store.Entry, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return store.Entry{}, fmt.Errorf("write down a %s: %w", kind, err)
	}
	if len(text) > maxBody {
		return store.Entry{}, problem.New(problem.BadLimit, "make two of it, or leave something out", "the entry has %d bytes, more than %d", len(text), maxBody)
	}
	return store.Entry{
		ID: m.ID, Kind: kind, Tenant: m.Tenant, Agent: m.Agent, Name: name, Body: text, Version: m.Version,
		CreatedAt: m.CreatedAt, UpdatedAt: m.UpdatedAt, ExpiresAt: m.ExpiresAt,
	}, nil
}

func (r Rule) entry() (store.Entry, error) {
	m := r.Meta
	r.Meta = kept(m)
	return entryOf(kindRule, r.Name, m, r)
}

func (s Service) entry() (store.Entry, error) {
	m := s.Meta
	s.Meta = kept(m)
	return entryOf(kindService, s.Name, m, s)
}

func (p Provider) entry() (store.Entry, error) {
	m := p.Meta
	p.Meta = kept(m)
	return entryOf(kindProvider, p.Name, m, p)
}

func (s Settings) entry() (store.Entry, error) {
	m := s.Meta
	s.Meta = kept(m)
	return entryOf(kindSettings, theSettings, m, s)
}

// entry has a name while the question is open, so that the database keeps no two of the same.
func (a AccessRequest) entry() (store.Entry, error) {
	m, name := a.Meta, ""
	if a.State == AccessPending {
		name = pendingName(a.Kind, a.Target)
	}
	a.Meta = kept(m)
	return entryOf(kindAccess, name, m, a)
}

// read decodes an entry strictly, and validates it again: the database may be of another version, or damaged.
func read(e store.Entry, seed maphash.Seed) *item {
	i := &item{entry: e, sum: maphash.Bytes(seed, e.Body)}
	i.entry.Body = nil
	f := newFlaws()
	switch e.Kind {
	case kindRule:
		r := &Rule{}
		if i.damaged = decode(e.Body, r); i.damaged == nil {
			r.Meta = metaOf(e, r.Meta)
			validRule(f, *r)
			i.rule = r
		}
	case kindService:
		s := &Service{}
		if i.damaged = decode(e.Body, s); i.damaged == nil {
			s.Meta = metaOf(e, s.Meta)
			validService(f, *s)
			f.check(s.Name == e.Name, "name", "is not that of its row")
			i.service = s
		}
	case kindProvider:
		p := &Provider{}
		if i.damaged = decode(e.Body, p); i.damaged == nil {
			p.Meta = metaOf(e, p.Meta)
			validProvider(f, *p)
			f.check(p.Name == e.Name, "name", "is not that of its row")
			i.provider = p
		}
	case kindSettings:
		s := &Settings{}
		if i.damaged = decode(e.Body, s); i.damaged == nil {
			s.Meta = metaOf(e, s.Meta)
			validSettings(f, *s)
			i.settings = s
		}
	case kindAccess:
		a := &AccessRequest{}
		if i.damaged = decode(e.Body, a); i.damaged == nil {
			a.Meta = metaOf(e, a.Meta)
			validAccess(f, *a)
			i.access = a
		}
	default:
		i.damaged = fmt.Errorf("entries of the kind %q are not known", clip(e.Kind))
	}
	if i.damaged == nil {
		i.damaged = f.err()
	}
	if i.damaged != nil {
		i.rule, i.service, i.provider, i.settings, i.access = nil, nil, nil, nil, nil
		i.rule = standIn(e)
	}
	return i
}

func decode(body []byte, into any) error {
	if len(body) > maxBody {
		return fmt.Errorf("it has %d bytes, more than %d", len(body), maxBody)
	}
	// The text of the error may quote the body, which is of no use to a log that is read by many.
	if strict.Unmarshal(body, into, strict.RejectUnknownMembers(true)) != nil {
		return errors.New("its text is not what this version writes")
	}
	return nil
}

// standIn is a rule that stands for a damaged entry and denies everything in its scope, when the entry may have been one that denies:
// a rule, unless it says that it allows, and settings. For a rule of a session only the session is denied, if that much
// can be read.
func standIn(e store.Entry) *Rule {
	if e.Kind != kindRule && e.Kind != kindSettings {
		return nil
	}
	var said struct {
		Action  policy.Action `json:"action"`
		Session string        `json:"session"`
	}
	if strict.Unmarshal(e.Body, &said) != nil || e.Kind == kindSettings {
		said.Action, said.Session = "", ""
	}
	if said.Action == policy.Allow {
		return nil
	}
	return &Rule{Meta: metaOf(e, Meta{}), Session: said.Session, Priority: 1, Rule: denyAll(prefixDamaged + e.ID)}
}

// denyAll is the rule that denies everything.
func denyAll(name string) policy.Rule {
	return policy.Rule{Name: name, Action: policy.Deny, Host: policy.AnyHost(), Ports: policy.AnyPort()}
}
