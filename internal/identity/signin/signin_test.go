package signin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clawjail/clawjail/internal/audit/audittest"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

func TestWhoHasAKeyIsSignedIn(t *testing.T) {
	w, end := newFixture(t)
	defer end()
	ctx := t.Context()
	key, ann := w.operator("acme", identity.RoleViewer, identity.NeverExpires)
	from := here
	from.UserAgent = "Mozilla\x00\n" + strings.Repeat("x", 500)
	cookie, in, err := w.WithKey(ctx, key, from)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(cookie, "cjweb_") || len(cookie) != len("cjweb_")+43 {
		t.Errorf("the cookie has %d characters", len(cookie))
	}
	if in.Actor != ann.Actor() || in.Name != "ann" || in.Tenant != "acme" || in.Method != "key" || in.Remote != "192.0.2.1" || !in.Current ||
		!in.ExpiresAt.Equal(in.CreatedAt.Add(life)) || !strings.HasPrefix(in.UserAgent, "Mozillax") || len([]rune(in.UserAgent)) != longestUserAgent {
		t.Errorf("signed in as %+v", in)
	}
	e := w.log.Last(t)
	if e.Action != "console.sign_in" || e.Result != "ok" || e.Actor != ann.Actor() || e.Tenant != "acme" || e.Target != in.ID ||
		!audittest.Has(e, map[string]string{"method": "key", "remote": here.Remote.String()}) {
		t.Errorf("recorded %+v", e)
	}
	if got := w.in(cookie, ann); got.ID != in.ID {
		t.Errorf("the cookie is of %+v", got)
	}
	w.hasNothingOf(cookie, in)
	w.hasNothingOf(key, in)

	adminCookie, _ := w.signIn(w.adminKey)
	w.in(adminCookie, w.admin)
	for what, text := range map[string]string{"nothing": "", "a prefix": PrefixCookie, "another's prefix": PrefixLink + cookie[len(PrefixCookie):], "a letter less": cookie[:len(cookie)-1],
		"a letter more": cookie + "A", "another letter": cookie[:20] + "*" + cookie[21:], "one of nobody": PrefixCookie + strings.Repeat("A", 43), "a key": key, "a space": cookie + " "} {
		w.out(what, text)
	}
}

func TestWhoMayNotSignIn(t *testing.T) {
	w, end := newFixture(t)
	defer end()
	ctx := t.Context()
	token, bot, err := w.identity.CreateAgent(ctx, w.admin, "acme", "bot", identity.NeverExpires)
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = w.WithKey(ctx, token.Reveal(), here)
	p, _ := problem.As(err)
	if problem.CodeOf(err) != problem.Forbidden || p == nil || !strings.Contains(p.Hint, "operator") {
		t.Errorf("an agent is told %v", err)
	}
	if e := w.log.Last(t); e.Action != "console.sign_in" || e.Result != "refused" || e.Actor != "agent:"+bot.ID || e.Tenant != "acme" ||
		!audittest.Has(e, map[string]string{"reason": "forbidden", "method": "key"}) {
		t.Errorf("recorded %+v", e)
	}
	agent, err := w.identity.Authenticate(ctx, token.Reveal(), here.Remote)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.NewLink(ctx, agent); problem.CodeOf(err) != problem.Forbidden {
		t.Errorf("an agent makes a link: %v", err)
	}
	holder := w.admin.Within("s_1", identity.ScopeCDP, time.Now().Add(time.Hour))
	if _, err := w.NewLink(ctx, holder); problem.CodeOf(err) != problem.Forbidden {
		t.Errorf("the holder of a session's token makes a link: %v", err)
	}
	for what, key := range map[string]string{"a wrong key": "cjop_" + strings.Repeat("A", 49), "no key": "", "a cookie": PrefixCookie + strings.Repeat("A", 43)} {
		if _, _, err := w.WithKey(ctx, key, here); problem.CodeOf(err) != problem.Unauthorized {
			t.Errorf("%s: %v", what, err)
		}
	}
	refusals := 0
	for _, e := range w.log.All() {
		if e.Action == "console.sign_in" && e.Result == "refused" && e.Actor == "" &&
			audittest.Has(e, map[string]string{"reason": "unauthorized", "method": "key", "remote": here.Remote.String()}) {
			refusals++
		}
	}
	if refusals != 2 {
		t.Errorf("%d wrong keys were recorded", refusals)
	}
	rows, err := w.db.ListSignIns(ctx, store.SignInFilter{Limit: 99})
	if err != nil || len(rows) != 0 {
		t.Errorf("signed in: %+v, %v", rows, err)
	}
}

