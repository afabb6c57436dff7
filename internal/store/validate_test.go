package store

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestValidate(t *testing.T) {
	now := time.Date(2031, 2, 3, 12, 0, 0, 0, time.UTC)
	late := time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
	hash := make([]byte, 32)
	type row = interface{ Validate() error }
	tenant := Tenant{ID: "a-1", CreatedAt: now}
	operator := Operator{ID: "o", Tenant: "acme", Role: "viewer", KeyHash: hash, CreatedAt: now}
	agent := Agent{ID: "a", Tenant: "acme", Name: "bea", CreatedAt: now}
	token := Token{ID: "t", Agent: "a", Hash: hash, CreatedAt: now}
	set := CookieSet{ID: "c", Tenant: "acme", Domain: "a.example", MaxLeases: 1, CreatedAt: now}
	lease := Lease{Tenant: "acme", Session: "s", Node: "n", At: now, ExpiresAt: now}
	secret := Secret{ID: "x", Tenant: "acme", Service: "mail", CreatedAt: now}
	grant := Grant{ID: "g", Tenant: "acme", IssuedAt: now, NotBefore: now, ExpiresAt: now}
	audit := AuditRow{Node: "n", Seq: 1, Time: now, ID: "i", Phase: "event", PrevHash: hash, Hash: hash}
	filter := AuditFilter{Limit: 1}
	entry := Entry{ID: "e", Kind: "rule", Body: []byte(`{}`), CreatedAt: now, UpdatedAt: now}
	usage := UsageKey{Tenant: "acme", Agent: "a", Day: "2031-02-28"}
	limit := UsageLimit{}
	signIn := SignIn{ID: "i", Hash: hash, Owner: Owner{Operator: "o"}, Method: "key", CreatedAt: now, UsedAt: now, ExpiresAt: now}
	passkey := Passkey{ID: "p", Owner: Owner{AdminKey: "k"}, Name: "n", Host: "h", Credential: []byte("c"), Handle: []byte("h"), Record: []byte("r"), CreatedAt: now}
	for _, good := range []row{tenant, operator, agent, token, set, lease, secret, grant, audit, filter, entry, usage, limit, signIn, passkey,
		UsageKey{Tenant: "acme", Agent: "a", Day: "2032-02-29", Provider: "p", Model: "m"}, Entry{ID: "e", Kind: "rule", Tenant: "acme", Agent: "a", Body: []byte(`0`), CreatedAt: now},
		Operator{ID: "o", Role: "admin", KeyHash: hash, CreatedAt: now}, AuditFilter{Limit: 1, Node: "n", AfterSeq: 5}} {
		if err := good.Validate(); err != nil {
			t.Errorf("%+v: %v", good, err)
		}
	}

	bad := map[string]row{}
	change(bad, "tenant in capitals", tenant, func(r *Tenant) { r.ID = "A" })
	change(bad, "tenant without a name", tenant, func(r *Tenant) { r.ID = "" })
	change(bad, "tenant with a long name", tenant, func(r *Tenant) { r.ID = strings.Repeat("a", 41) })
	change(bad, "tenant with a dot", tenant, func(r *Tenant) { r.ID = "a.b" })
	change(bad, "tenant of no time", tenant, func(r *Tenant) { r.CreatedAt = time.Time{} })
	change(bad, "tenant of a late time", tenant, func(r *Tenant) { r.CreatedAt = late })
	change(bad, "operator without an ID", operator, func(r *Operator) { r.ID = "" })
	change(bad, "operator of all tenants", operator, func(r *Operator) { r.Tenant = "" })
	change(bad, "operator with a bad name", operator, func(r *Operator) { r.Name = "\xff" })
	change(bad, "operator with a short hash", operator, func(r *Operator) { r.KeyHash = hash[:31] })
	change(bad, "operator with a late end", operator, func(r *Operator) { r.ExpiresAt = late })
	change(bad, "agent with a slash", agent, func(r *Agent) { r.Name = "a/b" })
	change(bad, "agent of no tenant", agent, func(r *Agent) { r.Tenant = "" })
	change(bad, "token of no agent", token, func(r *Token) { r.Agent = "" })
	change(bad, "token without a hash", token, func(r *Token) { r.Hash = nil })
	change(bad, "set without leases", set, func(r *CookieSet) { r.MaxLeases = 0 })
	change(bad, "set without a domain", set, func(r *CookieSet) { r.Domain = "" })
	change(bad, "set with a bad scope", set, func(r *CookieSet) { r.Scopes = []string{"ok", "a\x00"} })
	change(bad, "set with a bad domain of egress", set, func(r *CookieSet) { r.EgressDomains = []string{"a\x00"} })
	change(bad, "set that expires late", set, func(r *CookieSet) { r.ExpiresAt = late })
	change(bad, "lease of no session", lease, func(r *Lease) { r.Session = "" })
	change(bad, "lease of no node", lease, func(r *Lease) { r.Node = "" })
	change(bad, "lease of no time", lease, func(r *Lease) { r.At = time.Time{} })
	change(bad, "lease without an end", lease, func(r *Lease) { r.ExpiresAt = time.Time{} })
	change(bad, "secret of no service", secret, func(r *Secret) { r.Service = "" })
	change(bad, "grant without an end", grant, func(r *Grant) { r.ExpiresAt = time.Time{} })
	change(bad, "grant without a beginning", grant, func(r *Grant) { r.NotBefore = time.Time{} })
	change(bad, "grant with a bad domain", grant, func(r *Grant) { r.Domains = []string{"\xff"} })
	change(bad, "grant with bad egress", grant, func(r *Grant) { r.EgressDomains = []string{"\xff"} })
	change(bad, "audit row 0", audit, func(r *AuditRow) { r.Seq = 0 })
	change(bad, "audit row of no node", audit, func(r *AuditRow) { r.Node = "" })
	change(bad, "audit row without an ID", audit, func(r *AuditRow) { r.ID = "" })
	change(bad, "audit row without a phase", audit, func(r *AuditRow) { r.Phase = "" })
	change(bad, "audit row with a bad target", audit, func(r *AuditRow) { r.Target = "a\x00" })
	change(bad, "audit row without a hash", audit, func(r *AuditRow) { r.Hash = nil })
	change(bad, "audit row with a long hash", audit, func(r *AuditRow) { r.PrevHash = make([]byte, 33) })
	change(bad, "filter without a limit", filter, func(r *AuditFilter) { r.Limit = 0 })
	change(bad, "filter below zero", filter, func(r *AuditFilter) { r.Limit = -1 })
	change(bad, "filter with a seq and no node", filter, func(r *AuditFilter) { r.AfterSeq = 1 })
	change(bad, "entry without an ID", entry, func(r *Entry) { r.ID = "" })
	change(bad, "entry without a kind", entry, func(r *Entry) { r.Kind = "" })
	change(bad, "entry of a long kind", entry, func(r *Entry) { r.Kind = strings.Repeat("a", 21) })
	change(bad, "entry of a kind in capitals", entry, func(r *Entry) { r.Kind = "Rule" })
	change(bad, "entry of a tenant in capitals", entry, func(r *Entry) { r.Tenant = "A" })
	change(bad, "entry of an agent without a tenant", entry, func(r *Entry) { r.Agent = "a" })
	change(bad, "entry of a bad agent", entry, func(r *Entry) { r.Tenant, r.Agent = "acme", "\xff" })
	change(bad, "entry of a long name", entry, func(r *Entry) { r.Name = strings.Repeat("a", LongestName+1) })
	change(bad, "entry of a bad name", entry, func(r *Entry) { r.Name = "a\x00" })
	change(bad, "entry without a body", entry, func(r *Entry) { r.Body = nil })
	change(bad, "entry of a body that is no JSON", entry, func(r *Entry) { r.Body = []byte(`{"a":1,}`) })
	change(bad, "entry of a body that is no text", entry, func(r *Entry) { r.Body = []byte("\"\xff\"") })
	change(bad, "entry of a long body", entry, func(r *Entry) { r.Body = []byte(strings.Repeat(" ", LongestBody) + "0") })
	change(bad, "entry of no time", entry, func(r *Entry) { r.CreatedAt = time.Time{} })
	change(bad, "entry that changed late", entry, func(r *Entry) { r.UpdatedAt = late })
	change(bad, "entry that expires late", entry, func(r *Entry) { r.ExpiresAt = late })
	change(bad, "usage of no tenant", usage, func(r *UsageKey) { r.Tenant = "" })
	change(bad, "usage of no agent", usage, func(r *UsageKey) { r.Agent = "" })
	change(bad, "usage of a long agent", usage, func(r *UsageKey) { r.Agent = strings.Repeat("a", LongestName+1) })
	change(bad, "usage of a model without a provider", usage, func(r *UsageKey) { r.Model = "m" })
	change(bad, "usage of a long provider", usage, func(r *UsageKey) { r.Provider = strings.Repeat("a", LongestName+1) })
	change(bad, "usage of a bad model", usage, func(r *UsageKey) { r.Provider, r.Model = "p", "\xff" })
	for _, day := range []string{"", "2031-02-29", "2031-2-3", "0000-01-01", "12031-02-03", "2031-02-03 ", "+031-02-03", "2031-02-03T00:00:00Z"} {
		change(bad, "usage of the day "+day, usage, func(r *UsageKey) { r.Day = day })
	}
	change(bad, "limit of tokens below 0", limit, func(r *UsageLimit) { r.Tokens = -1 })
	change(bad, "limit of cost below 0", limit, func(r *UsageLimit) { r.MicroCost = -1 })
	change(bad, "sign-in without an ID", signIn, func(r *SignIn) { r.ID = "" })
	change(bad, "sign-in of nobody", signIn, func(r *SignIn) { r.Owner = Owner{} })
	change(bad, "sign-in of two", signIn, func(r *SignIn) { r.Owner.AdminKey = "k" })
	change(bad, "sign-in without a method", signIn, func(r *SignIn) { r.Method = "" })
	change(bad, "sign-in with a short hash", signIn, func(r *SignIn) { r.Hash = hash[:31] })
	change(bad, "sign-in with a bad browser", signIn, func(r *SignIn) { r.UserAgent = "\xff" })
	change(bad, "sign-in without an end", signIn, func(r *SignIn) { r.ExpiresAt = time.Time{} })
	change(bad, "sign-in that was never used", signIn, func(r *SignIn) { r.UsedAt = time.Time{} })
	change(bad, "passkey without an ID", passkey, func(r *Passkey) { r.ID = "" })
	change(bad, "passkey of nobody", passkey, func(r *Passkey) { r.Owner = Owner{} })
	change(bad, "passkey without a name", passkey, func(r *Passkey) { r.Name = "" })
	change(bad, "passkey with a bad name", passkey, func(r *Passkey) { r.Name = "a\x00" })
	change(bad, "passkey of no host", passkey, func(r *Passkey) { r.Host = "" })
	change(bad, "passkey without a credential", passkey, func(r *Passkey) { r.Credential = nil })
	change(bad, "passkey with a long credential", passkey, func(r *Passkey) { r.Credential = make([]byte, longestPasskey+1) })
	change(bad, "passkey without a handle", passkey, func(r *Passkey) { r.Handle = nil })
	change(bad, "passkey without a record", passkey, func(r *Passkey) { r.Record = nil })
	change(bad, "passkey of no time", passkey, func(r *Passkey) { r.CreatedAt = time.Time{} })
	for name, r := range bad {
		if err := r.Validate(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: got %v", name, err)
		}
	}

	audit.Seq, audit.ID, audit.Target = 0, "", "\xff"
	if err := audit.Validate(); len(strings.Split(err.Error(), "\n")) != 3 {
		t.Errorf("three flaws are reported as\n%v", err)
	}
}

