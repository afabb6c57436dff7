package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/postgres"
	"github.com/clawjail/clawjail/internal/store/postgres/pgtest"
)

// following is what a process is told.
type following struct {
	t     *testing.T
	told  chan store.Changed
	ended chan error
	stop  context.CancelFunc
}

func follow(t *testing.T, db *postgres.DB) *following {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	f := &following{t: t, told: make(chan store.Changed, 100), ended: make(chan error, 1), stop: stop}
	go func() { f.ended <- db.Follow(ctx, func(c store.Changed) { f.told <- c }) }()
	t.Cleanup(stop)
	f.want("the beginning", store.ChangedUnknown)
	return f
}

// want checks what is told next.
func (f *following) want(after string, want store.Changed) {
	f.t.Helper()
	select {
	case got := <-f.told:
		if got != want {
			f.t.Errorf("after %s %q is told, want %q", after, got, want)
		}
	case err := <-f.ended:
		f.t.Fatalf("after %s it has ended: %v", after, err)
	case <-time.After(time.Minute):
		f.t.Fatalf("after %s nothing is told", after)
	}
}

func (f *following) end() error {
	f.t.Helper()
	select {
	case err := <-f.ended:
		return err
	case <-time.After(time.Minute):
		f.t.Fatal("it goes on")
		return nil
	}
}

func TestOtherProcessesAreToldOfChanges(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
	server := pgtest.Start(t)
	url := server.Database(t)
	first, second := open(t, url), open(t, url)
	if err := pgtest.Exec(t.Context(), url, `CREATE SCHEMA other`); err != nil {
		t.Fatal(err)
	}
	others := open(t, url+"&search_path=other")
	own, there := follow(t, first), follow(t, others)

	at, hash := tenant("").CreatedAt, func(b byte) []byte { h := make([]byte, 32); h[0] = b; return h }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	// Everything is told in its order, so what is told of a use of a key would be in the way.
	must(second.CreateAgent(t.Context(), store.Agent{ID: "a1", Tenant: store.DefaultTenant, Name: "bot", CreatedAt: at}))
	must(second.CreateToken(t.Context(), store.Token{ID: "t1", Agent: "a1", Hash: hash(1), Hint: "cj", CreatedAt: at}))
	must(second.TouchToken(t.Context(), "t1", at))
	must(second.CreateOperator(t.Context(), store.Operator{ID: "o1", Name: "ops", Tenant: store.DefaultTenant, Role: "operator", KeyHash: hash(2), KeyHint: "cj", CreatedAt: at}))
	must(second.CreateSignIn(t.Context(), store.SignIn{ID: "s1", Hash: hash(3), Owner: store.Owner{Operator: "o1"}, Method: "key", CreatedAt: at, UsedAt: at, ExpiresAt: at.Add(time.Hour)}))
	must(second.TouchSignIn(t.Context(), "s1", at.Add(time.Second)))
	for _, c := range []struct {
		what string
		do   error
		want store.Changed
	}{
		{"a node that starts", second.StartNode(t.Context(), store.Node{Name: "n", Run: "r"}, "", time.Hour), store.ChangedNodes},
		{"a word of it, and a rule", errors.Join(second.SeeNode(t.Context(), "n", "r"), second.CreateEntry(t.Context(), ruleEntry("e1"))), store.ChangedEntries},
		{"the end of the rule", second.DeleteEntry(t.Context(), "e1"), store.ChangedEntries},
		{"a token that is revoked", second.RevokeToken(t.Context(), "t1", at), store.ChangedKeys},
		{"a token that ends earlier", second.ExpireToken(t.Context(), "t1", at), store.ChangedKeys},
		{"an agent that is revoked", second.RevokeAgent(t.Context(), "a1", at), store.ChangedKeys},
		{"an operator that is revoked", second.RevokeOperator(t.Context(), "o1", at), store.ChangedKeys},
		{"a sign-in that ends", second.DeleteSignIn(t.Context(), "s1"), store.ChangedSignIns},
		{"a node that is to drain", second.DrainNode(t.Context(), "n", true), store.ChangedNodes},
		{"a node that is lost", second.LoseNode(t.Context(), "n", "r", 0), store.ChangedNodes},
		{"a wrong key", second.AddGuesses(t.Context(), []store.Guess{{Place: "192.0.2.1/32", Left: time.Second}}, time.Minute), store.ChangedGuesses},
		{"a change of its own", first.CreateEntry(t.Context(), ruleEntry("e2")), store.ChangedEntries},
	} {
		must(c.do)
		own.want(c.what, c.want)
	}
	must(second.CreateEntry(t.Context(), store.Entry{ID: "e3", Kind: "rule", Tenant: store.DefaultTenant, Agent: "a1", Body: []byte(`{}`), CreatedAt: at}))
	own.want("a rule of an agent", store.ChangedEntries)
	must(second.DeleteAgent(t.Context(), "a1")) // with its rule and its token
	both := map[store.Changed]bool{}
	for !both[store.ChangedEntries] || !both[store.ChangedKeys] {
		select {
		case got := <-own.told:
			both[got] = true
		case <-time.After(time.Minute):
			t.Fatalf("of the removal of an agent %v is told", both)
		}
	}

	// Another schema of the same database has changes of its own.
	must(others.CreateEntry(t.Context(), ruleEntry("e1")))
	there.want("a rule of its own", store.ChangedEntries)
	there.stop()
	if err := there.end(); err != nil {
		t.Errorf("it ends with %v", err)
	}

	server.Crash(t)
	if err := own.end(); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("without a server it ends with %v", err)
	}
	server.Go(t)
	follow(t, first).stop()
}
