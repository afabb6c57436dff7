package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/store"
)

// entry is one for all agents of all tenants, without a name.
func entry(id string, seconds int) store.Entry {
	return store.Entry{ID: id, Kind: "rule", Body: []byte(`{"id":"` + id + `"}`), Version: 1, CreatedAt: at(seconds), UpdatedAt: at(seconds)}
}

func newEntry(t *testing.T, s store.Store, e store.Entry) store.Entry {
	t.Helper()
	must(t, s.CreateEntry(t.Context(), e))
	return e
}

func testEntries(t *testing.T, s store.Store) {
	ctx := t.Context()
	newTenant(t, s, "acme")
	newAgent(t, s, "a1", "acme", "bea")
	check(t, "no entry", []store.Entry(nil))(s.ListEntries(ctx, ""))
	full := entry("e3", 1)
	full.Kind, full.Tenant, full.Agent, full.Name, full.ExpiresAt = "service", "acme", "a1", "github", at(500)
	full.Body = []byte(" {\"b\":1,  \"a\":\"\\u0000 Zoë 🦀\",\"b\":2}\n") // as it was written: spaces, order, a key that comes twice
	bare := store.Entry{ID: "e2", Kind: "rule", Body: []byte(`0`), Version: 1, CreatedAt: at(1)}
	wide := entry("e1", 2)
	wide.Tenant = "acme"
	for _, e := range []store.Entry{wide, full, bare} {
		newEntry(t, s, e)
	}
	check(t, "an entry", full)(s.Entry(ctx, "e3"))
	check(t, "one with the least", bare)(s.Entry(ctx, "e2"))
	check(t, "all, the oldest first", []store.Entry{bare, full, wide})(s.ListEntries(ctx, ""))
	check(t, "of a kind", []store.Entry{bare, wide})(s.ListEntries(ctx, "rule"))
	check(t, "of another kind", []store.Entry{full})(s.ListEntries(ctx, "service"))
	check(t, "of no kind that is there", []store.Entry(nil))(s.ListEntries(ctx, "rul"))

	check(t, "of an agent", []store.Entry{full})(s.AgentEntries(ctx, "service", "acme", "a1"))
	for _, none := range [][3]string{{"rule", "acme", "a1"}, {"service", "default", "a1"}, {"service", "acme", "a2"}, {"rule", "acme", ""}, {"", "acme", "a1"}} {
		check(t, fmt.Sprintf("of %q", none), []store.Entry(nil))(s.AgentEntries(ctx, none[0], none[1], none[2]))
	}

	wantError(t, "the same ID", s.CreateEntry(ctx, entry("e1", 5)), store.ErrExists)
	stray := entry("e9", 1)
	stray.Tenant = "none"
	wantError(t, "no such tenant", s.CreateEntry(ctx, stray), store.ErrNotFound)
	must(t, s.DeleteEntry(ctx, "e1"))
	wantError(t, "remove it again", s.DeleteEntry(ctx, "e1"), store.ErrNotFound)
	_, err := s.Entry(ctx, "e1")
	wantError(t, "a removed entry", err, store.ErrNotFound)

	versioned := entry("e8", 9)
	versioned.Version = 77
	newEntry(t, s, versioned)
	versioned.Version = 1
	check(t, "a new entry has version 1", versioned)(s.Entry(ctx, "e8"))

	large := entry("large", 10)
	large.Name = strings.Repeat("n", store.LongestName)
	large.Body = []byte(`"` + strings.Repeat("x", store.LongestBody-2) + `"`)
	newEntry(t, s, large)
	if got, err := s.Entry(ctx, "large"); err != nil || !bytes.Equal(got.Body, large.Body) {
		t.Errorf("the longest body: %d bytes, %v", len(got.Body), err)
	}
	for _, text := range texts() {
		e := entry(text, 11)
		e.Name, e.Body = text, []byte(`{}`)
		newEntry(t, s, e)
		check(t, text, e)(s.Entry(ctx, text))
		must(t, s.DeleteEntry(ctx, text))
	}
}

