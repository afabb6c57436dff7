//go:build linux

package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/client"
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
func (b *bench) identity(ctx context.Context, x *box) error {
	if err := b.injection(ctx, x, "cold", func() error { return nil }); err != nil {
		return fmt.Errorf("injection into a browser that has just started: %w", err)
	}
	dir, err := os.MkdirTemp(x.Config.DataDir, "bench-")
	if err != nil {
		return err
	}
	err = b.ledger(ctx, dir)
	return errors.Join(err, checkpoint.Unprotect(filepath.Join(dir, notesFile)), os.RemoveAll(dir))
}

// warmInjection injects into browsers that run already, which is what a default installation does.
func (b *bench) warmInjection(ctx context.Context) error {
	err := b.injection(ctx, b.warm, "warm", func() error { return b.warm.filled(ctx) })
	if err != nil {
		return fmt.Errorf("injection into a warm browser: %w", err)
	}
	b.result.AtMost("identity: inject 50 cookies, warm", 10)
	return nil
}

// filled waits until the pool is full, and the machine has nothing more to do.
func (x *box) filled(ctx context.Context) error {
	for limit := time.Now().Add(30 * time.Second); time.Now().Before(limit); time.Sleep(20 * time.Millisecond) {
		info, err := x.api.Info(ctx)
		if err != nil {
			return err
		}
		if info.Service.WarmReady == info.Service.WarmSize && info.Service.Closing == 0 {
			time.Sleep(200 * time.Millisecond) // a browser goes on for a moment after its first answer
			return nil
		}
	}
	return errors.New("the warm pool does not become full")
}

// injection opens operator sessions with an account of fifty cookies.
func (b *bench) injection(ctx context.Context, x *box, how string, ready func() error) error {
	list := make([]cookies.Cookie, accountCookies)
	for n := range list {
		var value [48]byte
		rand.Read(value[:]) // never fails, see its documentation
		list[n] = cookies.Cookie{Name: fmt.Sprintf("cookie%02d", n), Value: secret.New([]byte(hex.EncodeToString(value[:]))), Domain: "." + accountDomain,
			Path: "/", Expires: float64(time.Now().Add(24 * time.Hour).Unix()), Secure: n%2 == 0, HTTPOnly: n%3 == 0, SameSite: cookies.SameSiteLax}
	}
	if _, err := x.api.ImportLogin(ctx, "", accountDomain, weblogin.Login{Cookies: list}, op.AccountRules{}); err != nil {
		return err
	}
	var injections, opens []time.Duration
	for range b.runs + 2 {
		issued, err := client.Call(ctx, x.api, op.IssueGrant(), op.NewGrant{Body: op.With(op.GrantRequest{Domains: []string{accountDomain}})})
		if err != nil {
			return err
		}
		if err := ready(); err != nil {
			return err
		}
		began := time.Now()
		s, err := x.api.Open(ctx, api.OpenRequest{CredentialMode: session.ModeOperator, Domains: []string{accountDomain}, Grant: grant.ParseToken(issued.Token)})
		if err != nil {
			return err
		}
		opens = append(opens, time.Since(began))
		injections = append(injections, time.Duration(s.Timing.Inject*float64(time.Millisecond)))
		if s.Injected != accountCookies {
			return fmt.Errorf("%d cookies were injected", s.Injected)
		}
		if err := x.api.Close(ctx, s.ID, true); err != nil {
			return err
		}
	}
	b.result.Times("identity: open with 50 cookies, "+how, opens[2:]) // the first two fill the caches
	b.result.Times("identity: inject 50 cookies, "+how, injections[2:])
	return nil
}

