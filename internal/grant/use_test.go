package grant

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"aidanwoods.dev/go-paseto"
	"github.com/google/go-cmp/cmp"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

func TestGrantIsGoodOnce(t *testing.T) {
	w := newFixture(t)
	token, issued := w.issue()
	if _, err := w.Verify(t.Context(), token, want()); err != nil {
		t.Fatalf("Verify before: %v", err)
	}
	w.clock.Forward(time.Second)
	used, err := w.Use(t.Context(), token, want())
	if err != nil {
		t.Fatal(err)
	}
	issued.UsedAt, issued.UsedBy = w.clock.Now(), "s_1"
	if diff := cmp.Diff(issued, used); diff != "" {
		t.Errorf("row (-want +got):\n%s", diff)
	}
	w.refusal(token, want(), problem.GrantUsed)

	again := want()
	again.Session = "s_2"
	w.refusal(token, again, problem.GrantUsed)
	row, err := w.store.Grant(t.Context(), issued.ID)
	if err != nil || row.UsedBy != "s_1" {
		t.Errorf("used by %q, %v", row.UsedBy, err)
	}
}

func TestMissingGrant(t *testing.T) {
	w := newFixture(t)
	w.refusal(Token{}, want(), problem.GrantMissing)
	w.refusal(ParseToken(""), want(), problem.GrantMissing)
}

func TestRevokedGrant(t *testing.T) {
	w := newFixture(t)
	token, g := w.issue()
	if _, err := w.Revoke(t.Context(), store.DefaultTenant, g.ID, "operator:o2"); err != nil {
		t.Fatal(err)
	}
	w.refusal(token, want(), problem.GrantRevoked)
}

func TestLifeOfAGrantIsExact(t *testing.T) {
	for _, tt := range []struct {
		name string
		move time.Duration
		code string
	}{
		{"a microsecond before", -time.Microsecond, problem.GrantExpired},
		{"at its beginning", 0, ""},
		{"a microsecond before its end", time.Minute - time.Microsecond, ""},
		{"at its end", time.Minute, problem.GrantExpired},
		{"long after", 48 * time.Hour, problem.GrantExpired},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newFixture(t)
			token, _ := w.issue()
			w.clock.Forward(tt.move)
			if tt.code == "" {
				w.works(token, want())
				return
			}
			w.refusal(token, want(), tt.code)
		})
	}
}

func TestGrantOfAnotherTenant(t *testing.T) {
	w := newFixture(t)
	token, g := w.issue()
	other := want()
	other.Tenant = "other"
	w.refusal(token, other, problem.GrantWrongTenant)
	other.Tenant = ""
	w.refusal(token, other, problem.GrantWrongTenant)
	w.works(token, want())

	// Another tenant is not told that it was used either.
	w.refusal(token, want(), problem.GrantUsed)
	w.refusal(token, other, problem.GrantWrongTenant)
	if _, err := w.Revoke(t.Context(), "", g.ID, "admin"); err != nil {
		t.Fatal(err)
	}
	w.refusal(token, other, problem.GrantWrongTenant)
}

func TestGrantWithAnOriginIsForItAlone(t *testing.T) {
	w := newFixture(t)
	token, _ := w.issue(func(r *Request) { r.Origin = "s_origin" })
	wrong := want()
	w.refusal(token, wrong, problem.GrantWrongOrigin)
	wrong.Caller = "s_other"
	w.refusal(token, wrong, problem.GrantWrongOrigin)
	right := want()
	right.Caller = "s_origin"
	w.works(token, right)

	free, _ := w.issue()
	wrong.Caller = "s_anybody"
	w.works(free, wrong)
}

func TestScope(t *testing.T) {
	tests := []struct {
		name    string
		grant   Access
		domains []string
		access  Access
		code    string
	}{
		{"what it is for", AccessTools, []string{"example.com"}, AccessTools, ""},
		{"all that it is for", AccessCDP, []string{"example.org", "example.com"}, AccessCDP, ""},
		{"written differently", AccessTools, []string{"EXAMPLE.com."}, AccessTools, ""},
		{"less access", AccessCDP, []string{"example.com"}, AccessTools, ""},
		{"more access", AccessTools, []string{"example.com"}, AccessCDP, problem.GrantScope},
		{"no access", AccessCDP, []string{"example.com"}, "", problem.GrantScope},
		{"unknown access", AccessCDP, []string{"example.com"}, "root", problem.GrantScope},
		{"no domain", AccessTools, nil, AccessTools, problem.GrantScope},
		{"another domain", AccessTools, []string{"example.net"}, AccessTools, problem.GrantScope},
		{"one of two", AccessTools, []string{"example.com", "example.net"}, AccessTools, problem.GrantScope},
		{"a host of it", AccessTools, []string{"www.example.com"}, AccessTools, problem.GrantScope},
		{"a domain that ends alike", AccessTools, []string{"notexample.com"}, AccessTools, problem.GrantScope},
		{"a suffix", AccessTools, []string{"com"}, AccessTools, problem.GrantScope},
		{"a wildcard", AccessTools, []string{"*"}, AccessTools, problem.GrantScope},
		{"an egress domain", AccessTools, []string{"cdn.net"}, AccessTools, problem.GrantScope},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newFixture(t)
			token, _ := w.issue(func(r *Request) {
				r.Access, r.Domains, r.EgressDomains = tt.grant, []string{"example.com", "example.org"}, []string{"cdn.net"}
			})
			wanted := want()
			wanted.Domains, wanted.Access = tt.domains, tt.access
			if tt.code == "" {
				w.works(token, wanted)
				return
			}
			w.refusal(token, wanted, tt.code)
			w.works(token, want()) // a refusal does not use it up
		})
	}
}