// testEntryNames: a name is taken in its place only: kind, tenant and agent.
func testEntryNames(t *testing.T, s store.Store) {
	ctx := t.Context()
	newTenant(t, s, "acme")
	newAgent(t, s, "a1", "acme", "bea")
	newAgent(t, s, "a2", "acme", "cid")
	for i, place := range []store.Entry{
		{Kind: "service"}, {Kind: "provider"}, {Kind: "service", Tenant: "acme"}, {Kind: "service", Tenant: "default"},
		{Kind: "service", Tenant: "acme", Agent: "a1"}, {Kind: "service", Tenant: "acme", Agent: "a2"},
	} {
		e := entry(fmt.Sprint("e", i), 1)
		e.Kind, e.Tenant, e.Agent, e.Name = place.Kind, place.Tenant, place.Agent, "github"
		newEntry(t, s, e)
		again := e
		again.ID = fmt.Sprint("again", i)
		wantError(t, fmt.Sprintf("the name a second time in %+v", place), s.CreateEntry(ctx, again), store.ErrExists)
		for _, name := range []string{"", "GitHub"} {
			again.ID, again.Name = again.ID+"'", name
			must(t, s.CreateEntry(ctx, again))
		}
		again.ID, again.Name = again.ID+"'", ""
		must(t, s.CreateEntry(ctx, again)) // any number without a name

		again.Name, again.UpdatedAt = "github", at(2)
		wantError(t, fmt.Sprintf("take the name in %+v", place), s.UpdateEntry(ctx, again), store.ErrExists)
		again.Name = ""
		check(t, "the one that did not get it", again.Version)(version(s.Entry(ctx, again.ID)))
		must(t, s.DeleteEntry(ctx, e.ID))
		again.Name = "github"
		must(t, s.UpdateEntry(ctx, again))
	}
	// Of many that take a name at the same moment, one does.
	var won counter
	race(8, func(i int) {
		e := entry(fmt.Sprint("r", i), 1)
		e.Name = "race"
		switch err := s.CreateEntry(ctx, e); {
		case err == nil:
			won.add()
		case !errors.Is(err, store.ErrExists):
			t.Error(err)
		}
	})
	won.want(t, "entries that took the name", 1)
}

func version(e store.Entry, err error) (int64, error) { return e.Version, err }

// testEntriesOfAgents: an agent's entries are of its tenant, and go with it.
func testEntriesOfAgents(t *testing.T, s store.Store) {
	ctx := t.Context()
	newTenant(t, s, "acme")
	newAgent(t, s, "a1", "acme", "bea")
	newAgent(t, s, "a2", "acme", "cid")
	shared := entry("e0", 1)
	shared.Tenant = "acme"
	newEntry(t, s, shared)
	for i, agent := range []string{"a1", "a1", "a2"} {
		e := entry(fmt.Sprint("e", i+1), i+2)
		e.Tenant, e.Agent = "acme", agent
		newEntry(t, s, e)
	}
	for what, place := range map[string]store.Entry{
		"another tenant's": {Tenant: "default", Agent: "a1"}, "no tenant's": {Tenant: "none", Agent: "a1"}, "none": {Tenant: "acme", Agent: "a9"},
	} {
		e := entry("stray", 1)
		e.Tenant, e.Agent = place.Tenant, place.Agent
		wantError(t, "an agent that is "+what, s.CreateEntry(ctx, e), store.ErrNotFound)
	}
	before, err := s.EntriesRevision(ctx)
	must(t, err)
	must(t, s.DeleteAgent(ctx, "a1"))
	rest, err := s.ListEntries(ctx, "")
	must(t, err)
	same(t, "what is left", ids(rest), []string{"e0", "e3"})
	after, err := s.EntriesRevision(ctx)
	must(t, err)
	if after <= before {
		t.Errorf("the revision was %d, and is %d when an agent has gone with its entries", before, after)
	}
}

func ids(list []store.Entry) (out []string) {
	for _, e := range list {
		out = append(out, e.ID)
	}
	return out
}

func testEntryUpdates(t *testing.T, s store.Store) {
	ctx := t.Context()
	newTenant(t, s, "acme")
	e := entry("e1", 1)
	e.Tenant, e.Name, e.ExpiresAt = "acme", "old", at(50)
	newEntry(t, s, e)
	// Only what may change is looked at.
	must(t, s.UpdateEntry(ctx, store.Entry{ID: "e1", Kind: "OTHER", Tenant: "default", Agent: "a9", Name: "new", Body: []byte(`[]`), Version: 1, UpdatedAt: at(7)}))
	e.Name, e.Body, e.Version, e.UpdatedAt, e.ExpiresAt = "new", []byte(`[]`), 2, at(7), time.Time{}
	check(t, "changed", e)(s.Entry(ctx, "e1"))

	stale := e
	stale.Version, stale.Name = 1, "stale"
	wantError(t, "an older version", s.UpdateEntry(ctx, stale), store.ErrExists)
	stale.Version = 3
	wantError(t, "a version that is not there yet", s.UpdateEntry(ctx, stale), store.ErrExists)
	stale.Version = 0
	wantError(t, "no version", s.UpdateEntry(ctx, stale), store.ErrExists)
	check(t, "after all of them", e)(s.Entry(ctx, "e1"))
	stale.ID = "e9"
	wantError(t, "no entry", s.UpdateEntry(ctx, stale), store.ErrNotFound)

	// Of many that change the same version, one does, and its change is what is there.
	for round := range 5 {
		var won counter
		bodies := make([]string, 16)
		race(len(bodies), func(i int) {
			mine := e
			mine.Body = fmt.Appendf(nil, "[%d,%d]", round, i)
			switch err := s.UpdateEntry(ctx, mine); {
			case err == nil:
				won.add()
				bodies[i] = string(mine.Body)
			case !errors.Is(err, store.ErrExists):
				t.Error(err)
			}
		})
		won.want(t, "changes of one version", 1)
		e.Version++
		e.Body = []byte(strings.Join(bodies, ""))
		check(t, "the winner's", e)(s.Entry(ctx, "e1"))
	}
}