func TestASignInThatCannotBeRecordedIsNone(t *testing.T) {
	w, end := newFixture(t)
	defer end()
	link, err := w.NewLink(t.Context(), w.admin)
	if err != nil {
		t.Fatal(err)
	}
	w.log.Fail(errPlanted)
	_, _, keyErr := w.WithKey(t.Context(), w.adminKey, here)
	_, _, linkErr := w.WithLink(t.Context(), link.Code, here)
	_, newErr := w.NewLink(t.Context(), w.admin)
	for what, err := range map[string]error{"with a key": keyErr, "with a link": linkErr, "a new link": newErr} {
		if !errors.Is(err, errPlanted) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if rows, err := w.db.ListSignIns(t.Context(), store.SignInFilter{Limit: 99}); err != nil || len(rows) != 0 {
		t.Errorf("signed in: %+v, %v", rows, err)
	}
}

// The life of a sign-in: it ends when nobody used it for its idle time, and after its life however much it is used.
func TestASignInEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, end := newFixture(t)
		defer end()
		unused, _ := w.signIn(w.adminKey)
		used, _ := w.signIn(w.adminKey)
		began := time.Now()
		for time.Since(began) < life-2*idle {
			time.Sleep(idle - time.Microsecond)
			if in := w.in(used, w.admin); !in.UsedAt.Equal(time.Now().Truncate(time.Microsecond)) {
				t.Errorf("used at %s, and it is %s", in.UsedAt, time.Now())
			}
		}
		time.Sleep(idle / 2)
		w.in(used, w.admin)
		w.out("nobody used it", unused)
		time.Sleep(life - time.Since(began) - time.Microsecond)
		w.in(used, w.admin)
		time.Sleep(time.Microsecond)
		w.out("its life is over", used)

		exact, _ := w.signIn(w.adminKey)
		time.Sleep(idle - time.Microsecond)
		w.in(exact, w.admin)
		time.Sleep(idle)
		w.out("exactly its idle time", exact)
		n, err := w.Purge(t.Context())
		if err != nil || n != 2 {
			t.Errorf("%d are removed, %v: one is over only now", n, err)
		}
		time.Sleep(time.Microsecond)
		if n, err := w.Purge(t.Context()); err != nil || n != 1 {
			t.Errorf("%d are removed, %v", n, err)
		}
	})
}

// However often it is used, the store is told once a minute at most; what it was told is enough for the next process.
func TestUseIsWrittenOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, end := newFixture(t)
		defer end()
		cookie, in := w.signIn(w.adminKey)
		began := in.UsedAt
		written := map[time.Time]bool{}
		for range 300 {
			time.Sleep(time.Second)
			w.in(cookie, w.admin)
			row, err := w.db.SignIn(t.Context(), in.ID)
			if err != nil {
				t.Fatal(err)
			}
			written[row.UsedAt] = true
		}
		if len(written) != 6 || !written[began] || !written[began.Add(5*time.Minute)] {
			t.Errorf("written %v", written)
		}
		w.broken.touch = errPlanted
		for range 3 {
			time.Sleep(idle - time.Minute)
			w.in(cookie, w.admin) // a store that does not take it signs nobody out
		}
		w.broken.touch = nil
		w.close()
		w.open(idle, life)
		w.out("what the store was not told, the next process does not know", cookie)
	})
}

func TestTheShortestIdleTimeIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, end := newFixture(t)
		defer end()
		w.close()
		w.open(time.Minute, time.Hour)
		cookie, _ := w.signIn(w.adminKey)
		for range 20 {
			time.Sleep(59 * time.Second)
			w.in(cookie, w.admin)
		}
		for range 3 {
			time.Sleep(44 * time.Second)
			w.in(cookie, w.admin)
		}
		w.close()
		w.open(time.Minute, time.Hour)
		w.in(cookie, w.admin)
		time.Sleep(time.Minute)
		w.out("nobody used it", cookie)
	})
}

func TestAShorterLifeCountsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, end := newFixture(t)
		defer end()
		cookie, _ := w.signIn(w.adminKey)
		w.close()
		w.open(time.Hour, time.Hour)
		time.Sleep(59 * time.Minute)
		if in := w.in(cookie, w.admin); !in.ExpiresAt.Equal(in.CreatedAt.Add(time.Hour)) {
			t.Errorf("it ends at %s", in.ExpiresAt)
		}
		time.Sleep(time.Minute)
		w.out("the life that is configured now is over", cookie)
	})
}

// An owner who signs in again and again ends its oldest sign-in each time, and what is open with it; those of others stay.
func TestAnOwnerHasFewSignIns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, end := newFixture(t)
		defer end()
		key, ann := w.operator("acme", identity.RoleViewer, identity.NeverExpires)
		rivalKey, rival := w.operator("rival", identity.RoleAdmin, identity.NeverExpires)
		other, inOther := w.signIn(rivalKey)
		first, inFirst := w.signIn(key)
		time.Sleep(time.Second)
		second, inSecond := w.signIn(key)
		open := w.hold(ann, inFirst)
		defer open.release()
		for range maxSignIns - 2 {
			w.signIn(key)
		}
		w.in(first, ann) // as many as may be
		time.Sleep(time.Second)
		w.signIn(key)
		w.out("one too many", first)
		if !open.cut() {
			t.Error("what is open with it stays")
		}
		ended := false
		for _, e := range w.log.All() {
			ended = ended || e.Target == inFirst.ID && e.Result == "ok" && audittest.Has(e, map[string]string{"reason": "too_many", "method": "key"})
		}
		if !ended {
			t.Error("its end is not recorded")
		}
		w.in(second, ann)
		w.in(other, rival)
		for _, c := range []struct {
			by   identity.Principal
			in   SignIn
			want int
		}{{ann, inSecond, maxSignIns}, {rival, inOther, 1}, {w.admin, SignIn{}, maxSignIns + 1}} {
			if list, err := w.List(t.Context(), c.by, c.in); err != nil || len(list) != c.want {
				t.Errorf("%s is shown %d, %v; want %d", c.by.Actor(), len(list), err, c.want)
			}
		}
	})
}

// The owner of a sign-in is looked up at every request: the end of the key ends the sign-in.
func TestASignInEndsWithWhatItStandsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, end := newFixture(t)
		defer end()
		ctx := t.Context()
		revokedKey, revoked := w.operator("acme", identity.RoleOperator, identity.NeverExpires)
		expiringKey, expiring := w.operator("acme", identity.RoleOperator, time.Hour)
		rotatedKey, rotated := w.operator("", identity.RoleAdmin, identity.NeverExpires)
		a, _ := w.signIn(revokedKey)
		b, inB := w.signIn(expiringKey)
		c, _ := w.signIn(rotatedKey)
		adminCookie, _ := w.signIn(w.adminKey)
		if !inB.ExpiresAt.Equal(expiring.ExpiresAt) {
			t.Errorf("it outlives its key: %s", inB.ExpiresAt)
		}
		w.in(a, revoked)
		w.in(b, expiring)
		w.in(c, rotated)
		if err := w.identity.RevokeOperator(ctx, w.admin, revoked.ID); err != nil {
			t.Fatal(err)
		}
		w.out("its operator is revoked", a)
		if _, _, err := w.identity.RotateOperator(ctx, w.admin, rotated.ID, time.Hour); err != nil {
			t.Fatal(err)
		}
		w.out("its operator has a new key", c)
		time.Sleep(time.Hour)
		w.out("its key has expired", b)
		w.in(adminCookie, w.admin)

		// A restart ends nothing, and a new admin key what was done with the old one.
		w.close()
		w.open(idle, life)
		w.in(adminCookie, w.admin)
		if err := os.Remove(w.keys); err != nil {
			t.Fatal(err)
		}
		w.close()
		w.open(idle, life)
		w.out("there is another admin key", adminCookie)
		if list, err := w.List(ctx, w.admin, SignIn{}); err != nil || len(list) != 0 {
			t.Errorf("those that are listed: %+v, %v", list, err)
		}
	})
}

