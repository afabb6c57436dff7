package signin

import (
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clawjail/clawjail/internal/audit/audittest"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

func (w *fixture) link(by identity.Principal) Link {
	w.t.Helper()
	link, err := w.NewLink(w.t.Context(), by)
	if err != nil {
		w.t.Fatal(err)
	}
	return link
}

func TestALinkSignsItsMakerIn(t *testing.T) {
	w, end := newFixture(t)
	defer end()
	_, ann := w.operator("acme", identity.RoleViewer, identity.NeverExpires)
	link := w.link(ann)
	if e := w.log.Last(t); e.Action != "console.link" || e.Result != "ok" || e.Actor != ann.Actor() || e.Tenant != "acme" {
		t.Errorf("recorded %+v", e)
	}
	cookie, in, err := w.WithLink(t.Context(), link.Code, here)
	if err != nil || in.Method != "link" || in.Actor != ann.Actor() {
		t.Fatalf("%+v, %v", in, err)
	}
	w.in(cookie, ann)
	w.hasNothingOf(link.Code, in)
	if _, _, err := w.WithLink(t.Context(), link.Code, here); problem.CodeOf(err) != problem.Unauthorized {
		t.Errorf("a second time: %v", err)
	}
	if e := w.log.Last(t); e.Action != "console.sign_in" || e.Result != "refused" || e.Actor != "" ||
		!audittest.Has(e, map[string]string{"method": "link", "remote": here.Remote.String()}) {
		t.Errorf("recorded %+v", e)
	}
}

// Of 64 who use a link at the same moment, one is signed in.
func TestALinkIsGoodOnce(t *testing.T) {
	w, end := newFixture(t)
	defer end()
	link := w.link(w.admin)
	var won atomic.Int64
	var all sync.WaitGroup
	gate := make(chan struct{})
	for n := range 64 {
		from := here
		from.Remote = netip.AddrFrom4([4]byte{198, 51, 100, byte(n)}) // so that nobody is limited
		all.Go(func() {
			<-gate
			_, _, err := w.WithLink(t.Context(), link.Code, from)
			switch problem.CodeOf(err) {
			case "":
				won.Add(1)
			case problem.Unauthorized:
			default:
				t.Error(err)
			}
		})
	}
	close(gate)
	all.Wait()
	rows, err := w.db.ListSignIns(t.Context(), store.SignInFilter{Limit: 99})
	if won.Load() != 1 || len(rows) != 1 || err != nil {
		t.Errorf("%d are signed in, %d rows, %v", won.Load(), len(rows), err)
	}
}

func TestALinkEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, end := newFixture(t)
		defer end()
		_, ann := w.operator("acme", identity.RoleViewer, identity.NeverExpires)
		late, inTime, revoked := w.link(w.admin), w.link(w.admin), w.link(ann)
		if !late.ExpiresAt.Equal(time.Now().Add(10 * time.Minute)) {
			t.Errorf("it ends at %s", late.ExpiresAt)
		}
		if err := w.identity.RevokeOperator(t.Context(), w.admin, ann.ID); err != nil {
			t.Fatal(err)
		}
		if _, _, err := w.WithLink(t.Context(), revoked.Code, here); problem.CodeOf(err) != problem.Unauthorized {
			t.Errorf("that of an operator who is revoked: %v", err)
		}
		time.Sleep(10*time.Minute - time.Microsecond)
		if _, _, err := w.WithLink(t.Context(), inTime.Code, here); err != nil {
			t.Errorf("in its last moment: %v", err)
		}
		time.Sleep(time.Microsecond)
		if _, _, err := w.WithLink(t.Context(), late.Code, here); problem.CodeOf(err) != problem.Unauthorized {
			t.Errorf("after its end: %v", err)
		}
		w.link(w.admin)
		time.Sleep(10 * time.Minute)
		if _, err := w.Purge(t.Context()); err != nil || len(w.links.unused) != 0 {
			t.Errorf("%d are remembered, %v", len(w.links.unused), err)
		}

		// Another admin key is another admin; and links are gone with the process in any case.
		before := w.link(w.admin)
		if err := os.Remove(w.keys); err != nil {
			t.Fatal(err)
		}
		w.close()
		w.open(idle, life)
		if _, _, err := w.WithLink(t.Context(), before.Code, here); problem.CodeOf(err) != problem.Unauthorized {
			t.Errorf("after a restart: %v", err)
		}
	})
}

func TestOldLinksMakeRoomForNewOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, end := newFixture(t)
		defer end()
		_, ann := w.operator("acme", identity.RoleViewer, identity.NeverExpires)
		hers, first := w.link(ann), w.link(w.admin)
		time.Sleep(time.Second)
		second := w.link(w.admin)
		for range maxLinks - 1 {
			time.Sleep(time.Second)
			w.link(w.admin)
		}
		if len(w.links.unused) != maxLinks+1 {
			t.Errorf("%d are remembered", len(w.links.unused))
		}
		if _, _, err := w.WithLink(t.Context(), first.Code, here); problem.CodeOf(err) != problem.Unauthorized {
			t.Errorf("the oldest: %v", err)
		}
		for _, link := range []Link{hers, second} {
			if _, _, err := w.WithLink(t.Context(), link.Code, here); err != nil {
				t.Error(err)
			}
		}
	})
}

// Guessing is limited, by the same limit whatever is guessed.
func TestGuessingIsBraked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, end := newFixture(t)
		defer end()
		link := w.link(w.admin)
		burst := identity.DefaultRateLimit().Burst
		wrong, _ := newToken(PrefixLink, "")
		for n := range burst {
			err := error(nil)
			switch n % 2 {
			case 0:
				_, _, err = w.WithLink(t.Context(), wrong, here)
			case 1:
				_, _, err = w.WithKey(t.Context(), "cjop_wrong", here)
			}
			if problem.CodeOf(err) != problem.Unauthorized {
				t.Fatalf("guess %d: %v", n, err)
			}
		}
		before := len(w.log.All())
		for range 5 {
			_, _, linkErr := w.WithLink(t.Context(), link.Code, here)
			_, _, keyErr := w.WithKey(t.Context(), w.adminKey, here)
			_, _, passkeyErr := w.WithPasskey(t.Context(), "", nil, here)
			for _, err := range []error{linkErr, keyErr, passkeyErr} {
				if wait, ok := identity.RetryAfter(err); problem.CodeOf(err) != problem.RateLimited || !ok || wait <= 0 {
					t.Errorf("got %v", err)
				}
			}
		}
		if said := len(w.log.All()) - before; said != 1 {
			t.Errorf("%d records of one limit", said)
		}
		elsewhere := here
		elsewhere.Remote = netip.MustParseAddr("198.51.100.7")
		if _, _, err := w.WithKey(t.Context(), w.adminKey, elsewhere); err != nil {
			t.Errorf("from elsewhere: %v", err)
		}
		time.Sleep(identity.DefaultRateLimit().Every)
		if _, _, err := w.WithLink(t.Context(), link.Code, here); err != nil {
			t.Errorf("the link was not looked at before: %v", err)
		}
	})
}
