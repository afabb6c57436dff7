package grant

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// agent makes one.
func (w *fixture) agent(tenant, id, name string) {
	w.t.Helper()
	if err := w.store.CreateAgent(context.Background(), store.Agent{ID: id, Tenant: tenant, Name: name, CreatedAt: noon}); err != nil {
		w.t.Fatal(err)
	}
}

// permitting is a request, and asking a want, that fit each other; a test changes one thing.
func permitting() PermissionRequest {
	return PermissionRequest{Tenant: store.DefaultTenant, Operator: "operator:o1", Agent: "a1", AgentName: "shopper", Domain: "example.com", Account: "c1"}
}

func asking() Want {
	w := want()
	w.Agent = "a1"
	return w
}

func (w *fixture) allow(change ...func(*PermissionRequest)) Permission {
	w.t.Helper()
	r := permitting()
	for _, c := range change {
		c(&r)
	}
	p, _, err := w.Allow(context.Background(), r)
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// open is what a session does: it looks, and then uses what it saw.
func (w *fixture) open(want Want) (Grant, error) {
	s, err := w.Permitted(context.Background(), want)
	if err != nil {
		return Grant{}, err
	}
	return w.UsePermissions(context.Background(), s, want)
}

func (w *fixture) opens(want Want) Grant {
	w.t.Helper()
	g, err := w.open(want)
	if err != nil {
		w.t.Fatal(err)
	}
	return g
}

func (w *fixture) notAllowed(what string, want Want, says string) {
	w.t.Helper()
	_, err := w.open(want)
	if problem.CodeOf(err) != problem.AccountNotAllowed || !strings.Contains(err.Error(), says) {
		w.t.Errorf("%s: got %v", what, err)
	}
	if p, ok := problem.As(err); ok && !strings.Contains(p.Hint, "request_access") {
		w.t.Errorf("%s: the hint is %q", what, p.Hint)
	}
}

func newAgents(t testing.TB) *fixture {
	w := newFixture(t)
	w.agent(store.DefaultTenant, "a1", "shopper")
	w.agent(store.DefaultTenant, "a2", "buyer")
	w.agent("other", "a3", "shopper")
	return w
}

func TestPermissionMakesAGrantThatIsUsedAlready(t *testing.T) {
	w := newAgents(t)
	p := w.allow(func(r *PermissionRequest) { r.Access, r.EgressDomains = AccessCDP, []string{"cdn.example.net"} })
	g := w.opens(asking())
	row, err := w.store.Grant(t.Context(), g.ID)
	if err != nil {
		t.Fatal(err)
	}
	// As narrow as what was asked for, and not as wide as the permission.
	if State(row, w.clock.Now()) != "used" || row.UsedBy != "s_1" || row.Access != "tools" || row.Operator != "operator:o1" ||
		!slices.Equal(row.Domains, []string{"example.com"}) || !slices.Equal(row.EgressDomains, []string{"cdn.example.net"}) ||
		row.ExpiresAt.Sub(row.IssuedAt) != DefaultLimits().DefaultTTL {
		t.Errorf("the grant is %+v", row)
	}
	if _, used, err := w.store.UseGrant(t.Context(), g.ID, g.Tenant, "s_2", w.clock.Now()); used || err != nil {
		t.Errorf("it was used again: %v", err)
	}
	w.clock.Forward(time.Hour)
	w.opens(asking())
	all, err := w.Permissions(t.Context(), store.DefaultTenant)
	if err != nil || len(all) != 1 || all[0].Used != 2 || !all[0].LastUsedAt.Equal(store.Microsecond(w.clock.Now())) || all[0].ID != p.ID || all[0].Left != nil {
		t.Errorf("%+v, %v", all, err)
	}
	if others, err := w.Permissions(t.Context(), "other"); err != nil || len(others) != 0 {
		t.Errorf("another tenant has %+v, %v", others, err)
	}
}

func TestPermissionIsForOneAgentOneAccountAndNoMore(t *testing.T) {
	w := newAgents(t)
	w.allow()
	for what, c := range map[string]struct {
		change func(*Want)
		says   string
	}{
		"another agent":          {func(w *Want) { w.Agent = "a2" }, "without a grant"},
		"another tenant":         {func(w *Want) { w.Tenant = "other" }, "without a grant"},
		"its namesake there":     {func(w *Want) { w.Tenant, w.Agent = "other", "a3" }, "without a grant"},
		"another domain":         {func(w *Want) { w.Domains = []string{"example.org"} }, "example.org"},
		"one domain more":        {func(w *Want) { w.Domains = []string{"example.com", "example.org"} }, "example.org"},
		"a wider access":         {func(w *Want) { w.Access = AccessCDP }, "for access tools"},
		"an access that is none": {func(w *Want) { w.Access = "all" }, "for access tools"},
	} {
		want := asking()
		c.change(&want)
		w.notAllowed(what, want, c.says)
	}
	nobody := asking()
	nobody.Agent = ""
	if _, err := w.open(nobody); problem.CodeOf(err) != problem.GrantMissing {
		t.Errorf("who is no agent: %v", err)
	}
	s, err := w.Permitted(t.Context(), asking())
	if err != nil || !s.For("example.com", "c1") || s.For("example.com", "c2") || s.For("example.org", "c1") {
		t.Errorf("%+v, %v", s, err)
	}
	if all, err := w.Permissions(t.Context(), ""); err != nil || all[0].Used != 0 {
		t.Errorf("refusals were counted: %+v, %v", all, err)
	}
	w.opens(asking())
}

func TestPermissionEndsByTimeNumberHoursAndHand(t *testing.T) {
	three := 3
	for name, c := range map[string]struct {
		change func(*PermissionRequest)
		good   int // uses at noon
		then   func(w *fixture, p Permission)
		says   string
	}{
		"time":   {func(r *PermissionRequest) { r.For = time.Hour }, 1, func(w *fixture, _ Permission) { w.clock.Forward(time.Hour) }, "ended at"},
		"number": {func(r *PermissionRequest) { r.Times = &three }, 3, func(*fixture, Permission) {}, "as often as"},
		"hours":  {func(r *PermissionRequest) { r.Hours = "08-18" }, 1, func(w *fixture, _ Permission) { w.clock.Forward(6 * time.Hour) }, "(UTC)"},
		"night":  {func(r *PermissionRequest) { r.Hours = "22-13" }, 1, func(w *fixture, _ Permission) { w.clock.Forward(time.Hour) }, "(UTC)"},
		"hand": {func(*PermissionRequest) {}, 1, func(w *fixture, p Permission) {
			if err := w.Disallow(context.Background(), p.ID); err != nil {
				w.t.Error(err)
			}
		}, "without a grant"},
		"a removed account": {func(*PermissionRequest) {}, 1, func(w *fixture, p Permission) {
			made, over, err := w.Allow(context.Background(), func() PermissionRequest { r := permitting(); r.Account, r.Hours = "c2", "00-01"; return r }())
			if err != nil || over != p.ID || made.ID == p.ID || made.Used != 0 {
				w.t.Errorf("%+v in the place of %q, %v", made, over, err)
			}
		}, "(UTC)"},
		"replaced by a narrower one": {func(*PermissionRequest) {}, 1, func(w *fixture, p Permission) {
			if now := w.allow(func(r *PermissionRequest) { r.Hours = "00-01" }); now.ID != p.ID || now.Used != 1 || !now.CreatedAt.Equal(p.CreatedAt) {
				w.t.Errorf("%+v became %+v", p, now)
			}
		}, "(UTC)"},
		"its agent": {func(*PermissionRequest) {}, 1, func(w *fixture, _ Permission) {
			if err := w.store.DeleteAgent(context.Background(), "a1"); err != nil {
				w.t.Error(err)
			}
			w.agent(store.DefaultTenant, "a9", "shopper") // of the same name
		}, "without a grant"},
		"an entry that cannot be read": {func(*PermissionRequest) {}, 1, func(w *fixture, p Permission) {
			e, err := w.store.Entry(context.Background(), p.ID)
			e.Body = []byte(strings.Replace(string(e.Body), "{", `{"only_on":"sunday",`, 1))
			if err == nil {
				err = w.store.UpdateEntry(context.Background(), e)
			}
			if err != nil {
				w.t.Error(err)
			}
		}, "without a grant"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newAgents(t)
			p := w.allow(c.change)
			for range c.good {
				w.opens(asking())
			}
			c.then(w, p)
			w.notAllowed(name, asking(), c.says)
			again := asking()
			again.Agent = "a9"
			w.notAllowed("whoever is called the same", again, "without a grant")
		})
	}
}