func TestSignInsAreListedToWhoseTheyAre(t *testing.T) {
	w, end := newFixture(t)
	defer end()
	ctx := t.Context()
	people := map[string]identity.Principal{"root": w.admin}
	ids := map[string]string{}
	own := map[string]SignIn{}
	for name, of := range map[string]struct {
		tenant string
		role   identity.Role
	}{"all": {"", identity.RoleAdmin}, "acme admin": {"acme", identity.RoleAdmin}, "acme viewer": {"acme", identity.RoleViewer}, "acme operator": {"acme", identity.RoleOperator},
		"rival admin": {"rival", identity.RoleAdmin}} {
		key, p := w.operator(of.tenant, of.role, identity.NeverExpires)
		people[name] = p
		_, own[name] = w.signIn(key)
		ids[own[name].ID] = name
	}
	_, own["root"] = w.signIn(w.adminKey)
	ids[own["root"].ID] = "root"
	everybody := []string{"root", "all", "acme admin", "acme viewer", "acme operator", "rival admin"}
	for name, sees := range map[string][]string{"root": everybody, "all": everybody, "acme admin": {"acme admin", "acme viewer", "acme operator"},
		"acme viewer": {"acme viewer"}, "acme operator": {"acme operator"}, "rival admin": {"rival admin"}} {
		list, err := w.List(ctx, people[name], own[name])
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]bool{}
		for _, in := range list {
			got[ids[in.ID]] = true
			if in.Current != (ids[in.ID] == name) || in.Actor != people[ids[in.ID]].Actor() {
				t.Errorf("%s sees %+v", name, in)
			}
		}
		if len(got) != len(sees) || len(list) != len(sees) {
			t.Errorf("%s sees %v, want %v", name, got, sees)
		}
		for _, one := range sees {
			if !got[one] {
				t.Errorf("%s does not see %s", name, one)
			}
		}
		// A sign-in that is not seen cannot be ended, and is answered like one that is not there.
		for _, one := range everybody {
			if got[one] {
				continue
			}
			err, none := w.End(ctx, people[name], own[one].ID), w.End(ctx, people[name], "si_none")
			if problem.CodeOf(err) != problem.NotFound || strings.ReplaceAll(err.Error(), own[one].ID, "si_none") != none.Error() {
				t.Errorf("%s ends that of %s: %v", name, one, err)
			}
			if e := w.log.Last(t); e.Action != "console.end" || e.Result != "refused" || !audittest.Has(e, map[string]string{"reason": "not_found"}) {
				t.Errorf("recorded %+v", e)
			}
		}
	}
	for _, name := range []string{"acme viewer", "root"} {
		if err := w.End(ctx, people[name], own[name].ID); err != nil {
			t.Errorf("%s ends their own: %v", name, err)
		}
	}
	w.log.Fail(errPlanted) // an ending does not wait for its record
	if err := w.End(ctx, people["acme admin"], own["acme operator"].ID); err != nil {
		t.Error(err)
	}
	w.log.Fail(nil)
	if e := w.log.Last(t); e.Action != "console.end" || e.Result != "ok" || e.Actor != people["acme admin"].Actor() || e.Tenant != "acme" ||
		!audittest.Has(e, map[string]string{"owner": people["acme operator"].Actor()}) {
		t.Errorf("recorded %+v", e)
	}
	if list, err := w.List(ctx, w.admin, SignIn{}); err != nil || len(list) != 3 {
		t.Errorf("%d are left, %v", len(list), err)
	}
}