// The checks come in the documented order: each state is worse than the one before in exactly one way.
func TestFirstReasonDecides(t *testing.T) {
	w := newFixture(t)
	token, g := w.issue(func(r *Request) { r.Origin = "s_origin" })
	wrong := Want{Tenant: store.DefaultTenant, Session: "s_1", Caller: "s_origin", Domains: []string{"example.net"}, Access: AccessTools}
	w.refusal(token, wrong, problem.GrantScope)
	wrong.Caller = ""
	w.refusal(token, wrong, problem.GrantWrongOrigin)
	w.clock.Forward(time.Hour)
	w.refusal(token, wrong, problem.GrantExpired)
	w.clock.Forward(-time.Hour)
	if _, used, err := w.store.UseGrant(t.Context(), g.ID, g.Tenant, "s_0", w.clock.Now()); err != nil || !used {
		t.Fatal(used, err)
	}
	w.clock.Forward(time.Hour)
	w.refusal(token, wrong, problem.GrantUsed)
	if _, err := w.Revoke(t.Context(), "", g.ID, "admin"); err != nil {
		t.Fatal(err)
	}
	w.refusal(token, wrong, problem.GrantRevoked)
	wrong.Tenant = "other"
	w.refusal(token, wrong, problem.GrantWrongTenant)
	w.refusal(ParseToken(token.Reveal()[1:]), wrong, problem.GrantInvalid)
	w.refusal(Token{}, wrong, problem.GrantMissing)
}

// sign makes a token with any claims and footer, as somebody with the key could.
func (w *fixture) sign(c claims) Token {
	w.t.Helper()
	token, err := w.keys.write(c)
	if err != nil {
		w.t.Fatal(err)
	}
	return token
}

func TestSignatureWithoutARowIsWorthNothing(t *testing.T) {
	w := newFixture(t)
	_, g := w.issue()
	w.works(w.sign(claimsOf("ab12", g)), want()) // with its row the same signature is good
	g.ID = "g_neverissued"
	w.refusal(w.sign(claimsOf("ab12", g)), want(), problem.GrantInvalid)
}

func TestRowWithoutASignatureIsWorthNothing(t *testing.T) {
	w := newFixture(t)
	token, g := w.issue()
	forged := g
	forged.ID = "g_forged"
	if err := w.store.CreateGrant(t.Context(), forged); err != nil {
		t.Fatal(err)
	}
	foreign, err := OpenKeyring(t.TempDir()+"/keys", w.clock.Now)
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := foreign.write(claimsOf("ab12", forged))
	if err != nil {
		t.Fatal(err)
	}
	w.refusal(stranger, want(), problem.GrantInvalid)
	// The stranger's signature under our key's name.
	secret, _, err := foreign.signer()
	if err != nil {
		t.Fatal(err)
	}
	_, kid, err := w.keys.signer()
	if err != nil {
		t.Fatal(err)
	}
	unsigned := paseto.NewToken()
	unsigned.SetJti(forged.ID)
	unsigned.SetFooter([]byte(`{"kid":"` + kid + `"}`))
	w.refusal(ParseToken(unsigned.V4Sign(secret, nil)), want(), problem.GrantInvalid)
	w.refusal(ParseToken(forged.ID), want(), problem.GrantInvalid)
	w.works(token, want())
}

