package session

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// shopper is an agent that the database knows.
func (a *accounts) shopper(t testing.TB) identity.Principal {
	t.Helper()
	if err := a.db.CreateAgent(t.Context(), store.Agent{ID: "a1", Tenant: store.DefaultTenant, Name: "shopper", CreatedAt: time.Now()}); err != nil {
		t.Fatal(err)
	}
	return agentIn(store.DefaultTenant, "a1")
}

// allow lets the shopper use the account of example.com.
func (a *accounts) allow(t testing.TB, change ...func(*grant.PermissionRequest)) grant.Permission {
	t.Helper()
	set, err := a.vault.Cookies(t.Context(), store.DefaultTenant, "example.com")
	if err != nil {
		t.Fatal(err)
	}
	r := grant.PermissionRequest{Tenant: store.DefaultTenant, Operator: "operator:o1", Agent: "a1", AgentName: "shopper", Domain: "example.com", Account: set.ID}
	for _, c := range change {
		c(&r)
	}
	p, _, err := a.issuer.Allow(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestAgentWithAPermissionOpensSessionsWithoutAGrant(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 1)
		by := a.shopper(t)
		a.refused(t, by, wanting(grant.Token{}), problem.AccountNotAllowed)
		p := a.allow(t)
		for range 2 {
			out, err := a.s.Open(t.Context(), by, wanting(grant.Token{}))
			if err != nil {
				t.Fatal(err)
			}
			row, err := a.db.Grant(t.Context(), out.Grant)
			if err != nil || row.UsedBy != out.ID || out.Injected != 2 {
				t.Errorf("opened %+v with %+v, %v", out, row, err)
			}
			a.mustClose(t, out.ID)
		}
		a.inOrder(t, "permitted", "intent session.open_operator default agent:a1", "lease", "use permissions", "create", "intent session.inject",
			"set cookies", "outcome session.open_operator ok")
		intents := a.steps("intent session.open_operator")
		if len(intents) != 2 || !strings.Contains(intents[1], `"permission_ids":["`+p.ID+`"]`) || !strings.Contains(intents[1], `"grant_id":"g_`) {
			t.Errorf("on record is %q", intents)
		}
		if done := a.steps("verify grant", "use grant"); len(done) > 0 {
			t.Errorf("a token was looked at: %q", done)
		}
		// A caller that sends a grant is judged by the grant, and people have no permissions.
		a.refused(t, by, wanting(grant.ParseToken("v4.public.x")), problem.GrantInvalid)
		a.refused(t, admin, wanting(grant.Token{}), problem.GrantMissing)
	})
}