func TestEndingCutsWhatIsOpen(t *testing.T) {
	w, end := newFixture(t)
	defer end()
	ctx := t.Context()
	key, ann := w.operator("acme", identity.RoleOperator, identity.NeverExpires)
	cookie, in := w.signIn(key)
	other, otherIn := w.signIn(key)
	first, second, others := w.hold(ann, in), w.hold(ann, in), w.hold(ann, otherIn)
	defer others.release()
	if err := w.End(ctx, ann, in.ID); err != nil {
		t.Fatal(err)
	}
	w.out("it was ended", cookie)
	if !first.cut() || !second.cut() || others.cut() {
		t.Errorf("cut: %v, %v, and another's %v", first.cut(), second.cut(), others.cut())
	}
	w.in(other, ann)
	first.release()
	second.release()
	if _, err := w.WatchValidity(ctx, ann, in, func(error) {}); problem.CodeOf(err) != problem.Unauthorized {
		t.Errorf("held after its end: %v", err)
	}
	// With the operator goes everything.
	if err := w.identity.RevokeOperator(ctx, w.admin, ann.ID); err != nil {
		t.Fatal(err)
	}
	if !others.cut() {
		t.Error("a connection goes on whose operator was revoked")
	}
	others.release()
	if len(w.held.open) != 0 || w.identity.Open() != 0 {
		t.Errorf("%d are held, %d of keys", len(w.held.open), w.identity.Open())
	}
	if err := w.End(ctx, w.admin, in.ID); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("ended twice: %v", err)
	}
}

// Ending needs neither the store nor the log.
func TestASignInEndsAlsoWhenThatCannotBeWritten(t *testing.T) {
	w, end := newFixture(t)
	defer end()
	cookie, in := w.signIn(w.adminKey)
	open := w.hold(w.admin, in)
	w.broken.remove = errPlanted
	w.log.Fail(errPlanted)
	w.log.OnEnding = func() {
		if !open.cut() {
			t.Error("what is open waits for the record")
		}
	}
	if err := w.End(t.Context(), w.admin, in.ID); !errors.Is(err, errPlanted) {
		t.Errorf("nothing is said of it: %v", err)
	}
	w.log.Fail(nil)
	w.out("it was ended, and that could not be written", cookie)
	if !open.cut() {
		t.Error("what is open goes on")
	}
	open.release()
	if list, err := w.List(t.Context(), w.admin, in); err != nil || len(list) != 0 {
		t.Errorf("listed: %+v, %v", list, err)
	}
	if _, err := w.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.out("it is remembered", cookie)
	w.broken.remove = nil
	if err := w.End(t.Context(), w.admin, in.ID); err != nil {
		t.Fatal(err)
	}
	w.out("it was ended again", cookie)
	if len(w.uses.known) != 0 {
		t.Errorf("%d are remembered", len(w.uses.known))
	}
}

// An end is written when it can be, and when who asked for it has left.
func TestAnEndIsWrittenLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, end := newFixture(t)
		defer end()
		left, leave := context.WithCancel(t.Context())
		leave()
		_, first := w.signIn(w.adminKey)
		_, second := w.signIn(w.adminKey)
		_, third := w.signIn(w.adminKey)
		if err := w.End(left, w.admin, first.ID); err != nil {
			t.Errorf("its caller has left: %v", err)
		}
		w.broken.remove = errPlanted
		if err := w.End(t.Context(), w.admin, second.ID); !errors.Is(err, errPlanted) {
			t.Errorf("nothing is said of it: %v", err)
		}
		time.Sleep(2 * watchEvery)
		synctest.Wait()
		if _, err := w.db.SignIn(t.Context(), second.ID); err != nil {
			t.Errorf("the store has it as long as it cannot be written: %v", err)
		}
		w.broken.remove = nil
		time.Sleep(2 * watchEvery)
		synctest.Wait()
		for what, id := range map[string]string{"its caller has left": first.ID, "it was written later": second.ID} {
			if _, err := w.db.SignIn(t.Context(), id); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if _, err := w.db.SignIn(t.Context(), third.ID); err != nil || len(w.uses.unwritten()) != 0 {
			t.Errorf("another: %v; %d are remembered", err, len(w.uses.unwritten()))
		}
	})
}

