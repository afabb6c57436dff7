package store

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Microsecond is how exactly a time is kept: in UTC, without what is below a microsecond.
func Microsecond(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// Text returns ErrInvalid when one of the values is not UTF-8 or holds a NUL. PostgreSQL keeps neither, so no database
// does: what is written on one can be moved to the other.
func Text(values ...string) error {
	for _, v := range values {
		if !utf8.ValidString(v) || strings.IndexByte(v, 0) >= 0 {
			return fmt.Errorf("%w: the text %q is not UTF-8 or holds a NUL", ErrInvalid, v)
		}
	}
	return nil
}

// Moment returns ErrInvalid when a time that must be given is missing, or beyond the year 9999.
func Moment(name string, t time.Time) error {
	if t.IsZero() {
		return fmt.Errorf("%w: %s is missing", ErrInvalid, name)
	}
	return optionalMoment(name, t)
}

func optionalMoment(name string, t time.Time) error {
	if year := t.UTC().Year(); year < 1 || year > 9999 {
		return fmt.Errorf("%w: the year of %s is %d", ErrInvalid, name, year)
	}
	return nil
}

func present(name, value string) error {
	if value == "" {
		return fmt.Errorf("%w: %s is missing", ErrInvalid, name)
	}
	return nil
}

// slug is a name of a tenant or an agent.
func slug(name, value string) error {
	if len(value) < 1 || len(value) > 40 {
		return fmt.Errorf("%w: %s %q is not 1 to 40 of a-z, 0-9 and -", ErrInvalid, name, value)
	}
	for _, c := range value {
		if c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') {
			return fmt.Errorf("%w: %s %q is not 1 to 40 of a-z, 0-9 and -", ErrInvalid, name, value)
		}
	}
	return nil
}

// Validate returns everything that is wrong with the row, as ErrInvalid. Every Store asks before it writes.
func (t Tenant) Validate() error {
	return errors.Join(slug("tenant", t.ID), Moment("created_at", t.CreatedAt))
}

// Validate returns everything that is wrong with the row, as ErrInvalid. Every Store asks before it writes.
func (o Operator) Validate() error {
	var reach error
	if o.Tenant == "" && o.Role != "admin" {
		reach = fmt.Errorf("%w: only an admin may be of all tenants", ErrInvalid)
	}
	return errors.Join(present("id", o.ID), Text(o.ID, o.Name, o.Tenant, o.Role, o.KeyHint), reach, digest("key_hash", o.KeyHash),
		Moment("created_at", o.CreatedAt), optionalMoment("expires_at", o.ExpiresAt), optionalMoment("revoked_at", o.RevokedAt))
}

// Validate returns everything that is wrong with the row, as ErrInvalid. Every Store asks before it writes.
func (a Agent) Validate() error {
	return errors.Join(present("id", a.ID), Text(a.ID), slug("tenant", a.Tenant), slug("name", a.Name),
		Moment("created_at", a.CreatedAt), optionalMoment("revoked_at", a.RevokedAt))
}

// Validate returns everything that is wrong with the row, as ErrInvalid. Every Store asks before it writes.
func (t Token) Validate() error {
	return errors.Join(present("id", t.ID), present("agent", t.Agent), Text(t.ID, t.Agent, t.Hint), digest("hash", t.Hash),
		Moment("created_at", t.CreatedAt), optionalMoment("expires_at", t.ExpiresAt), optionalMoment("revoked_at", t.RevokedAt),
		optionalMoment("used_at", t.UsedAt))
}

// Validate returns everything that is wrong with the row, as ErrInvalid. Every Store asks before it writes.
func (s CookieSet) Validate() error {
	var leases error
	if s.MaxLeases < 1 {
		leases = fmt.Errorf("%w: max_leases is %d", ErrInvalid, s.MaxLeases)
	}
	return errors.Join(present("id", s.ID), slug("tenant", s.Tenant), present("domain", s.Domain), Text(s.ID, s.Domain), Text(s.Scopes...), Text(s.EgressDomains...),
		Text(s.SignedIn.Page, s.SignedIn.Marker, s.SignedOutBy), leases,
		Moment("created_at", s.CreatedAt), optionalMoment("last_refreshed_at", s.LastRefreshedAt),
		optionalMoment("last_injected_at", s.LastInjectedAt), optionalMoment("expires_at", s.ExpiresAt), optionalMoment("signed_out_at", s.SignedOutAt))
}