// ledger measures one grant's use and one intent, each alone, next to a plain write that waits for the same disk.
func (b *bench) ledger(ctx context.Context, dir string) (err error) {
	if err := os.Mkdir(filepath.Join(dir, open.Folder), 0o700); err != nil {
		return err
	}
	db, err := open.Open(ctx, "", dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	log, grants, err := ledgerParts(ctx, db, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close(context.WithoutCancel(ctx))) }()
	plain, err := os.Create(filepath.Join(dir, "plain"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, plain.Close()) }()

	var writes, uses, intents []time.Duration
	timed := func(into *[]time.Duration, do func() error) error {
		began := time.Now()
		err := do()
		*into = append(*into, time.Since(began))
		return err
	}
	page := make([]byte, 4096)
	for range ledgerRounds {
		token, _, err := grants.Issue(ctx, grant.Request{Tenant: store.DefaultTenant, Operator: "admin", Domains: []string{accountDomain}})
		if err != nil {
			return err
		}
		want := grant.Want{Tenant: store.DefaultTenant, Session: "s", Domains: []string{accountDomain}, Access: grant.AccessTools, Actor: "admin"}
		if err := errors.Join(
			timed(&writes, func() error { _, err := plain.Write(page); return errors.Join(err, plain.Sync()) }),
			timed(&uses, func() error { _, err := grants.Use(ctx, token, want); return err }),
			timed(&intents, func() error { _, err := log.Begin(ctx, intentOf()); return err })); err != nil {
			return err
		}
	}
	b.result.Times("identity: plain write of 4 KiB and sync", writes)
	b.result.Times("identity: one grant used", uses)
	b.result.AtMost("identity: one grant used", 0.5)
	b.result.Times("identity: one audit intent", intents)
	b.result.AtMost("identity: one audit intent", 0.6)
	for _, ours := range []string{"identity: one grant used", "identity: one audit intent"} {
		b.result.Beside(ours, "identity: plain write of 4 KiB and sync", "plain write of 4 KiB and sync")
	}
	return b.groups(ctx, log)
}

func intentOf() audit.Intent {
	return audit.Intent{Action: "session.open", Tenant: store.DefaultTenant, Actor: "admin", Session: "s_0123456789abcdef",
		Detail: audit.NewDetail(audit.Fields{"mode": "operator", "grant_id": "g_0123456789", "domains": []string{accountDomain}})}
}

// groups measures how many records a second are written for many who wait.
func (b *bench) groups(ctx context.Context, log *audit.Log) error {
	var all sync.WaitGroup
	failures := make(chan error, groupCallers)
	began := time.Now()
	for range groupCallers {
		all.Go(func() {
			for range groupRows / groupCallers {
				if _, err := log.Begin(ctx, intentOf()); err != nil {
					failures <- err
					return
				}
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	close(failures)
	if err := <-failures; err != nil {
		return err
	}
	b.result.Value("identity: audit rows in groups", "rows/s", float64(groupRows/groupCallers*groupCallers)/took.Seconds())
	b.result.AtLeast("identity: audit rows in groups", 25_000)
	return nil
}

// ledgerParts makes an audit log and grants on a database.
func ledgerParts(ctx context.Context, db store.Store, dir string) (*audit.Log, *grant.Issuer, error) {
	key, err := checkpoint.LoadKey(filepath.Join(dir, "audit.key"))
	if err != nil {
		return nil, nil, err
	}
	notes, err := checkpoint.OpenFile(filepath.Join(dir, notesFile))
	if err != nil {
		return nil, nil, err
	}
	log, err := audit.Open(ctx, audit.Options{Store: db, Node: "bench", SpillPath: filepath.Join(dir, "spill"), Key: key, Checkpoints: notes})
	if err != nil {
		return nil, nil, errors.Join(err, notes.Close())
	}
	keys, err := grant.OpenKeyring(filepath.Join(dir, "grants.key"), time.Now)
	if err != nil {
		return nil, nil, err
	}
	grants, err := grant.New(grant.Options{Store: db, Keys: keys, Installation: "bench", RegistrableDomain: cookies.RegistrableDomain,
		Limits: grant.DefaultLimits(), Now: time.Now, Audit: func(ctx context.Context, _ grant.Event) error { return ctx.Err() }})
	return log, grants, err
}