// A session that is open when the time of its permission ends goes on, so what is expired stands for as long as a session can last.
func TestPermissionWhoseTimeIsOverIsKeptForItsSessions(t *testing.T) {
	w := newAgents(t)
	p := w.allow(func(r *PermissionRequest) { r.For = time.Hour })
	w.allow(func(r *PermissionRequest) { r.Agent = "a2" }) // for good
	w.opens(asking())
	for _, c := range []struct {
		after  time.Duration
		stands bool
	}{{time.Hour, true}, {w.o.Limits.Keep, true}, {time.Microsecond, false}} {
		w.clock.Forward(c.after)
		if _, err := w.Tidy(t.Context()); err != nil {
			t.Fatal(err)
		}
		if stands, err := w.PermissionStands(t.Context(), p.ID, AccessTools); err != nil || stands != c.stands {
			t.Errorf("at %s it stands: %v, %v", w.clock.Now(), stands, err)
		}
		if c.stands {
			w.notAllowed("when its time is over", asking(), "ended at")
		}
	}
	if all, err := w.Permissions(t.Context(), ""); err != nil || len(all) != 1 || all[0].Agent != "a2" {
		t.Errorf("%+v, %v", all, err)
	}
	if p = w.allow(func(r *PermissionRequest) { r.For = time.Hour }); p.Used != 0 {
		t.Errorf("%+v", p)
	}
}