// A sign-in that is held counts as used, until its life is over, and another process may end it.
func TestWhatIsHeldIsUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, end := newFixture(t)
		defer end()
		cookie, in := w.signIn(w.adminKey)
		open := w.hold(w.admin, in)
		time.Sleep(life - time.Second)
		w.in(cookie, w.admin)
		if open.cut() {
			t.Fatal("it was cut while somebody watched")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if !open.cut() {
			t.Error("it outlives its life")
		}
		open.release()

		cookie, in = w.signIn(w.adminKey)
		open = w.hold(w.admin, in)
		if err := w.db.DeleteSignIn(t.Context(), in.ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(watchEvery + time.Microsecond)
		synctest.Wait()
		if !open.cut() {
			t.Error("another process ended it, and it goes on")
		}
		open.release()
		w.out("another process ended it", cookie)

		// One that is told to look does not wait that long.
		_, in = w.signIn(w.adminKey)
		open = w.hold(w.admin, in)
		if err := w.db.DeleteSignIn(t.Context(), in.ID); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if open.cut() {
			t.Error("it is cut before anybody was told to look, so this shows nothing")
		}
		w.Look()
		synctest.Wait()
		if !open.cut() {
			t.Error("another process ended it, and it goes on after this one was told to look")
		}
		open.release()

		// A store that does not answer ends nothing, and is asked again.
		_, in = w.signIn(w.adminKey)
		open = w.hold(w.admin, in)
		w.broken.hang.Store(true)
		time.Sleep(10 * watchEvery)
		if open.cut() {
			t.Error("it was cut because a store did not answer")
		}
		w.broken.hang.Store(false)
		if err := w.db.DeleteSignIn(t.Context(), in.ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2*watchEvery + time.Microsecond)
		synctest.Wait()
		if !open.cut() {
			t.Error("it was ended after the store had not answered for a while, and goes on")
		}
		open.release()

		// A sign-in that is held no more is not used.
		cookie, in = w.signIn(w.adminKey)
		open = w.hold(w.admin, in)
		time.Sleep(idle)
		open.release()
		time.Sleep(idle + watchEvery)
		w.out("nobody holds it", cookie)
	})
}

func TestOptionsThatAreNotPossible(t *testing.T) {
	w, end := newFixture(t)
	defer end()
	good := Options{Store: w.db, Identity: w.identity, Idle: time.Minute, Life: time.Minute, Now: time.Now}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for what, change := range map[string]func(*Options){
		"no store": func(o *Options) { o.Store = nil }, "no identity": func(o *Options) { o.Identity = nil }, "no clock": func(o *Options) { o.Now = nil },
		"no idle time": func(o *Options) { o.Idle = 0 }, "no life": func(o *Options) { o.Life = 0 }, "idle beyond its life": func(o *Options) { o.Idle = time.Hour },
		"a long life": func(o *Options) { o.Life = LongestLife + 1 },
	} {
		o := good
		change(&o)
		if _, err := Open(context.Background(), o); problem.CodeOf(err) != problem.BadConfig {
			t.Errorf("%s: %v", what, err)
		}
	}
	if said := fmt.Sprintf("%v %+v %#v", Link{Code: "canary"}, Link{Code: "canary"}, Link{Code: "canary"}); strings.Contains(said, "canary") {
		t.Errorf("a link prints as %s", said)
	}
}

// BenchmarkWho is what every request of a page waits for.
func BenchmarkWho(b *testing.B) {
	w, end := newFixture(b)
	defer end()
	key, ann := w.operator("acme", identity.RoleViewer, identity.NeverExpires)
	cookie := ""
	for range 500 {
		cookie, _ = w.signIn(key)
	}
	for b.Loop() {
		w.in(cookie, ann)
	}
}