func testEntriesExpire(t *testing.T, s store.Store) {
	ctx := t.Context()
	for i, end := range []time.Time{{}, at(10), at(20), at(20), at(30)} {
		e := entry(fmt.Sprint("e", i), i)
		e.ExpiresAt = end
		newEntry(t, s, e)
	}
	check(t, "before the first one expires", 0)(s.DeleteEntriesBefore(ctx, "", at(10)))
	check(t, "those of another kind", 0)(s.DeleteEntriesBefore(ctx, "none", at(20).Add(time.Microsecond)))
	check(t, "those of the kind", 1)(s.DeleteEntriesBefore(ctx, entry("", 0).Kind, at(20)))
	check(t, "those that have expired", 2)(s.DeleteEntriesBefore(ctx, "", at(20).Add(time.Microsecond)))
	rest, err := s.ListEntries(ctx, "")
	must(t, err)
	same(t, "what is left", ids(rest), []string{"e0", "e4"})
	_, err = s.DeleteEntriesBefore(ctx, "", time.Time{})
	wantError(t, "at no time", err, store.ErrInvalid)
}

// testEntriesRevision: it grows with every change, and with nothing else.
func testEntriesRevision(t *testing.T, s store.Store) {
	ctx := t.Context()
	newTenant(t, s, "acme")
	newAgent(t, s, "a1", "acme", "bea")
	newAgent(t, s, "a2", "acme", "cid")
	last, err := s.EntriesRevision(ctx)
	must(t, err)
	step := func(what string, grows bool, err, want error) {
		t.Helper()
		if want == nil {
			must(t, err)
		} else {
			wantError(t, what, err, want)
		}
		now, err := s.EntriesRevision(ctx)
		must(t, err)
		if grows != (now > last) || now < last {
			t.Errorf("%s: the revision was %d and is %d", what, last, now)
		}
		last = now
	}
	own := entry("e2", 2)
	own.Tenant, own.Agent, own.ExpiresAt = "acme", "a1", at(9)
	step("nothing", false, nil, nil)
	step("create", true, s.CreateEntry(ctx, entry("e1", 1)), nil)
	step("create an agent's", true, s.CreateEntry(ctx, own), nil)
	step("create the same", false, s.CreateEntry(ctx, own), store.ErrExists)
	step("update", true, s.UpdateEntry(ctx, entry("e1", 1)), nil)
	step("update an older version", false, s.UpdateEntry(ctx, entry("e1", 1)), store.ErrExists)
	step("update none", false, s.UpdateEntry(ctx, entry("e9", 1)), store.ErrNotFound)
	step("delete none", false, s.DeleteEntry(ctx, "e9"), store.ErrNotFound)
	_, err = s.DeleteEntriesBefore(ctx, "", at(9))
	step("nothing has expired", false, err, nil)
	step("remove an agent without entries", false, s.DeleteAgent(ctx, "a2"), nil)
	step("remove an agent with entries", true, s.DeleteAgent(ctx, "a1"), nil)
	step("delete", true, s.DeleteEntry(ctx, "e1"), nil)
	brief := entry("e3", 3)
	brief.ExpiresAt = at(4)
	step("create again", true, s.CreateEntry(ctx, brief), nil)
	_, err = s.DeleteEntriesBefore(ctx, "", at(5))
	step("one has expired", true, err, nil)
}