// crowded is a store with as many entries more as a tenant may have permissions.
type crowded struct{ store.Store }

func (c crowded) ListEntries(ctx context.Context, kind string) ([]store.Entry, error) {
	all, err := c.Store.ListEntries(ctx, kind)
	for n := range maxPermissions {
		all = append(all, store.Entry{Kind: kind, Tenant: store.DefaultTenant, Agent: "a1", Name: fmt.Sprintf("d%d.com", n), ExpiresAt: noon.Add(time.Hour)})
	}
	return all, err
}

// What is over does not count among those that a tenant may have.
func TestPermissionsThatAreOverLeaveRoomForOthers(t *testing.T) {
	w := newAgents(t)
	o := w.options()
	o.Store = crowded{w.store}
	var err error
	if w.Issuer, err = New(o); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.Allow(t.Context(), permitting()); problem.CodeOf(err) != problem.BadLimit {
		t.Errorf("one more: %v", err)
	}
	w.clock.Forward(time.Hour)
	w.allow()
}

// An earlier look decides nothing: the row does.
func TestPermissionIsTakenBackWhileASessionOpens(t *testing.T) {
	w := newAgents(t)
	p := w.allow()
	s, err := w.Permitted(t.Context(), asking())
	if err != nil {
		t.Fatal(err)
	}
	if stands, err := w.PermissionStands(t.Context(), p.ID, AccessTools); err != nil || !stands {
		t.Errorf("%v, %v", stands, err)
	}
	if err := w.Disallow(t.Context(), p.ID); err != nil {
		t.Fatal(err)
	}
	again := w.allow() // another one, which this session has not seen
	if _, err := w.UsePermissions(t.Context(), s, asking()); problem.CodeOf(err) != problem.AccountNotAllowed {
		t.Errorf("got %v", err)
	}
	if grants, err := w.List(t.Context(), ""); err != nil || len(grants) != 0 {
		t.Errorf("%+v, %v", grants, err)
	}
	if stands, err := w.PermissionStands(t.Context(), p.ID, AccessTools); err != nil || stands {
		t.Errorf("%v, %v", stands, err)
	}
	if err := w.Disallow(t.Context(), p.ID); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("taken back twice: %v", err)
	}
	// One that is narrowed between the two looks is as narrow as it is now.
	if s, err = w.Permitted(t.Context(), asking()); err != nil {
		t.Fatal(err)
	}
	if now := w.allow(func(r *PermissionRequest) { r.Hours = "00-01" }); now.ID != again.ID {
		t.Errorf("%+v became %+v", again, now)
	}
	if _, err := w.UsePermissions(t.Context(), s, asking()); problem.CodeOf(err) != problem.AccountNotAllowed {
		t.Errorf("got %v", err)
	}
	w.allow()
	w.opens(asking())
}