func TestPermissionIsRefusedBeforeAnythingIsDone(t *testing.T) {
	for name, c := range map[string]struct {
		change func(t *testing.T, a *accounts, by *identity.Principal, r *OpenRequest)
		code   string
	}{
		"another agent":  {func(_ *testing.T, _ *accounts, by *identity.Principal, _ *OpenRequest) { by.ID = "a2" }, problem.AccountNotAllowed},
		"another tenant": {func(_ *testing.T, _ *accounts, by *identity.Principal, _ *OpenRequest) { by.Tenant = other }, problem.AccountNotAllowed},
		"a wider access": {func(_ *testing.T, _ *accounts, _ *identity.Principal, r *OpenRequest) { r.Access = "cdp" }, problem.AccountNotAllowed},
		"another domain": {func(_ *testing.T, _ *accounts, _ *identity.Principal, r *OpenRequest) {
			r.Domains = append(r.Domains, two)
		}, problem.AccountNotAllowed},
		"an account for nothing": {func(t *testing.T, a *accounts, _ *identity.Principal, _ *OpenRequest) {
			a.setScoped(t, store.DefaultTenant, "example.com", 1, nil)
		}, problem.GrantScope},
		"an account that was removed": {func(t *testing.T, a *accounts, _ *identity.Principal, _ *OpenRequest) {
			if err := a.vault.DeleteCookies(t.Context(), store.DefaultTenant, "example.com"); err != nil {
				t.Error(err)
			}
		}, problem.NotFound},
		"an account that was made again": {func(t *testing.T, a *accounts, _ *identity.Principal, _ *OpenRequest) {
			if err := a.vault.DeleteCookies(t.Context(), store.DefaultTenant, "example.com"); err != nil {
				t.Error(err)
			}
			a.set(t, store.DefaultTenant, "example.com", 1)
		}, problem.AccountNotAllowed},
		"a tenant that forbids it": {func(_ *testing.T, a *accounts, _ *identity.Principal, _ *OpenRequest) {
			a.fail["account permissions"] = problem.New(problem.Forbidden, "", "no")
		}, problem.Forbidden},
		"a tenant without accounts": {func(_ *testing.T, a *accounts, _ *identity.Principal, _ *OpenRequest) {
			a.fail["operator mode"] = problem.New(problem.Forbidden, "", "no")
		}, problem.Forbidden},
	} {
		t.Run(name, func(t *testing.T) {
			withAccounts(t, nil, func(t *testing.T, a *accounts) {
				a.set(t, store.DefaultTenant, "example.com", 1)
				by := a.shopper(t)
				a.allow(t)
				out, err := a.s.Open(t.Context(), by, wanting(grant.Token{}))
				if err != nil {
					t.Fatalf("it was no permission: %v", err)
				}
				a.mustClose(t, out.ID)
				r := wanting(grant.Token{})
				c.change(t, a, &by, &r)
				a.mu.Lock()
				a.log = nil
				a.mu.Unlock()
				a.refused(t, by, r, c.code)
				if done := a.steps("create", "lease", "use permissions", "intent", "decrypt"); len(done) > 0 {
					t.Errorf("before the refusal there was %q", done)
				}
				if events := a.steps("event session.open_operator refused"); len(events) != 1 {
					t.Errorf("on record is %q", events)
				}
			})
		})
	}
}

// An account that is logged in to again is the same one: who works every night goes on.
func TestPermissionOutlivesARefreshOfItsAccount(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 1)
		by := a.shopper(t)
		a.allow(t)
		a.set(t, store.DefaultTenant, "example.com", 1, cookie("new", ".example.com"))
		if out, err := a.s.Open(t.Context(), by, wanting(grant.Token{})); err != nil || out.Injected != 1 {
			t.Errorf("%+v, %v", out, err)
		}
	})
}

func TestTakingAPermissionBackEndsItsSessions(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 4)
		by := a.shopper(t)
		p := a.allow(t)
		held := a.mustOpenOperator(t)
		wide := a.allow(t, func(r *grant.PermissionRequest) { r.Access = grant.AccessCDP })
		devtools, err := a.s.Open(t.Context(), by, OpenRequest{CredentialMode: ModeOperator, Domains: []string{"example.com"}, Access: "cdp"})
		if err != nil || wide.ID != p.ID {
			t.Fatal(err)
		}
		open, err := a.s.Open(t.Context(), by, wanting(grant.Token{}))
		if err != nil {
			t.Fatal(err)
		}
		a.allow(t) // for tools only
		if n := a.s.EndPermitted(p.ID, grant.AccessTools); n != 1 {
			t.Errorf("%d sessions were too wide", n)
		}
		if gone, err := a.s.WaitGone(t.Context(), by, devtools.ID); err != nil || gone.Ended.Cause != CauseDisallowed {
			t.Errorf("%+v, %v", gone.Ended, err)
		}
		for _, step := range []string{"use permissions", "create", "set cookies"} {
			release := a.holding(step)
			before := a.count(step)
			refused := make(chan error)
			go func() {
				_, err := a.s.Open(t.Context(), by, wanting(grant.Token{}))
				refused <- err
			}()
			waitSteps(t, a, step, before+1)
			if err := a.issuer.Disallow(t.Context(), p.ID); err != nil {
				t.Fatal(err)
			}
			a.s.EndPermitted(p.ID, "")
			release()
			if err := <-refused; problem.CodeOf(err) != problem.AccountNotAllowed {
				t.Errorf("while it opens, at %s: %v", step, err)
			}
			p = a.allow(t)
		}
		gone, err := a.s.WaitGone(t.Context(), by, open.ID)
		if err != nil || gone.Ended == nil || gone.Ended.Cause != CauseDisallowed {
			t.Errorf("%+v, %v", gone.Ended, err)
		}
		if other, err := a.s.Get(t.Context(), admin, held.ID); err != nil || other.State != StateReady {
			t.Errorf("one with a grant is %s, %v", other.State, err)
		}
	})
}

