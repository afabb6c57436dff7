package grant

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/clawjail/clawjail/internal/store"
)

// forPermissions is what a signed permission is for; a grant's token is for something else, so neither passes for the other.
const forPermissions = "clawjail:permission"

// standing is what a signed permission says. The columns of its row must say the same: an attacker who can only write to the
// database makes no permission, changes none, and gives none to another agent.
type standing struct {
	Issuer        string    `json:"iss"`
	Audience      string    `json:"aud"`
	ID            string    `json:"jti"`
	Tenant        string    `json:"tenant"`
	Agent         string    `json:"agent"`
	Domain        string    `json:"domain"`
	CreatedAt     time.Time `json:"created_at"`
	ExpiresAt     time.Time `json:"expires_at"`
	Account       string    `json:"account"`
	AgentName     string    `json:"agent_name"`
	Access        Access    `json:"access"`
	EgressDomains []string  `json:"egress_domains,omitempty"`
	Ask           Ask       `json:"ask"`
	Hours         Hours     `json:"hours,omitempty"`
	Left          *int      `json:"left,omitempty"`
	Used          int       `json:"used,omitempty"`
	Answered      bool      `json:"answered,omitempty"`
	Declared      bool      `json:"declared,omitempty"`
	By            string    `json:"by"`
	LastUsedAt    time.Time `json:"last_used_at,omitzero"`
	ApprovedUntil time.Time `json:"approved_until,omitzero"`

	key string // the id of the one that signed it
}

// body is what the entry of a permission holds.
type body struct {
	Signed string `json:"signed"`
}

// write is the entry of a permission, signed.
func (i *Issuer) write(p Permission, now time.Time) (store.Entry, error) {
	text, err := i.o.Keys.sign(standing{Issuer: "clawjail:" + i.o.Installation, Audience: forPermissions, ID: p.ID, Tenant: p.Tenant, Agent: p.Agent,
		Domain: p.Domain, CreatedAt: p.CreatedAt, ExpiresAt: p.ExpiresAt, Account: p.account, AgentName: p.AgentName, Access: p.Access,
		EgressDomains: p.EgressDomains, Ask: p.Ask, Hours: p.Hours, Left: p.Left, Used: p.Used, Answered: p.answered, Declared: p.Declared, By: p.By,
		LastUsedAt: p.LastUsedAt, ApprovedUntil: p.ApprovedUntil})
	return store.Entry{ID: p.ID, Kind: KindPermission, Tenant: p.Tenant, Agent: p.Agent, Name: p.Domain, Body: text, Version: p.version,
		CreatedAt: p.CreatedAt, UpdatedAt: now, ExpiresAt: p.ExpiresAt}, err
}

// sign is the body of an entry.
func (k *Keyring) sign(s standing) ([]byte, error) {
	token, err := k.write(s)
	if err != nil {
		return nil, fmt.Errorf("sign a permission: %w", err)
	}
	return json.Marshal(body{Signed: token.Reveal()})
}

// SignAnew signs the permissions of a restored database with the keys fresh. It takes those that the keys old have signed
// and that are unchanged, which it counts as good, and leaves the others, which are void. A good one loses the approval
// of a single use, and the uses that were left: they may have been used after the backup. Nil for fresh
// only counts; without old none is good.
func SignAnew(ctx context.Context, entries store.Entries, old, fresh *Keyring) (good, void int, err error) {
	all, err := entries.ListEntries(ctx, KindPermission)
	if err != nil {
		return 0, 0, fmt.Errorf("list permissions: %w", err)
	}
	for _, e := range all {
		var s standing
		if old == nil {
			err = errUnread
		} else {
			s, err = old.standing(e)
		}
		switch {
		case errors.Is(err, errUnread):
			void++
			continue
		case err == nil && fresh != nil:
			s.ApprovedUntil = time.Time{}
			if s.Left != nil {
				s.Left = new(int)
			}
			if e.Body, err = fresh.sign(s); err == nil {
				err = entries.UpdateEntry(ctx, e)
			}
		}
		if err != nil {
			return good, void, fmt.Errorf("sign the permission %s anew: %w", e.ID, err)
		}
		good++
	}
	return good, void, nil
}

// errUnread is an entry that permits nothing, because of what is in it. Any other error of reading one is of the keys.
var errUnread = errors.New("it is not a permission that was signed here")

// standing verifies an entry: what is signed there, by one of the keys. One that is not signed by them, or that another version has
// written with more in it, permits nothing: what this one does not know may be what limits it.
func (k *Keyring) standing(e store.Entry) (s standing, err error) {
	var b body
	if err := strict(e.Body, &b); err != nil {
		return s, fmt.Errorf("the permission %s: %w", e.ID, errUnread)
	}
	switch s.key, err = k.open(ParseToken(b.Signed), &s); {
	case errors.Is(err, errForm), errors.Is(err, errKey), errors.Is(err, errSignature):
		return s, fmt.Errorf("the permission %s: %w: %w", e.ID, errUnread, err)
	case err != nil:
		return s, err
	}
	if s.Audience != forPermissions || s.ID != e.ID || s.Tenant != e.Tenant || s.Agent != e.Agent || s.Domain != e.Name ||
		!s.CreatedAt.Equal(e.CreatedAt) || !s.ExpiresAt.Equal(e.ExpiresAt) || s.Tenant == "" || s.Agent == "" {
		return s, fmt.Errorf("the permission %s is not what was signed: %w", e.ID, errUnread)
	}
	return s, nil
}

// readPermission verifies an entry of this installation.
func (i *Issuer) readPermission(e store.Entry) (Permission, error) {
	s, err := i.o.Keys.standing(e)
	if err == nil && s.Issuer != "clawjail:"+i.o.Installation {
		err = fmt.Errorf("the permission %s is of another installation: %w", e.ID, errUnread)
	}
	if err != nil {
		return Permission{}, err
	}
	return Permission{ID: s.ID, Tenant: s.Tenant, Domain: s.Domain, Agent: s.Agent, AgentName: s.AgentName, Access: s.Access, EgressDomains: s.EgressDomains,
		Ask: s.Ask, Hours: s.Hours, Left: s.Left, Used: s.Used, answered: s.Answered, Declared: s.Declared, By: s.By, CreatedAt: e.CreatedAt,
		LastUsedAt: s.LastUsedAt, ExpiresAt: e.ExpiresAt, ApprovedUntil: s.ApprovedUntil, account: s.Account, version: e.Version, key: s.key}, nil
}