func TestPermissionForOneSessionOpensOneOfMany(t *testing.T) {
	const racers = 64
	w := newAgents(t)
	one := 1
	w.allow(func(r *PermissionRequest) { r.Times = &one })
	s, err := w.Permitted(t.Context(), asking())
	if err != nil {
		t.Fatal(err)
	}
	var racing sync.WaitGroup
	codes := make([]string, racers)
	for n := range racers {
		racing.Go(func() {
			_, err := w.UsePermissions(context.Background(), s, asking())
			codes[n] = problem.CodeOf(err)
		})
	}
	racing.Wait()
	slices.Sort(codes)
	if codes[0] != "" || codes[1] != problem.AccountNotAllowed || codes[racers-1] != problem.AccountNotAllowed {
		t.Errorf("%q", codes)
	}
	if grants, err := w.List(t.Context(), ""); err != nil || len(grants) != 1 {
		t.Errorf("%d grants, %v", len(grants), err)
	}
}

func TestPermissionThatAsksNeedsAnAnswer(t *testing.T) {
	w := newAgents(t)
	for _, ask := range []Ask{AskFirst, AskAlways} {
		p := w.allow(func(r *PermissionRequest) { r.Ask = ask })
		s, err := w.Permitted(t.Context(), asking())
		if err != nil || !slices.Equal(s.Asks, []string{"example.com"}) {
			t.Fatalf("%s: %+v, %v", ask, s, err)
		}
		w.notAllowed("without an answer", asking(), "approved by a person")
		if err := w.Approve(t.Context(), p.ID); err != nil {
			t.Fatal(err)
		}
		w.clock.Forward(approvalLife) // too late
		w.notAllowed("with an old answer", asking(), "approved by a person")
		if err := w.Approve(t.Context(), p.ID); err != nil {
			t.Fatal(err)
		}
		w.opens(asking())
		if ask == AskFirst {
			w.opens(asking())
			continue
		}
		w.notAllowed("with an answer that was used", asking(), "approved by a person")
	}
	// An answer lets one use pass that the permission would not, and widens no access.
	one := 1
	p := w.allow(func(r *PermissionRequest) { r.Times, r.Hours = &one, "00-01" })
	w.notAllowed("outside of its hours", asking(), "(UTC)")
	if err := w.Approve(t.Context(), p.ID); err != nil {
		t.Fatal(err)
	}
	wide := asking()
	wide.Access = AccessCDP
	w.notAllowed("with a wider access", wide, "for access tools")
	w.opens(asking())
	w.notAllowed("once more", asking(), "as often as")
}

func TestPermissionRequestsAreChecked(t *testing.T) {
	w := newAgents(t)
	none := 0
	bad := permitting()
	bad.Domain, bad.Access, bad.Ask, bad.Hours, bad.Times, bad.For = "www.example.com", "all", "often", "8-18", &none, -time.Second
	_, _, err := w.Allow(t.Context(), bad)
	var many *problem.ValidationError
	if !errors.As(err, &many) {
		t.Fatal(err)
	}
	said := ""
	for _, flaw := range many.Flaws {
		said += flaw.Field + " "
	}
	if said != "domains access times for hours ask " {
		t.Errorf("it says %q: %v", said, err)
	}
	for _, hours := range []Hours{"", "00-24", "08-18", "22-06", "23-24"} {
		r := permitting()
		r.Hours = hours
		if err := w.CheckPermission(r); err != nil {
			t.Errorf("%s: %v", hours, err)
		}
	}
	for _, hours := range []Hours{"-", "08", "08-08", "00-00", "22-24-1", "25-26", "-1-5", "08-25", "08-18 CET", "8-18", "24-00", "+8-18"} {
		r := permitting()
		r.Hours = hours
		if err := w.CheckPermission(r); problem.CodeOf(err) != problem.BadRequest {
			t.Errorf("%s: %v", hours, err)
		}
	}
	stranger := permitting()
	stranger.Agent = "a3" // of another tenant
	if _, _, err := w.Allow(t.Context(), stranger); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("an agent of another tenant: %v", err)
	}
	if all, err := w.Permissions(t.Context(), ""); err != nil || len(all) != 0 {
		t.Errorf("%+v, %v", all, err)
	}
}

