//go:build linux

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/open"
	"github.com/clawjail/clawjail/internal/weblogin"
)

const (
	accountDomain  = "bench.test"
	notesFile      = "checkpoints"
	accountCookies = 50
	// ledgerRounds is how many grants, intents and plain writes are timed, in turn.
	ledgerRounds = 400
	// groupCallers wait at the same time for groupRows records.
	groupCallers, groupRows = 512, 100_000
)

// identity measures what an operator session costs beside a clean one, and the parts of it that wait for the disk.
func (b *bench) identity(ctx context.Context) error {
	return errors.Join(b.injection(ctx, cold), b.ledger(ctx))
}

// warmInjection injects into browsers that run already, which is what a default installation does.
func (b *bench) warmInjection(ctx context.Context) error {
	if err := b.injection(ctx, warm); err != nil {
		return err
	}
	b.result.Figures["identity: inject 50 cookies, warm"].AtMost(10)
	return nil
}

// injection opens operator sessions with an account of fifty cookies.
func (b *bench) injection(ctx context.Context, size int) error {
	x, how := b.boxes[size], map[int]string{cold: "cold", warm: "warm"}[size]
	list := make([]cookies.Cookie, accountCookies)
	for n := range list {
		value := rand.Text() + rand.Text() + rand.Text() + rand.Text()
		list[n] = cookies.Cookie{Name: fmt.Sprintf("cookie%02d", n), Value: secret.New([]byte(value[:96])), Domain: "." + accountDomain,
			Path: "/", Expires: float64(time.Now().Add(24 * time.Hour).Unix()), Secure: n%2 == 0, HTTPOnly: n%3 == 0, SameSite: cookies.SameSiteLax}
	}
	if _, err := x.api.ImportLogin(ctx, "", accountDomain, weblogin.Login{Cookies: list}, op.AccountRules{}); err != nil {
		return err
	}
	_, err := b.inTurn(b.runs, 2, func(t times) error {
		issued, err := client.Call(ctx, x.api, op.IssueGrant(), op.NewGrant{Body: op.With(op.GrantRequest{Domains: []string{accountDomain}})})
		if err == nil && size == warm {
			err = x.poolFull(ctx)
		}
		if err != nil {
			return err
		}
		s, err := x.open(ctx, t, "identity: open with 50 cookies, "+how,
			api.OpenRequest{CredentialMode: session.ModeOperator, Domains: []string{accountDomain}, Grant: grant.ParseToken(issued.Token)})
		if err != nil {
			return err
		}
		t.add("identity: inject 50 cookies, "+how, milliseconds(s.Timing.Inject))
		if s.Injected != accountCookies {
			return fmt.Errorf("%d cookies were injected", s.Injected)
		}
		return x.api.Close(ctx, s.ID, true)
	})
	return err
}

// ledger measures one grant's use and one intent, each alone, next to a plain write that waits for the same disk; and how many
// records a second are written for many who wait.
func (b *bench) ledger(ctx context.Context) (err error) {
	l, err := newLedger(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	plain, err := os.Create(filepath.Join(l.dir, "plain"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, plain.Close()) }()
	const write, use, intent = "identity: plain write of 4 KiB and sync", "identity: one grant used", "identity: one audit intent"
	page := make([]byte, 4096)
	want := grant.Want{Tenant: store.DefaultTenant, Session: "s", Domains: []string{accountDomain}, Access: grant.AccessTools, Actor: "admin"}
	begin := func() error { _, err := l.log.Begin(ctx, intentOf()); return err }
	_, err = b.inTurn(ledgerRounds, 0, func(t times) error {
		token, _, err := l.grants.Issue(ctx, grant.Request{Tenant: store.DefaultTenant, Operator: "admin", Domains: []string{accountDomain}})
		if err != nil {
			return err
		}
		return errors.Join(
			t.timed(write, func() error { _, err := plain.Write(page); return errors.Join(err, plain.Sync()) }),
			t.timed(use, func() error { _, err := l.grants.Use(ctx, token, want); return err }),
			t.timed(intent, begin))
	})
	if err != nil {
		return err
	}
	b.result.Figures[use].AtMost(0.5)
	b.result.Figures[intent].AtMost(0.6)
	b.result.Beside("plain write of 4 KiB and sync", write, use, intent)
	began := time.Now()
	rows, err := atOnce(groupCallers, upTo(groupRows), func(int) error { return begin() })
	b.result.Value("identity: audit rows in groups", "rows/s", float64(rows)/time.Since(began).Seconds()).AtLeast(25_000)
	return err
}

func intentOf() audit.Intent {
	return audit.Intent{Action: "session.open", Tenant: store.DefaultTenant, Actor: "admin", Session: "s_0123456789abcdef",
		Detail: audit.NewDetail(audit.Fields{"mode": "operator", "grant_id": "g_0123456789", "domains": []string{accountDomain}})}
}

// ledger is an audit log and grants on a database of their own.
type ledger struct {
	dir    string
	rows   store.Store
	log    *audit.Log
	grants *grant.Issuer
}

func newLedger(ctx context.Context) (_ *ledger, err error) {
	dir, err := os.MkdirTemp(config.Default().DataDir, "bench-")
	if err != nil {
		return nil, err
	}
	l := &ledger{dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	if err := os.Mkdir(filepath.Join(dir, open.Folder), 0o700); err != nil {
		return nil, err
	}
	if l.rows, err = open.Open(ctx, "", dir); err != nil {
		return nil, err
	}
	key, err := checkpoint.LoadKey(filepath.Join(dir, "audit.key"))
	if err != nil {
		return nil, err
	}
	notes, err := checkpoint.OpenFile(filepath.Join(dir, notesFile))
	if err != nil {
		return nil, err
	}
	l.log, err = audit.Open(ctx, audit.Options{Store: l.rows, Node: "bench", SpillPath: filepath.Join(dir, "spill"), Key: key, Checkpoints: notes})
	if err != nil {
		return nil, errors.Join(err, notes.Close())
	}
	keys, err := grant.OpenKeyring(filepath.Join(dir, "grants.key"), time.Now)
	if err != nil {
		return nil, err
	}
	l.grants, err = grant.New(grant.Options{Store: l.rows, Keys: keys, Installation: "bench", RegistrableDomain: cookies.RegistrableDomain,
		Limits: grant.DefaultLimits(), Now: time.Now, Audit: func(ctx context.Context, _ grant.Event) error { return ctx.Err() }})
	return l, err
}

func (l *ledger) close() (err error) {
	if l.log != nil {
		err = l.log.Close(context.Background())
	}
	if l.rows != nil {
		err = errors.Join(err, l.rows.Close())
	}
	return errors.Join(err, checkpoint.Unprotect(filepath.Join(l.dir, notesFile)), os.RemoveAll(l.dir))
}