func testInvalidEntries(t *testing.T, s store.Store) {
	ctx := t.Context()
	newAgent(t, s, "a1", "default", "bea")
	kept := newEntry(t, s, entry("kept", 1))
	bodies := map[string][]byte{
		"no body": nil, "an empty body": {}, "no JSON": []byte(`{"a":}`), "two values": []byte(`{}{}`), "a body that is not UTF-8": []byte("\"\xff\""),
		"a body with a NUL": []byte("\"a\x00\""), "a long body": []byte(`"` + strings.Repeat("x", store.LongestBody-1) + `"`),
	}
	for what, body := range bodies {
		e := entry("e1", 1)
		e.Body = body
		wantError(t, "create with "+what, s.CreateEntry(ctx, e), store.ErrInvalid)
		e = kept
		e.Body = body
		wantError(t, "update with "+what, s.UpdateEntry(ctx, e), store.ErrInvalid)
	}
	for what, change := range map[string]func(*store.Entry){
		"an agent without a tenant": func(e *store.Entry) { e.Agent = "a1" },
		"no kind":                   func(e *store.Entry) { e.Kind = "" },
		"a kind in capitals":        func(e *store.Entry) { e.Kind = "Rule" },
		"no time":                   func(e *store.Entry) { e.CreatedAt = time.Time{} },
	} {
		e := entry("e1", 1)
		change(&e)
		wantError(t, "create with "+what, s.CreateEntry(ctx, e), store.ErrInvalid)
	}
	late := kept
	late.UpdatedAt = time.Time{}
	wantError(t, "update at no time", s.UpdateEntry(ctx, late), store.ErrInvalid)
	check(t, "what is there", []store.Entry{kept})(s.ListEntries(ctx, ""))

	for _, text := range []string{"a\x00b", "\xff"} {
		_, err := s.Entry(ctx, text)
		wantError(t, "look for bad text", err, store.ErrNotFound)
		wantError(t, "remove bad text", s.DeleteEntry(ctx, text), store.ErrNotFound)
		_, err = s.ListEntries(ctx, text)
		wantError(t, "list a kind of bad text", err, store.ErrInvalid)
		bad := kept
		bad.Name = text
		wantError(t, "a name of bad text", s.UpdateEntry(ctx, bad), store.ErrInvalid)
	}
}

// testEntriesOfTwoNodes: while two nodes change entries, a third one that sees the same revision before and after it has
// listed them has seen the state of that revision, and every revision has one state.
func testEntriesOfTwoNodes(t *testing.T, d Database) {
	nodes := []store.Store{open(t, d), open(t, d)}
	reader := open(t, d)
	ctx := t.Context()
	states := map[int64][]store.Entry{}
	look := func() {
		before, err := reader.EntriesRevision(ctx)
		must(t, err)
		list, err := reader.ListEntries(ctx, "")
		must(t, err)
		after, err := reader.EntriesRevision(ctx)
		must(t, err)
		if after < before {
			t.Fatalf("the revision went from %d to %d", before, after)
		}
		if before != after {
			return // what was listed is somewhere in between
		}
		if known, ok := states[before]; !ok {
			states[before] = list
		} else if diff := cmp.Diff(known, list); diff != "" {
			t.Fatalf("two states of revision %d:\n%s", before, diff)
		}
	}
	const writers, changes = 8, 12
	done := make(chan struct{})
	go func() {
		defer close(done)
		race(writers, func(i int) {
			s := nodes[i%len(nodes)]
			for n := range changes {
				e := entry(fmt.Sprintf("w%d-%d", i, n), n)
				err := s.CreateEntry(ctx, e)
				if n%3 == 1 {
					err = errors.Join(err, s.UpdateEntry(ctx, e))
				}
				if n%3 == 2 {
					err = errors.Join(err, s.DeleteEntry(ctx, e.ID))
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}()
	for running := true; running; {
		if wake.Closed(done) {
			running = false
		}
		look()
	}
	look()
	last, err := reader.EntriesRevision(ctx)
	must(t, err)
	if want := int64(1 + writers*changes*5/3); last != want {
		t.Errorf("after all changes the revision is %d, want %d", last, want)
	}
	if list := states[last]; len(list) != writers*changes*2/3 {
		t.Errorf("%d entries are left", len(list))
	}
}

// testEntriesAndUsageAfterARestart: what was decided and used is there for the next process.
func testEntriesAndUsageAfterARestart(t *testing.T, d Database) {
	ctx := t.Context()
	first, err := d.Open(ctx)
	must(t, err)
	e := newEntry(t, first, entry("e1", 1))
	u, charged, err := first.ChargeUsage(ctx, used("a1", "2031-02-03", 1, 2, 3, 4), store.UsageLimit{})
	if err != nil || !charged {
		t.Fatal(charged, err)
	}
	revision, err := first.EntriesRevision(ctx)
	must(t, err)
	must(t, first.Close())
	second := open(t, d)
	check(t, "the entry", []store.Entry{e})(second.ListEntries(ctx, ""))
	check(t, "the revision", revision)(second.EntriesRevision(ctx))
	check(t, "the usage", []store.Usage{u})(second.ListUsage(ctx, "", "2031-02-03"))
}
