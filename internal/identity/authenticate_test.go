package identity

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/clawjail/clawjail/internal/audit/audittest"
	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/testenv"
)

func keyOf(text string) Key { return Key{secret.NewText(text)} }

func TestPrincipals(t *testing.T) {
	w := newFixture(t)
	if got := w.mustBe(keyOf(w.adminKey)); got != admin {
		t.Errorf("admin: %+v", got)
	}
	key, o, err := w.CreateOperator(t.Context(), admin, NewOperator{Name: "ann", Tenant: "acme", Role: RoleViewer, Life: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	want := Principal{Kind: KindOperator, ID: o.ID, Name: "ann", Tenant: "acme", Role: RoleViewer, TokenID: o.ID, ExpiresAt: noon.Add(time.Hour)}
	if diff := cmp.Diff(want, w.mustBe(key)); diff != "" {
		t.Errorf("operator (-want +got):\n%s", diff)
	}
	key, a, err := w.CreateAgent(t.Context(), admin, "acme", "bot", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	got := w.mustBe(key)
	want = Principal{Kind: KindAgent, ID: a.ID, Name: "bot", Tenant: "acme", TokenID: got.TokenID, ExpiresAt: noon.Add(time.Minute)}
	if diff := cmp.Diff(want, got); diff != "" || got.TokenID == "" {
		t.Errorf("agent (-want +got):\n%s", diff)
	}
	for want, p := range map[string]Principal{"admin": admin, "operator:" + o.ID: {Kind: KindOperator, ID: o.ID}, "agent:" + a.ID: got} {
		if p.Actor() != want {
			t.Errorf("got %s, want %s", p.Actor(), want)
		}
	}
}

func TestKeysThatAreNotGood(t *testing.T) {
	t.Run("malformed", func(t *testing.T) {
		w := newFixture(t)
		for _, text := range []string{"~", "cjop_short", w.adminKey + "x", "Bearer " + w.adminKey} {
			w.refusedFor(keyOf(text), "malformed")
		}
	})
	t.Run("unknown", func(t *testing.T) {
		w := newFixture(t)
		for _, prefix := range []string{PrefixAdmin, PrefixOperator, PrefixAgent} {
			w.refusedFor(newKey(prefix), "unknown")
		}
	})
	t.Run("no admin key", func(t *testing.T) {
		w := newFixture(t, func(o *Options) { o.Admin = AdminKey{} })
		w.refusedFor(keyOf(w.adminKey), "unknown")
	})
	t.Run("expired operator", func(t *testing.T) {
		w := newFixture(t)
		key, _, err := w.CreateOperator(t.Context(), admin, NewOperator{Name: "a", Tenant: "acme", Role: RoleViewer, Life: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		w.clock.Forward(time.Hour - time.Microsecond)
		w.mustBe(key)
		w.clock.Forward(time.Microsecond)
		w.refusedFor(key, "expired")
	})
	t.Run("revoked operator", func(t *testing.T) {
		w := newFixture(t)
		key, o, _ := w.operator("acme", RoleAdmin)
		if err := w.RevokeOperator(t.Context(), admin, o.ID); err != nil {
			t.Fatal(err)
		}
		w.refusedFor(key, "revoked")
	})
	t.Run("operator whose clock of revocation is ahead", func(t *testing.T) {
		w := newFixture(t)
		key, o, _ := w.operator("acme", RoleAdmin)
		if err := w.o.Store.RevokeOperator(t.Context(), o.ID, noon.Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		w.refusedFor(key, "revoked")
	})
	t.Run("expired token", func(t *testing.T) {
		w := newFixture(t)
		key, _, err := w.CreateAgent(t.Context(), admin, "acme", "bot", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		w.clock.Forward(time.Hour)
		w.refusedFor(key, "expired")
	})
	t.Run("revoked token", func(t *testing.T) {
		w := newFixture(t)
		key, _, p := w.agent("acme", "bot")
		if err := w.RevokeToken(t.Context(), admin, "acme", "bot", p.TokenID); err != nil {
			t.Fatal(err)
		}
		w.refusedFor(key, "revoked")
	})
	t.Run("revoked agent", func(t *testing.T) {
		w := newFixture(t)
		key, _, _ := w.agent("acme", "bot")
		if err := w.RevokeAgent(t.Context(), admin, "acme", "bot"); err != nil {
			t.Fatal(err)
		}
		w.refusedFor(key, "revoked")
		if err := w.RestoreAgent(t.Context(), admin, "acme", "bot"); err != nil {
			t.Fatal(err)
		}
		w.mustBe(key)
	})
	t.Run("deleted agent", func(t *testing.T) {
		w := newFixture(t)
		key, _, _ := w.agent("acme", "bot")
		if err := w.DeleteAgent(t.Context(), admin, "acme", "bot"); err != nil {
			t.Fatal(err)
		}
		w.refusedFor(key, "unknown")
	})
}

func TestNoKeyIsNotAGuess(t *testing.T) {
	w := newFixture(t)
	before := len(w.log.All())
	for range 100 {
		if _, err := w.Authenticate(t.Context(), "", here); problem.CodeOf(err) != problem.Unauthorized {
			t.Fatalf("got %v", err)
		}
	}
	if after := len(w.log.All()); after != before {
		t.Errorf("%d events for requests without a key", after-before)
	}
	w.mustBe(keyOf(w.adminKey))
}

// odd is a database that answers look-ups with rows that were not asked for.
type odd struct {
	Store
	operator store.Operator
	token    store.Token
	agent    store.Agent
	err      error
}

func (o *odd) OperatorByKey(context.Context, []byte) (store.Operator, error) {
	return o.operator, o.err
}
func (o *odd) TokenByHash(context.Context, []byte) (store.Token, store.Agent, error) {
	return o.token, o.agent, o.err
}

func TestWhatTheDatabaseFindsIsComparedAgain(t *testing.T) {
	op, ag := newKey(PrefixOperator), newKey(PrefixAgent)
	goodOperator := store.Operator{ID: "o", Tenant: "acme", Role: "viewer", KeyHash: op.Hash()}
	goodToken := store.Token{ID: "t", Agent: "a", Hash: ag.Hash(), UsedAt: noon}
	goodAgent := store.Agent{ID: "a", Tenant: "acme", Name: "bot"}
	for name, tt := range map[string]struct {
		change func(*odd)
		good   bool
	}{
		"right":               {func(*odd) {}, true},
		"other operator":      {func(o *odd) { o.operator.KeyHash = ag.Hash() }, false},
		"operator of nothing": {func(o *odd) { o.operator.KeyHash = nil }, false},
		"viewer of all":       {func(o *odd) { o.operator.Tenant = "" }, false},
		"other token":         {func(o *odd) { o.token.Hash = op.Hash() }, false},
		"other agent":         {func(o *odd) { o.agent.ID = "b" }, false},
		"agent of all":        {func(o *odd) { o.agent.Tenant = "" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			fake := &odd{operator: goodOperator, token: goodToken, agent: goodAgent}
			tt.change(fake)
			w := newFixture(t, func(o *Options) { fake.Store = o.Store; o.Store = fake })
			refused := 0
			for _, key := range []Key{op, ag} {
				if p, err := w.Authenticate(t.Context(), key.Reveal(), here); err != nil {
					refused++
				} else if p.Tenant != "acme" {
					t.Errorf("got %+v", p)
				}
			}
			if tt.good != (refused == 0) {
				t.Errorf("%d of 2 refused", refused)
			}
		})
	}
}

func TestStoreThatDoesNotAnswerLetsNobodyIn(t *testing.T) {
	fake := &odd{err: store.Unavailable(errPlanted)}
	w := newFixture(t, func(o *Options) { fake.Store = o.Store; o.Store = fake })
	for range 2 * w.o.RateLimit.Burst { // and it is no guess either
		for _, prefix := range []string{PrefixOperator, PrefixAgent} {
			p, err := w.Authenticate(t.Context(), newKey(prefix).Reveal(), here)
			if problem.CodeOf(err) != problem.DatabaseUnavailable || p != (Principal{}) {
				t.Fatalf("got %+v, %v", p, err)
			}
		}
	}
	w.mustBe(keyOf(w.adminKey)) // who can still look after things
}

func TestLastUseOfATokenIsKnownToAboutAMinute(t *testing.T) {
	w := newFixture(t)
	key, _, _ := w.agent("acme", "bot")
	used := func() time.Time {
		list, err := w.Tokens(t.Context(), admin, "acme", "bot")
		if err != nil || len(list) != 1 {
			t.Fatal(list, err)
		}
		return list[0].UsedAt
	}
	if got := used(); !got.Equal(noon) {
		t.Errorf("first: %v", got)
	}
	w.clock.Forward(59 * time.Second)
	w.mustBe(key)
	if got := used(); !got.Equal(noon) {
		t.Errorf("within the minute: %v", got)
	}
	w.clock.Forward(time.Second)
	w.mustBe(key)
	if got := used(); !got.Equal(noon.Add(time.Minute)) {
		t.Errorf("after it: %v", got)
	}
}

func TestGuessingIsBraked(t *testing.T) {
	w := newFixture(t)
	good := w.adminKey
	guess := func(from string) error {
		_, err := w.Authenticate(t.Context(), newKey(PrefixOperator).Reveal(), netip.MustParseAddr(from))
		return err
	}
	for n := range w.o.RateLimit.Burst {
		if code := problem.CodeOf(guess("192.0.2.1")); code != problem.Unauthorized {
			t.Fatalf("guess %d: %s", n, code)
		}
	}
	err := guess("192.0.2.1")
	if wait, ok := RetryAfter(err); problem.CodeOf(err) != problem.RateLimited || !ok || wait != w.o.RateLimit.Every {
		t.Errorf("got %v, wait %v", err, wait)
	}
	if e := w.log.Last(t); !audittest.Has(e, map[string]string{"reason": "braked", "remote": here.String()}) {
		t.Errorf("recorded %+v", e)
	}
	// Before the key is compared: the right one is not looked at either, so the answer tells nothing about it.
	if _, err := w.Authenticate(t.Context(), good, here); problem.CodeOf(err) != problem.RateLimited {
		t.Errorf("the right key while braked: %v", err)
	}
	if _, err := w.Authenticate(t.Context(), good, netip.MustParseAddr("::ffff:192.0.2.1")); problem.CodeOf(err) != problem.RateLimited {
		t.Errorf("the same address written differently: %v", err)
	}
	before := len(w.log.All())
	for range 50 {
		if problem.CodeOf(guess("192.0.2.1")) != problem.RateLimited {
			t.Fatal("not braked")
		}
	}
	if after := len(w.log.All()); after != before {
		t.Errorf("a guesser who is braked writes %d events", after-before)
	}
	// Others are not concerned.
	if _, err := w.Authenticate(t.Context(), good, netip.MustParseAddr("192.0.2.2")); err != nil {
		t.Errorf("the neighbour: %v", err)
	}
	w.clock.Forward(w.o.RateLimit.Every - time.Millisecond)
	if _, err := w.Authenticate(t.Context(), good, here); problem.CodeOf(err) != problem.RateLimited {
		t.Errorf("too early: %v", err)
	}
	w.clock.Forward(time.Millisecond)
	if _, err := w.Authenticate(t.Context(), good, here); err != nil {
		t.Errorf("after the wait: %v", err)
	}
	// A good key in between gives no guesses back.
	if code := problem.CodeOf(guess("192.0.2.1")); code != problem.Unauthorized {
		t.Errorf("the guess that was regained: %s", code)
	}
	if code := problem.CodeOf(guess("192.0.2.1")); code != problem.RateLimited {
		t.Errorf("one more: %s", code)
	}
}

func TestWhatIsLookedUpElsewhereWaitsWithItsAddress(t *testing.T) {
	w := newFixture(t)
	asked := 0
	redeem := func(err error) error {
		_, err = w.Redeem(t.Context(), here, func() (Principal, error) { asked++; return Principal{ID: "holder"}, err })
		return err
	}
	for range 2 * w.o.RateLimit.Burst { // it is no guess
		if err := redeem(problem.New(problem.Unauthorized, "", "no")); problem.CodeOf(err) != problem.Unauthorized {
			t.Fatal(err)
		}
	}
	if err := redeem(nil); err != nil {
		t.Fatal(err)
	}
	for range w.o.RateLimit.Burst {
		if _, err := w.Authenticate(t.Context(), "cjop_wrong", here); problem.CodeOf(err) != problem.Unauthorized {
			t.Fatal(err)
		}
	}
	asked = 0
	if err := redeem(nil); problem.CodeOf(err) != problem.RateLimited || asked != 0 {
		t.Errorf("looked %d times: %v", asked, err)
	}
}

func TestIPv6IsBrakedByNetwork(t *testing.T) {
	b := newRateLimiter(RateLimit{Burst: 1, Every: time.Second, Addresses: 10}, nil, testenv.NewClock(noon).Now)
	b.wrong(caller{remote: netip.MustParseAddr("2001:db8:0:1::1")})
	for addr, want := range map[string]bool{
		"2001:db8:0:1::1": true, "2001:db8:0:1:ffff::2": true, "2001:db8:0:1::1%eth0": true, "2001:db8:0:2::1": false, "192.0.2.1": false,
	} {
		if wait, _ := b.blocked(caller{remote: netip.MustParseAddr(addr)}); (wait > 0) != want {
			t.Errorf("%s waits %v", addr, wait)
		}
	}
	if wait, _ := b.blocked(caller{remote: netip.Addr{}}); wait != 0 {
		t.Error("a socket is braked for an address")
	}
	b.wrong(caller{remote: netip.Addr{}})
	if wait, _ := b.blocked(caller{remote: netip.Addr{}}); wait == 0 {
		t.Error("a socket is not braked")
	}
}

func TestMemoryOfTheBrakeIsBounded(t *testing.T) {
	c := testenv.NewClock(noon)
	b := newRateLimiter(RateLimit{Burst: 1, Every: time.Hour, Addresses: 100}, nil, c.Now)
	addr := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}) }
	for n := range 1000 {
		b.wrong(caller{remote: addr(n)})
		if n%50 == 0 {
			if wait, _ := b.blocked(caller{remote: addr(0)}); wait == 0 {
				t.Fatalf("after %d others, who goes on guessing was forgotten", n)
			}
			b.wrong(caller{remote: addr(0)})
		}
	}
	if len(b.known) != 100 || b.recent.Len() != 100 {
		t.Errorf("knows %d addresses, and remembers the order of %d", len(b.known), b.recent.Len())
	}
	for n, want := range map[int]bool{0: true, 999: true, 950: true, 500: false} {
		if wait, _ := b.blocked(caller{remote: addr(n)}); (wait > 0) != want {
			t.Errorf("%d waits %v", n, wait)
		}
	}
}

// A place that has been quiet is news when it begins again; one that goes on is not.
func TestBrakedPlaceIsNewsOnce(t *testing.T) {
	c := testenv.NewClock(noon)
	b := newRateLimiter(RateLimit{Burst: 2, Every: time.Second, Addresses: 10}, nil, c.Now)
	news := func() (n int) {
		for range 5 {
			if wait, first := b.blocked(caller{remote: here}); wait == 0 {
				b.wrong(caller{remote: here})
			} else if first {
				n++
			}
		}
		return n
	}
	if n := news(); n != 1 {
		t.Errorf("first time: %d", n)
	}
	c.Forward(time.Second)
	if n := news(); n != 0 {
		t.Errorf("goes on: %d", n)
	}
	c.Forward(time.Hour)
	if n := news(); n != 1 {
		t.Errorf("begins again: %d", n)
	}
}

// guesses is what a process tells others, and what it is given.
type guesses struct {
	store.Guesses
	told  []store.Guess
	given []store.Guess
}

func (g *guesses) AddGuesses(_ context.Context, more []store.Guess, _ time.Duration) error {
	g.told = append(g.told, more...)
	return nil
}

func (g *guesses) ListGuesses(context.Context, int, time.Duration) ([]store.Guess, error) {
	return g.given, nil
}

func TestOtherProcessesAreToldOfWrongKeys(t *testing.T) {
	c, others := testenv.NewClock(noon), &guesses{}
	b := newRateLimiter(RateLimit{Burst: 10, Every: 3 * time.Second, Addresses: 100}, others, c.Now)
	addr := netip.MustParseAddr
	from := func(remote string) caller { return caller{remote: addr(remote)} }
	// An address of a jail, of a loopback interface or of a link is another one on another machine, and a socket has none.
	b.wrong(caller{remote: addr("10.1.2.3"), network: network{jail: "j1"}})
	for _, at := range []string{"127.0.0.2", "::1", "fe80::1%eth0", "169.254.0.1"} {
		b.wrong(from(at))
		b.wrong(caller{remote: addr(at), network: network{host: "other"}})
	}
	b.wrong(caller{proxy: addr("127.0.0.1")})
	b.exchange(t.Context())
	if len(others.told) != 0 {
		t.Errorf("told %v", others.told)
	}
	b.wrong(caller{remote: here, proxy: addr("198.51.100.1")})
	b.wrong(caller{remote: here, network: network{host: "other"}})
	b.wrong(from("2001:db8::1"))
	b.exchange(t.Context())
	b.exchange(t.Context()) // once each
	slices.SortFunc(others.told, func(a, b store.Guess) int { return strings.Compare(a.Place, b.Place) })
	if want := []store.Guess{{Place: here.String() + "/32", Left: 6 * time.Second}, {Place: "2001:db8::/64", Left: 3 * time.Second}}; !slices.Equal(others.told, want) {
		t.Errorf("told %v, want %v", others.told, want)
	}

	others.given = []store.Guess{{Place: "192.0.2.77/32", Left: 30 * time.Second}, {Place: "10.1.2.4/32", Left: 30 * time.Second},
		{Place: here.String() + "/32", Left: time.Second}, {Place: "127.0.0.9/32", Left: time.Minute}, {Place: "nowhere", Left: time.Minute}}
	b.exchange(t.Context())
	for what, is := range map[string]struct {
		caller
		want time.Duration
	}{
		"who guessed elsewhere": {from("192.0.2.77"), 3 * time.Second}, "the same, handed on by another host": {caller{remote: addr("192.0.2.77"), network: network{host: "other"}}, 3 * time.Second},
		"who guessed here too, more than there": {caller{remote: here}, 0}, "a place of this machine": {from("127.0.0.9"), 0},
		"a jail whose address others have": {caller{remote: addr("10.1.2.4"), network: network{jail: "j1"}}, 0}, "others who have the address of a jail": {from("10.1.2.4"), 3 * time.Second},
	} {
		if wait, _ := b.blocked(is.caller); wait != is.want {
			t.Errorf("%s: %s, want %s", what, wait, is.want)
		}
	}
	left := func(at string) time.Duration { return b.left(b.known[from(at).client()].Value.(*guesser)) }
	if left := left(here.String()); left != 6*time.Second {
		t.Errorf("what was counted here is %s", left)
	}
	c.Forward(3 * time.Second)
	if wait, _ := b.blocked(from("192.0.2.77")); wait != 0 {
		t.Errorf("after its wait: %s", wait)
	}
	c.Forward(-24 * time.Hour) // nobody waits until the clock is back
	if left := left("192.0.2.77"); left > b.maxOfAll() {
		t.Errorf("when the clock has gone back it waits %s", left)
	}

	// What others were given makes nobody be forgotten who is remembered here, and takes the place of who is not.
	others.given = nil
	for n := range 1000 {
		others.given = append(others.given, store.Guess{Place: fmt.Sprintf("203.0.%d.%d/32", n/250, n%250), Left: time.Hour})
	}
	c.Forward(48 * time.Hour)
	for n := range 100 { // so that it is full of what can be forgotten
		b.wrong(from(fmt.Sprint("127.0.2.", n)))
	}
	b.right(caller{remote: here, proxy: addr("198.51.100.1")})
	c.Forward(time.Hour)
	for n := range 60 {
		b.wrong(from(fmt.Sprint("127.0.1.", n)))
	}
	b.exchange(t.Context())
	heard := 0
	for from := range b.known {
		if strings.HasPrefix(from.place.String(), "203.") {
			heard++
		}
	}
	if len(b.known) != 100 || b.recent.Len() != 100 || heard != 39 || b.known[caller{remote: here}.client()] == nil {
		t.Errorf("%d places are known, %d of them to others", len(b.known), heard)
	}
	// What one process has counted is twice what may come at once, however much that was.
	for range 100 {
		b.wrong(from("192.0.2.200"))
	}
	others.told = nil
	b.exchange(t.Context())
	if want := (store.Guess{Place: "192.0.2.200/32", Left: time.Minute}); left("192.0.2.200") != time.Minute || !slices.Contains(others.told, want) {
		t.Errorf("%s are left, and told %v", left("192.0.2.200"), others.told)
	}
	for n := range 60 {
		if left(fmt.Sprint("127.0.1.", n)) == 0 {
			t.Errorf("place %d is forgotten", n)
		}
	}
}

// A caller in a jail has its address here only, and nobody before it says another one.
func TestTheAddressOfAJailIsItsOwn(t *testing.T) {
	w := newFixture(t)
	ctx := Inside(t.Context(), "j1")
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
	r.RemoteAddr = "10.0.0.5:1"
	r.Header.Set("X-Forwarded-For", "192.0.2.9")
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	if at := ClientAddr(r, trusted); at.String() != "10.0.0.5" {
		t.Errorf("it is %s", at)
	}
	if at := ClientAddr(r.WithContext(t.Context()), trusted); at.String() != "192.0.2.9" {
		t.Errorf("outside it is %s", at)
	}
	jail := netip.MustParseAddr("10.0.0.5")
	for range w.o.RateLimit.Burst {
		w.Wrong(ctx, jail)
	}
	if err := w.RateLimited(ctx, jail); problem.CodeOf(err) != problem.RateLimited {
		t.Errorf("the jail: %v", err)
	}
	if err := w.RateLimited(t.Context(), jail); err != nil {
		t.Errorf("who has its address outside: %v", err)
	}
	if err := w.RateLimited(Inside(t.Context(), "j2"), jail); err != nil {
		t.Errorf("the next jail with its address: %v", err)
	}
	local := netip.MustParseAddr("127.0.0.1")
	for range w.o.RateLimit.Burst {
		w.Wrong(Forwarded(t.Context(), "a"), local)
	}
	for host, want := range map[string]string{"a": problem.RateLimited, "b": problem.Internal} {
		if err := w.RateLimited(Forwarded(t.Context(), host), local); err != nil != (want == problem.RateLimited) {
			t.Errorf("who is at host %s: %v", host, err)
		}
	}
}

func BenchmarkAuthenticateAgent(b *testing.B) {
	w := newFixture(b)
	key, _, _ := w.agent("acme", "bot")
	text := key.Reveal()
	for b.Loop() {
		if _, err := w.Authenticate(b.Context(), text, here); err != nil {
			b.Fatal(err)
		}
	}
}