func TestValidateUpdateLooksAtWhatIsReplaced(t *testing.T) {
	now := time.Date(2031, 2, 3, 12, 0, 0, 0, time.UTC)
	if err := (Entry{ID: "e", Kind: "NONE", Agent: "a", Body: []byte(`0`), UpdatedAt: now}).ValidateUpdate(); err != nil {
		t.Error(err)
	}
	for _, bad := range []Entry{
		{Body: []byte(`0`), UpdatedAt: now}, {ID: "e", UpdatedAt: now}, {ID: "e", Body: []byte(`0`)},
		{ID: "e", Body: []byte(`0`), UpdatedAt: now, Name: "\x00"}, {ID: "e", Body: []byte(`0`), UpdatedAt: now, ExpiresAt: now.AddDate(9000, 0, 0)},
	} {
		if err := bad.ValidateUpdate(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: got %v", bad, err)
		}
	}
}

func change[T interface{ Validate() error }](bad map[string]interface{ Validate() error }, name string, row T, f func(*T)) {
	f(&row)
	bad[name] = row
}

func TestMicrosecondRoundsDown(t *testing.T) {
	zone := time.FixedZone("", 3600)
	for given, want := range map[time.Time]time.Time{
		time.Date(2031, 1, 1, 1, 0, 0, 1_999, zone):                  time.Date(2031, 1, 1, 0, 0, 0, 1_000, time.UTC),
		time.Date(1950, 1, 1, 0, 0, 0, 999_999_999, time.UTC):        time.Date(1950, 1, 1, 0, 0, 0, 999_999_000, time.UTC),
		time.Date(2031, 1, 1, 0, 0, 0, 5_000, time.UTC).Add(1 << 40): time.Date(2031, 1, 1, 0, 0, 0, 5_000, time.UTC).Add(1 << 40 / 1000 * 1000),
	} {
		if got := Microsecond(given); got != want {
			t.Errorf("%v: got %v, want %v", given, got, want)
		}
	}
}