// Another process has taken it back: this one is told nothing, and looks.
func TestPermissionThatIsGoneEndsItsSessionsEverywhere(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 1)
		by := a.shopper(t)
		p := a.allow(t, func(r *grant.PermissionRequest) { r.For = time.Minute })
		open, err := a.s.Open(t.Context(), by, wanting(grant.Token{}))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute) // of the bubble; that its time is over ends nothing
		a.mu.Lock()
		a.fail["permission stands"] = errors.New("the database is away")
		a.mu.Unlock()
		time.Sleep(time.Minute)
		if still, err := a.s.Get(t.Context(), by, open.ID); err != nil || still.State != StateReady {
			t.Fatalf("%s, %v", still.State, err)
		}
		if err := a.issuer.Disallow(t.Context(), p.ID); err != nil {
			t.Fatal(err)
		}
		a.mu.Lock()
		delete(a.fail, "permission stands")
		a.mu.Unlock()
		if gone, err := a.s.WaitGone(t.Context(), by, open.ID); err != nil || gone.Ended.Cause != CauseDisallowed {
			t.Errorf("%+v, %v", gone.Ended, err)
		}
	})
}

// A process that is told to look does not wait until it would look anyway.
func TestPermissionThatIsGoneEndsItsSessionsWhenThisProcessIsToldToLook(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 1)
		by := a.shopper(t)
		p := a.allow(t)
		open, err := a.s.Open(t.Context(), by, wanting(grant.Token{}))
		if err != nil {
			t.Fatal(err)
		}
		if err := a.issuer.Disallow(t.Context(), p.ID); err != nil {
			t.Fatal(err)
		}
		began := time.Now() // of the bubble
		synctest.Wait()
		if still, err := a.s.Get(t.Context(), by, open.ID); err != nil || still.State != StateReady {
			t.Fatalf("before it is told it is %s, %v", still.State, err)
		}
		a.s.Look()
		if gone, err := a.s.WaitGone(t.Context(), by, open.ID); err != nil || gone.Ended.Cause != CauseDisallowed || time.Since(began) >= permissionRecheck {
			t.Errorf("%+v, %v, after %s", gone.Ended, err, time.Since(began))
		}
	})
}

// Another process has narrowed it: sessions that are wider end here as well, and the others go on.
func TestPermissionThatIsNarrowedEndsWiderSessionsEverywhere(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 2)
		by := a.shopper(t)
		a.allow(t, func(r *grant.PermissionRequest) { r.Access = grant.AccessCDP })
		tools, err := a.s.Open(t.Context(), by, wanting(grant.Token{}))
		if err != nil {
			t.Fatal(err)
		}
		devtools, err := a.s.Open(t.Context(), by, OpenRequest{CredentialMode: ModeOperator, Domains: []string{"example.com"}, Access: "cdp"})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * permissionRecheck) // of the bubble
		if still, err := a.s.Get(t.Context(), by, devtools.ID); err != nil || still.State != StateReady {
			t.Fatalf("before it is narrowed it is %s, %v", still.State, err)
		}
		a.allow(t)
		if gone, err := a.s.WaitGone(t.Context(), by, devtools.ID); err != nil || gone.Ended.Cause != CauseDisallowed {
			t.Errorf("%+v, %v", gone.Ended, err)
		}
		if still, err := a.s.Get(t.Context(), by, tools.ID); err != nil || still.State != StateReady {
			t.Errorf("the other is %s, %v", still.State, err)
		}
	})
}