// Validate returns everything that is wrong with what was seen, as ErrInvalid. Every Store asks before it writes.
func (m SignedOut) Validate() error {
	return errors.Join(Text(m.By), Moment("opened", m.Opened), Moment("at", m.At))
}

// Validate returns everything that is wrong with the lease, as ErrInvalid. Every Store asks before it writes.
func (l Lease) Validate() error {
	return errors.Join(present("tenant", l.Tenant), present("session", l.Session), present("node", l.Node),
		Text(l.Tenant, l.Session, l.Node), Moment("at", l.At), Moment("expires_at", l.ExpiresAt))
}

// Validate returns everything that is wrong with the row, as ErrInvalid. Every Store asks before it writes.
func (s Secret) Validate() error {
	return errors.Join(present("id", s.ID), slug("tenant", s.Tenant), present("service", s.Service), Text(s.ID, s.Agent, s.Service),
		Moment("created_at", s.CreatedAt), optionalMoment("updated_at", s.UpdatedAt), optionalMoment("used_at", s.UsedAt))
}

// Validate returns everything that is wrong with the row, as ErrInvalid. Every Store asks before it writes.
func (g Grant) Validate() error {
	return errors.Join(present("id", g.ID), slug("tenant", g.Tenant), Text(g.ID, g.Access, g.Origin, g.Operator, g.UsedBy, g.RevokedBy),
		Text(g.Domains...), Text(g.EgressDomains...),
		Moment("issued_at", g.IssuedAt), Moment("not_before", g.NotBefore), Moment("expires_at", g.ExpiresAt),
		optionalMoment("used_at", g.UsedAt), optionalMoment("revoked_at", g.RevokedAt))
}

// Validate returns everything that is wrong with the row, as ErrInvalid. Every Store asks before it writes.
func (r AuditRow) Validate() error {
	var seq error
	if r.Seq < 1 {
		seq = fmt.Errorf("%w: seq is %d", ErrInvalid, r.Seq)
	}
	return errors.Join(present("node", r.Node), seq, present("id", r.ID), present("phase", r.Phase), Moment("time", r.Time),
		Text(r.Node, r.ID, r.Ref, r.Phase, r.Action, r.Result, r.Tenant, r.Actor, r.Session, r.Jail, r.Target),
		digest("prev_hash", r.PrevHash), digest("hash", r.Hash))
}

// Validate returns everything that is wrong with the filter, as ErrInvalid. Every Store asks before it reads.
func (f AuditFilter) Validate() error {
	var limit, after error
	if f.Limit < 1 {
		limit = fmt.Errorf("%w: limit is %d", ErrInvalid, f.Limit)
	}
	if f.AfterSeq != 0 && f.Node == "" {
		after = fmt.Errorf("%w: after_seq counts the rows of a node, and no node is given", ErrInvalid)
	}
	return errors.Join(limit, after, optionalMoment("since", f.Since), optionalMoment("until", f.Until),
		Text(f.Node, f.Tenant, f.Actor, f.Action, f.Session, f.Jail, f.Phase, f.Result, f.Ref, f.ActionPrefix))
}

// Bounds of what entries and usages have, in bytes.
const (
	LongestBody = 64 << 10
	LongestName = 512 // also of providers, models and agents in usages: they are parts of one index
)

// Validate returns everything that is wrong with the row, as ErrInvalid. Every Store asks before it writes.
func (e Entry) Validate() error {
	var tenant error
	switch {
	case e.Tenant != "":
		tenant = slug("tenant", e.Tenant)
	case e.Agent != "":
		tenant = fmt.Errorf("%w: an entry of an agent needs the agent's tenant", ErrInvalid)
	}
	return errors.Join(kind(e.Kind), tenant, Text(e.Agent), Moment("created_at", e.CreatedAt), optionalMoment("updated_at", e.UpdatedAt), e.changes())
}

// ValidateUpdate is Validate for what UpdateEntry looks at.
func (e Entry) ValidateUpdate() error {
	return errors.Join(Moment("updated_at", e.UpdatedAt), e.changes())
}