// Somebody who can only write to the database makes no permission and widens none; the key that signs is not there.
func TestPermissionThatWasNotSignedHereIsNone(t *testing.T) {
	w := newAgents(t)
	ctx := context.Background()
	p := w.allow()
	good, err := w.store.Entry(ctx, p.ID)
	if err != nil {
		t.Fatal(err)
	}
	token, _ := w.issue()
	elsewhere := newAgents(t) // another installation's key
	foreign, err := elsewhere.store.Entry(ctx, elsewhere.allow().ID)
	if err != nil {
		t.Fatal(err)
	}
	for what, forge := range map[string]func(e *store.Entry){
		"for another agent":    func(e *store.Entry) { e.Agent = "a2" },
		"for another domain":   func(e *store.Entry) { e.Agent, e.Name = "a2", "example.org" },
		"with a later end":     func(e *store.Entry) { e.Agent, e.ExpiresAt = "a2", noon.Add(time.Hour) },
		"under another id":     func(e *store.Entry) { e.Agent, e.ID = "a2", "perm_other" },
		"signed elsewhere":     func(e *store.Entry) { e.Agent, e.Body = "a2", foreign.Body },
		"with a grant's token": func(e *store.Entry) { e.Agent, e.Body = "a2", []byte(`{"signed":"`+token.Reveal()+`"}`) },
		"unsigned":             func(e *store.Entry) { e.Agent, e.Body = "a2", []byte(`{"access":"cdp","ask":"never","by":"admin"}`) },
	} {
		e := good
		forge(&e)
		if e.ID == good.ID {
			e.ID = "perm_" + strings.ReplaceAll(what, " ", "-")
		}
		if err := w.store.CreateEntry(ctx, e); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		want := asking()
		want.Agent, want.Domains = e.Agent, []string{e.Name}
		w.notAllowed(what, want, "without a grant")
		if all, err := w.Permissions(ctx, ""); err != nil || len(all) != 1 {
			t.Errorf("%s: %+v, %v", what, all, err)
		}
		// It keeps nobody from permitting the same.
		if made, over, err := w.Allow(ctx, func() PermissionRequest { r := permitting(); r.Agent, r.Domain = e.Agent, e.Name; return r }()); err != nil || over != e.ID {
			t.Errorf("%s: %+v in the place of %q, %v", what, made, over, err)
		} else if err := w.Disallow(ctx, made.ID); err != nil {
			t.Error(err)
		}
	}
	// A permission is no grant either.
	text := string(good.Body)
	w.refusal(ParseToken(text[strings.Index(text, "v4."):len(text)-2]), want(), problem.GrantInvalid)
	w.opens(asking())
}