// A changed row, or a token that says something else than its row, permits nothing.
func TestRowAndTokenMustSayTheSame(t *testing.T) {
	for name, change := range map[string]func(*claims){
		"iss":            func(c *claims) { c.Issuer = "clawjail:zz99" },
		"aud":            func(c *claims) { c.Audience = "clawjail:console" },
		"sub":            func(c *claims) { c.Subject = "tenant:other" },
		"iat":            func(c *claims) { c.IssuedAt = moment(noon.Add(-time.Hour)) },
		"nbf":            func(c *claims) { c.NotBefore = moment(noon.Add(-time.Hour)) },
		"exp":            func(c *claims) { c.ExpiresAt = moment(noon.Add(time.Hour)) },
		"tenant":         func(c *claims) { c.Tenant = "other" },
		"domains":        func(c *claims) { c.Domains = []string{"example.com", "example.net"} },
		"egress_domains": func(c *claims) { c.EgressDomains = []string{"example.net"} },
		"access":         func(c *claims) { c.Access = "cdp" },
		"origin":         func(c *claims) { c.Origin = "s_1" },
		"operator":       func(c *claims) { c.Operator = "operator:o9" },
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			token, g := w.issue()
			c := claimsOf("ab12", g)
			change(&c)
			w.refusal(w.sign(c), want(), problem.GrantInvalid)
			w.works(token, want())
		})
	}
}

func TestGrantOfAnotherInstallationIsNotOurs(t *testing.T) {
	w := newFixture(t)
	token, _ := w.issue()
	o := w.options()
	o.Installation = "zz99"
	other, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	w.works(token, want()) // in its own
	if _, err := other.Verify(t.Context(), token, want()); problem.CodeOf(err) != problem.GrantInvalid {
		t.Errorf("got %v", err)
	}
}

func TestTextThatIsNoToken(t *testing.T) {
	w := newFixture(t)
	token, _ := w.issue()
	good := token.Reveal()
	parts := strings.Split(good, ".")
	local := paseto.NewToken()
	for name, text := range map[string]string{
		"a password":          "hunter2.and.more",
		"another purpose":     local.V4Encrypt(paseto.NewV4SymmetricKey(), nil),
		"another version":     "v2.public." + parts[2] + "." + parts[3],
		"no footer":           strings.Join(parts[:3], "."),
		"an empty footer":     strings.Join(parts[:3], ".") + ".",
		"a footer of nothing": strings.Join(parts[:3], ".") + ".e30", // {}
		"cut off":             good[:len(good)/2],
		"one more part":       good + ".AAAA",
		"a space":             good + " ",
		"a changed byte":      good[:40] + string('A'+(good[40]+1-'A')%26) + good[41:],
		"a short payload":     "v4.public.AAAA." + parts[3],
		"very long":           good + strings.Repeat("A", longestToken),
		"a NUL":               "v4.public.\x00",
	} {
		t.Run(name, func(t *testing.T) { w.refusal(ParseToken(text), want(), problem.GrantInvalid) })
	}
	w.works(token, want())
}

// The log of the operator tells apart what the caller is told alike.
func TestReasonOfAnInvalidTokenIsForTheLog(t *testing.T) {
	w := newFixture(t)
	token, g := w.issue()
	foreign, err := OpenKeyring(t.TempDir()+"/keys", w.clock.Now)
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := foreign.write(claimsOf("ab12", g))
	if err != nil {
		t.Fatal(err)
	}
	long := claimsOf("ab12", g)
	for len(long.Domains) < longestToken/20 {
		long.Domains = append(long.Domains, "twenty-or-so.example.com")
	}
	parts := strings.Split(token.Reveal(), ".")
	var said []string
	for name, tt := range map[string]struct {
		token  Token
		reason error
	}{
		"form":      {ParseToken("x"), errForm},
		"too long":  {w.sign(long), errForm},
		"key":       {stranger, errKey},
		"signature": {ParseToken("v4.public." + strings.Repeat("A", 200) + "." + parts[3]), errSignature},
	} {
		_, err := w.Verify(t.Context(), tt.token, want())
		if !errors.Is(err, tt.reason) {
			t.Errorf("%s: got %v", name, err)
		}
		p, _ := problem.As(err)
		said = append(said, p.Message+p.Hint)
	}
	for _, text := range said {
		if text != said[0] {
			t.Errorf("callers are told different things: %q", said)
		}
	}
}

// A token for a row that has been purged is still answered in a way that helps.
func TestPurgedGrantIsExpired(t *testing.T) {
	w := newFixture(t)
	token, g := w.issue()
	w.clock.Forward(time.Minute + w.o.Limits.Keep)
	if n, err := w.Tidy(t.Context()); err != nil || n != 0 {
		t.Fatalf("purged %d too early, %v", n, err)
	}
	w.clock.Forward(time.Microsecond)
	young, _ := w.issue()
	if n, err := w.Tidy(t.Context()); err != nil || n != 1 {
		t.Fatalf("purged %d, %v", n, err)
	}
	if _, err := w.store.Grant(t.Context(), g.ID); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the row is there: %v", err)
	}
	w.refusal(token, want(), problem.GrantExpired)
	w.works(young, want())
}