func TestPermissionForOneSessionOpensOneOfManySessions(t *testing.T) {
	const racers = 64
	withAccounts(t, func(o *Options) { o.Sessions.Max = 4 * racers }, func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 2*racers) // so that leases decide nothing
		by := a.shopper(t)
		one := 1
		a.allow(t, func(r *grant.PermissionRequest) { r.Times = &one })
		release := a.holding("use permissions")
		var racing sync.WaitGroup
		codes := make([]string, racers)
		for n := range racers {
			racing.Go(func() {
				_, err := a.s.Open(t.Context(), by, wanting(grant.Token{}))
				codes[n] = problem.CodeOf(err)
			})
		}
		waitSteps(t, a, "use permissions", racers)
		release()
		racing.Wait()
		slices.Sort(codes)
		if codes[0] != "" || codes[1] != problem.AccountNotAllowed || codes[racers-1] != problem.AccountNotAllowed {
			t.Errorf("%q", codes)
		}
		if a.count("create") != 1 || a.count("release") != racers-1 {
			t.Errorf("%d jails were made, and the leases of %d given back", a.count("create"), a.count("release"))
		}
	})
}

// An opening that waits for a person wants no browser yet: the pool fills for everybody else.
func TestPoolFillsWhileAPersonIsAsked(t *testing.T) {
	var asked chan struct{}
	var answer chan error
	withAccounts(t, func(o *Options) {
		asked, answer = make(chan struct{}), make(chan error) // of the bubble
		o.WarmPool.Size = 1
		o.Accounts.Ask = func(context.Context, identity.Principal, string, grant.Access) error {
			close(asked)
			return <-answer
		}
	}, func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 1)
		by := a.shopper(t)
		a.allow(t, func(r *grant.PermissionRequest) { r.Ask = grant.AskAlways })
		refused := make(chan error)
		go func() {
			_, err := a.s.Open(t.Context(), by, wanting(grant.Token{}))
			refused <- err
		}()
		<-asked
		for range 2 {
			if out := mustOpen(t, a.s, OpenRequest{}); !out.Warm {
				t.Error("while a person is asked, the pool is empty")
			}
			time.Sleep(2 * poolQuiet) // of the bubble
			synctest.Wait()
		}
		answer <- grant.NotAllowed("example.com", "a person has refused it")
		if err := <-refused; problem.CodeOf(err) != problem.AccountNotAllowed {
			t.Errorf("%v", err)
		}
	})
}

func TestPermissionAsksAPersonBeforeItIsUsed(t *testing.T) {
	var p grant.Permission
	var asked []string
	answer := func(context.Context) error { return errors.New("not set") }
	withAccounts(t, func(o *Options) {
		o.Accounts.Ask = func(ctx context.Context, by identity.Principal, domain string, access grant.Access) error {
			asked = append(asked, by.Actor()+" "+domain+" "+string(access))
			return answer(ctx)
		}
	}, func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 1)
		by := a.shopper(t)
		p = a.allow(t, func(r *grant.PermissionRequest) { r.Ask = grant.AskFirst })
		answer = func(context.Context) error { return grant.NotAllowed("example.com", "a person has refused it") }
		a.refused(t, by, wanting(grant.Token{}), problem.AccountNotAllowed)
		answer = func(context.Context) error { return nil } // said so, and approved nothing
		a.refused(t, by, wanting(grant.Token{}), problem.AccountNotAllowed)
		answer = func(ctx context.Context) error { return a.issuer.Approve(ctx, p.ID) }
		for range 2 {
			out, err := a.s.Open(t.Context(), by, wanting(grant.Token{}))
			if err != nil {
				t.Fatal(err)
			}
			a.mustClose(t, out.ID)
		}
		if want := slices.Repeat([]string{"agent:a1 example.com tools"}, 3); !slices.Equal(asked, want) {
			t.Errorf("asked %q", asked)
		}
		// Without a way to ask a person, a permission that has to be asked about is refused.
		a.s.Accounts.Ask = nil
		p = a.allow(t, func(r *grant.PermissionRequest) { r.Ask = grant.AskAlways })
		a.refused(t, by, wanting(grant.Token{}), problem.AccountNotAllowed)
	})
}
