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
)

// identity measures what an operator session costs beside a clean one, and the parts of it that wait for the disk.
func (b *bench) identity(ctx context.Context) {
	check(attempt(func() { b.injection(ctx, cold) }), attempt(func() { b.waits(ctx) }))
}

// warmInjection injects into browsers that run already, which is what a default installation does.
func (b *bench) warmInjection(ctx context.Context) {
	b.injection(ctx, warm)
	b.result.Figures["identity: inject 50 cookies, warm"].AtMost(10)
}

func coldOrWarm(size int) string { return map[int]string{cold: "cold", warm: "warm"}[size] }

// injection opens operator sessions with an account of fifty cookies.
func (b *bench) injection(ctx context.Context, size int) {
	x, how := b.boxes[size], coldOrWarm(size)
	list := make([]cookies.Cookie, accountCookies)
	for n := range list {
		value := rand.Text() + rand.Text() + rand.Text() + rand.Text()
		list[n] = cookies.Cookie{Name: fmt.Sprintf("cookie%02d", n), Value: secret.New([]byte(value[:96])), Domain: "." + accountDomain,
			Path: "/", Expires: float64(time.Now().Add(24 * time.Hour).Unix()), Secure: n%2 == 0, HTTPOnly: n%3 == 0, SameSite: cookies.SameSiteLax}
	}
	must(x.api.ImportLogin(ctx, "", accountDomain, weblogin.Login{Cookies: list}, op.AccountRules{}))
	b.inTurn(b.runs, 2, func(t times) {
		issued := must(client.Call(ctx, x.api, op.IssueGrant(), op.NewGrant{Body: op.With(op.GrantRequest{Domains: []string{accountDomain}})}))
		if size == warm {
			x.poolFull(ctx)
		}
		var s session.Session
		t.timed("identity: open with 50 cookies, "+how, func() {
			s = must(x.api.Open(ctx, session.OpenRequest{CredentialMode: session.ModeOperator, Domains: []string{accountDomain}, Grant: grant.ParseToken(issued.Token)}))
		})
		t.add("identity: inject 50 cookies, "+how, milliseconds(s.Timing.Inject))
		if s.Injected != accountCookies {
			check(fmt.Errorf("%d cookies were injected", s.Injected))
		}
		x.gone(ctx, s.ID)
	})
}

// waits measures one grant's use and one intent, each alone, next to a plain write that waits for the same disk; and how many
// records a second are written for many who wait. Those come first: after them the database's log has its size, as that of any
// installation that has run for a while, and no sync waits for a file to grow.
func (b *bench) waits(ctx context.Context) {
	l := b.newLedger(ctx)
	plain := must(os.Create(filepath.Join(l.dir, "plain")))
	defer plain.Close()
	const write, use, intent = "identity: plain write of 4 KiB and sync", "identity: one grant used", "identity: one audit intent"
	page := make([]byte, 4096)
	want := grant.Want{Tenant: store.DefaultTenant, Session: "s", Domains: []string{accountDomain}, Access: grant.AccessTools, Actor: "admin"}
	begin := func() {
		must(l.log.Begin(ctx, audit.Intent{Action: "session.open", Tenant: store.DefaultTenant, Actor: "admin", Session: "s_0123456789abcdef",
			Detail: audit.NewDetail(audit.Fields{"mode": "operator", "grant_id": "g_0123456789", "domains": []string{accountDomain}})}))
	}
	began := time.Now()
	rows := atOnce(512, upTo(100_000), func(int) { begin() })
	b.result.Value("identity: audit rows in groups", "rows/s", float64(rows)/time.Since(began).Seconds()).AtLeast(25_000)
	b.inTurn(400, 0, func(t times) {
		token, _, err := l.grants.Issue(ctx, grant.Request{Tenant: store.DefaultTenant, Operator: "admin", Domains: []string{accountDomain}})
		check(err)
		t.timed(write, func() {
			must(plain.Write(page))
			check(plain.Sync())
		})
		t.timed(use, func() { must(l.grants.Use(ctx, token, want)) })
		t.timed(intent, begin)
	})
	b.result.Figures[use].AtMost(0.5)
	b.result.Figures[intent].AtMost(0.6)
	b.result.Beside("plain write of 4 KiB and sync", write, use, intent)
	b.result.Value("identity: one grant used, to a plain write and sync", "×", b.result.Figures[use].P50/b.result.Figures[write].P50).AtMost(2)
}

// ledger is an audit log and grants on a database of their own.
type ledger struct {
	dir    string
	log    *audit.Log
	grants *grant.Issuer
}

// newLedger makes one that ends with the part.
func (b *bench) newLedger(ctx context.Context) *ledger {
	dir := must(os.MkdirTemp(config.Default().DataDir, "bench-"))
	b.atEnd(func() error {
		return errors.Join(checkpoint.Unprotect(filepath.Join(dir, notesFile)), os.RemoveAll(dir))
	})
	check(os.Mkdir(filepath.Join(dir, open.Folder), 0o700))
	rows := must(open.Open(ctx, "", dir))
	b.atEnd(rows.Close)
	log := must(audit.Open(ctx, audit.Options{Store: rows, Node: "bench", SpillPath: filepath.Join(dir, "spill"),
		Key: must(checkpoint.LoadKey(filepath.Join(dir, "audit.key"))), Checkpoints: must(checkpoint.OpenFile(filepath.Join(dir, notesFile)))}))
	b.atEnd(func() error { return log.Close(context.Background()) })
	return &ledger{dir, log, must(grant.New(grant.Options{Store: rows, Keys: must(grant.OpenKeyring(filepath.Join(dir, "grants.key"), time.Now)),
		Installation: "bench", RegistrableDomain: cookies.RegistrableDomain, Limits: grant.DefaultLimits(), Now: time.Now,
		Audit: unwritten{}}))}
}

// unwritten is an audit log that keeps nothing.
type unwritten struct{ audit.Records }

// Begin implements audit.Records.
func (unwritten) Begin(ctx context.Context, _ audit.Intent) (audit.Pending, error) {
	return unwritten{}, ctx.Err()
}

// Note implements audit.Records.
func (unwritten) Note(audit.Event) {}

// End implements audit.Pending.
func (unwritten) End(audit.Outcome) {}