// changes is what creating and updating an entry have in common.
func (e Entry) changes() error {
	var body error
	switch {
	case len(e.Body) > LongestBody:
		body = fmt.Errorf("%w: the body has %d bytes, and may have %d", ErrInvalid, len(e.Body), LongestBody)
	case !utf8.Valid(e.Body) || !json.Valid(e.Body):
		body = fmt.Errorf("%w: the body is not JSON", ErrInvalid)
	}
	return errors.Join(present("id", e.ID), Text(e.ID), name("name", e.Name), body, optionalMoment("expires_at", e.ExpiresAt))
}

// kind of an entry.
func kind(value string) error {
	if len(value) < 1 || len(value) > 20 || strings.Trim(value, "abcdefghijklmnopqrstuvwxyz") != "" {
		return fmt.Errorf("%w: kind %.40q is not 1 to 20 of a-z", ErrInvalid, value)
	}
	return nil
}

// name is a text of LongestName bytes at most.
func name(what, value string) error {
	if len(value) > LongestName {
		return fmt.Errorf("%w: %s has %d bytes, and may have %d", ErrInvalid, what, len(value), LongestName)
	}
	return Text(value)
}

// Day returns ErrInvalid for what is not a day like 2006-01-02.
func Day(value string) error {
	if day, err := time.Parse(time.DateOnly, value); err != nil || day.Format(time.DateOnly) != value || day.Year() < 1 {
		return fmt.Errorf("%w: the day %.40q is not one like 2006-01-02", ErrInvalid, value)
	}
	return nil
}

// Validate returns everything that is wrong with the key, as ErrInvalid. Every Store asks before it writes.
func (k UsageKey) Validate() error {
	var model error
	if k.Provider == "" && k.Model != "" {
		model = fmt.Errorf("%w: a model without a provider", ErrInvalid)
	}
	return errors.Join(slug("tenant", k.Tenant), present("agent", k.Agent), name("agent", k.Agent), Day(k.Day),
		name("provider", k.Provider), name("model", k.Model), model)
}

// Validate returns everything that is wrong with the limit, as ErrInvalid. Every Store asks before it writes.
func (l UsageLimit) Validate() error {
	if l.Tokens < 0 || l.MicroCost < 0 {
		return fmt.Errorf("%w: a limit of usage is below 0", ErrInvalid)
	}
	return nil
}

func digest(name string, hash []byte) error {
	if len(hash) != 32 {
		return fmt.Errorf("%w: %s has %d bytes, not 32", ErrInvalid, name, len(hash))
	}
	return nil
}

// Batch checks rows for AppendAudit as far as that is possible without the database: each is valid, and the rows of
// each node follow one another. It returns the first seq of each node.
func Batch(rows []AuditRow) (first map[string]int64, err error) {
	first = make(map[string]int64, 1)
	last := make(map[string]int64, 1)
	for _, r := range rows {
		if err := r.Validate(); err != nil {
			return nil, fmt.Errorf("row %d of %s: %w", r.Seq, r.Node, err)
		}
		previous, seen := last[r.Node]
		switch {
		case !seen:
			first[r.Node] = r.Seq
		case r.Seq <= previous:
			return nil, fmt.Errorf("row %d of %s comes twice: %w", r.Seq, r.Node, ErrExists)
		case r.Seq != previous+1:
			return nil, fmt.Errorf("row %d of %s comes after row %d: %w", r.Seq, r.Node, previous, ErrGap)
		}
		last[r.Node] = r.Seq
	}
	return first, nil
}

// Follows says whether a row with the seq first may be appended to a node whose newest row has the seq newest, 0 for
// none: nil, ErrExists or ErrGap.
func Follows(node string, newest, first int64) error {
	switch {
	case first <= newest:
		return fmt.Errorf("row %d of %s: %w", first, node, ErrExists)
	case first != newest+1:
		return fmt.Errorf("row %d of %s, whose newest is %d: %w", first, node, newest, ErrGap)
	}
	return nil
}

// SizesOf is what rows take by tenant and agent, in that order: two that change the same counts at once take them in turn.
func SizesOf(rows []AuditRow) []AuditSize {
	var out []AuditSize
	for _, r := range rows {
		agent := r.Agent()
		at := slices.IndexFunc(out, func(s AuditSize) bool { return s.Tenant == r.Tenant && s.Agent == agent })
		if at < 0 {
			at, out = len(out), append(out, AuditSize{Tenant: r.Tenant, Agent: agent})
		}
		out[at].Bytes += r.Bytes()
	}
	slices.SortFunc(out, func(a, b AuditSize) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Agent, b.Agent))
	})
	return out
}