// stale is a store whose answer to a look-up is older than what is in it, as another node sees it.
type stale struct {
	Store
	between func()
}

func (s *stale) UseGrant(ctx context.Context, id, tenant, session string, now time.Time) (store.Grant, bool, error) {
	s.between()
	return s.Store.UseGrant(ctx, id, tenant, session, now)
}

func TestWhatHappensBetweenLookingAndTakingDecides(t *testing.T) {
	for name, tt := range map[string]struct {
		between func(w *fixture, g Grant) error
		code    string
	}{
		"used": {func(w *fixture, g Grant) error {
			_, _, err := w.store.UseGrant(context.Background(), g.ID, g.Tenant, "s_faster", w.clock.Now())
			return err
		}, problem.GrantUsed},
		"revoked": {func(w *fixture, g Grant) error {
			return w.store.RevokeGrant(context.Background(), g.ID, "admin", w.clock.Now())
		}, problem.GrantRevoked},
		"purged": {func(w *fixture, g Grant) error {
			_, err := w.store.DeleteGrantsBefore(context.Background(), w.clock.Now().Add(time.Hour))
			return err
		}, problem.GrantInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			token, g := w.issue()
			o := w.options()
			o.Store = &stale{w.store, func() {
				if err := tt.between(w, g); err != nil {
					t.Error(err)
				}
			}}
			i, err := New(o)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := i.Use(t.Context(), token, want()); problem.CodeOf(err) != tt.code {
				t.Errorf("got %v, want %s", err, tt.code)
			}
		})
	}
}

// expires is a grant's time running out between the two looks at the clock.
func TestGrantThatExpiresWhileItIsTaken(t *testing.T) {
	w := newFixture(t)
	token, _ := w.issue()
	times := []time.Time{noon, noon.Add(time.Minute)}
	o := w.options()
	o.Now = func() time.Time {
		at := times[0]
		if len(times) > 1 {
			times = times[1:]
		}
		return at
	}
	i, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := i.Use(t.Context(), token, want()); problem.CodeOf(err) != problem.GrantExpired {
		t.Errorf("got %v", err)
	}
}

// broken fails where a test says so.
type broken struct {
	Store
	look, take error
}

func (b broken) Grant(ctx context.Context, id string) (store.Grant, error) {
	if b.look != nil {
		return store.Grant{}, b.look
	}
	return b.Store.Grant(ctx, id)
}

func (b broken) UseGrant(ctx context.Context, id, tenant, session string, now time.Time) (store.Grant, bool, error) {
	return store.Grant{}, false, b.take
}

func TestStoreThatDoesNotAnswerIsNoPermission(t *testing.T) {
	down := store.Unavailable(errPlanted)
	for name, b := range map[string]broken{"look-up": {look: down}, "update": {take: down}} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			token, _ := w.issue()
			o := w.options()
			b.Store = w.store
			o.Store = b
			i, err := New(o)
			if err != nil {
				t.Fatal(err)
			}
			g, err := i.Use(t.Context(), token, want())
			if !errors.Is(err, store.ErrUnavailable) || g.ID != "" || strings.HasPrefix(problem.CodeOf(err), "grant_") {
				t.Errorf("got %+v, %v", g, err)
			}
			if e := w.log.Last(t); e.Result != "failed" {
				t.Errorf("recorded %+v", e)
			}
			w.works(token, want())
		})
	}
}

func TestUseNeedsASession(t *testing.T) {
	w := newFixture(t)
	token, _ := w.issue()
	nobody := want()
	nobody.Session = ""
	if _, err := w.Use(t.Context(), token, nobody); err == nil {
		t.Error("a grant was used by nobody")
	}
	w.works(token, want())
}

func TestScopesOfACookieSet(t *testing.T) {
	tests := []struct {
		scopes []string
		access Access
		allows bool
	}{
		{nil, AccessTools, false},
		{[]string{""}, AccessTools, false},
		{[]string{"tools"}, AccessTools, true},
		{[]string{"tools"}, AccessCDP, false},
		{[]string{"cdp"}, AccessCDP, true},
		{[]string{"cdp"}, AccessTools, true},
		{[]string{"all"}, AccessTools, false},
		{[]string{"tools", "cdp"}, AccessCDP, true},
		{[]string{"cdp"}, "", false},
	}
	for _, tt := range tests {
		err := InScopes(tt.scopes, Grant{Access: string(tt.access)})
		if (err == nil) != tt.allows || err != nil && problem.CodeOf(err) != problem.GrantScope {
			t.Errorf("%q for %q: %v", tt.scopes, tt.access, err)
		}
	}
}