func TestPermissionOutlivesTheKeyThatSignedIt(t *testing.T) {
	w := newAgents(t)
	w.allow()
	w.allow(func(r *PermissionRequest) { r.Agent = "a2" })
	if _, err := w.keys.Rotate(); err != nil {
		t.Fatal(err)
	}
	w.opens(asking()) // which signs it anew
	w.clock.Forward(MaxTTL + retiring + time.Second)
	w.opens(asking())
	other := asking()
	other.Agent = "a2"
	w.notAllowed("signed with a key that is over", other, "without a grant")

	w.allow(func(r *PermissionRequest) { r.Agent = "a2" })
	if _, err := w.keys.Rotate(); err != nil {
		t.Fatal(err)
	}
	if err := w.SignPermissions(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.clock.Forward(MaxTTL + retiring + time.Second)
	w.opens(other)
	if all, err := w.Permissions(t.Context(), ""); err != nil || len(all) != 2 || all[0].Used+all[1].Used != 3 {
		t.Errorf("%+v, %v", all, err)
	}
}

// A rotation may be cut before permissions are signed, and others may be given at the moment of one. What signs them later writes
// each once.
func TestARotationThatIsCutVoidsNoPermission(t *testing.T) {
	w := newAgents(t)
	w.allow()
	if _, err := w.keys.Rotate(); err != nil {
		t.Fatal(err)
	}
	w.allow(func(r *PermissionRequest) { r.Agent = "a2" })
	var written [3]int64
	for n := range written {
		all, err := w.Permissions(t.Context(), "")
		if err != nil || len(all) != 2 {
			t.Fatalf("%+v, %v", all, err)
		}
		written[n] = all[0].version + all[1].version
		if _, err := w.Tidy(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if written[1] != written[0]+1 || written[2] != written[1] {
		t.Errorf("they were written %v times in all", written)
	}
	w.clock.Forward(MaxTTL + retiring + time.Second)
	w.opens(asking())
}

// What a database that was put back has is signed anew by what the old keys have signed, and by nothing else: no grant of theirs is good again,
// no approval of one use, and nothing that somebody has changed in it.
func TestPermissionsThatAreSignedAnewAreThoseThatWereSigned(t *testing.T) {
	w := newAgents(t)
	ctx := t.Context()
	never := 1
	asked := w.allow(func(r *PermissionRequest) { r.Ask, r.Times = AskAlways, &never })
	gone := w.allow(func(r *PermissionRequest) { r.Agent = "a2" })
	plain := w.allow(func(r *PermissionRequest) { r.Domain = "example.org" })
	if err := errors.Join(w.Approve(ctx, asked.ID), w.Disallow(ctx, gone.ID)); err != nil {
		t.Fatal(err)
	}
	token, _ := w.issue()
	forged, err := w.store.Entry(ctx, plain.ID)
	if err != nil {
		t.Fatal(err)
	}
	forged.ID, forged.Agent = "perm_forged", "a2"
	if err := w.store.CreateEntry(ctx, forged); err != nil {
		t.Fatal(err)
	}
	fresh, err := OpenKeyring(filepath.Join(t.TempDir(), "grant.keys"), w.clock.Now)
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string][2]*Keyring{"only counted": {w.keys, nil}, "without the old keys": {nil, fresh}, "with other keys": {fresh, fresh}} {
		good, void, err := SignAnew(ctx, w.store, c[0], c[1])
		if want := map[bool]int{true: 2}[c[0] == w.keys]; err != nil || good != want || void != 3-want {
			t.Errorf("%s: %d are good, and %d are not: %v", what, good, void, err)
		}
	}
	org := asking()
	org.Domains = []string{"example.org"}
	w.opens(org)
	if good, void, err := SignAnew(ctx, w.store, w.keys, fresh); err != nil || good != 2 || void != 1 {
		t.Fatalf("%d are good, and %d are not: %v", good, void, err)
	}
	w.notAllowed("with the old keys", org, "without a grant")
	w.keys = fresh
	if w.Issuer, err = New(w.options()); err != nil {
		t.Fatal(err)
	}
	if all, err := w.Permissions(ctx, ""); err != nil || len(all) != 2 || all[1].ID != plain.ID || all[1].Used != 1 || *all[0].Left != 0 || !all[0].ApprovedUntil.IsZero() {
		t.Errorf("%+v, %v", all, err)
	}
	w.opens(org)
	org.Agent = "a2"
	w.notAllowed("one that was forged", org, "without a grant")
	w.notAllowed("one that was approved, for a number of uses", asking(), "was used as often")
	w.refusal(token, want(), problem.GrantInvalid)
}

// A grant names the domains that the permission has when it is used.
func TestPermissionThatIsNarrowedMeanwhileOpensNothingWider(t *testing.T) {
	w := newAgents(t)
	wide := func(r *PermissionRequest) { r.EgressDomains = []string{"cdn.example.net"} }
	w.allow(wide)
	s, err := w.Permitted(t.Context(), asking())
	if err != nil {
		t.Fatal(err)
	}
	w.allow()
	if _, err := w.UsePermissions(t.Context(), s, asking()); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("a session with what it was narrowed by: %v", err)
	}
	w.allow(wide)
	if g, err := w.UsePermissions(t.Context(), s, asking()); err != nil || len(g.EgressDomains) != 1 {
		t.Errorf("with what was seen: %+v, %v", g, err)
	}
}
