package session

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clawjail/clawjail/internal/base/pace"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// sessionID is what ids look like.
var sessionID = regexp.MustCompile(`^s_[a-z0-9]{16}$`)

func TestOpenedSessionIsReadyAndMayUseTheGateway(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		out := mustOpen(t, svc, OpenRequest{Label: "mine"})
		if out.State != StateReady || out.Browser != "shell" || out.BrowserVersion != "Fake/1" || out.Warm || out.Label != "mine" ||
			out.Template != "browser" || out.Timing.Clone != 1 || !sessionID.MatchString(out.ID) {
			t.Errorf("opened %+v", out)
		}
		j := w.all()[jail.Name(out.Jail)]
		if j == nil || !w.isOpen(j) {
			t.Fatal("its jail may not use the gateway")
		}
		if who := w.knownAs(j.addr); who.Session != out.ID || string(who.Jail) != out.Jail || !reflect.DeepEqual(who.Policy, svc.Policy) {
			t.Errorf("the gateway knows it as %+v", who)
		}
		w.before(t, "gateway admit", "driver admit")
		if j.spec.Kind != jail.KindBrowser || j.spec.Lifetime != jail.LifetimeOwner || j.spec.Program.Wire != jail.WirePipe34 ||
			j.spec.Program.Argv[0] != "/opt/shell" {
			t.Errorf("the jail was made from %+v", j.spec)
		}
		if !out.ExpiresAt.Equal(out.Ready.Add(svc.Sessions.TTL)) || !out.IdleUntil.Equal(out.Ready.Add(svc.Sessions.Idle)) {
			t.Errorf("it expires %v and is idle %v", out.ExpiresAt, out.IdleUntil)
		}
		if got := mustGet(t, svc, out.ID); got.Usage == nil || got.Usage.Tasks != 42 || got.Usage.CPU != 1.5 || len(got.Usage.LimitsHit) != 1 {
			t.Errorf("its usage is %+v", got.Usage)
		}
	})
}

// Each step of an opening fails in turn, with a code that must reach the caller, and once by a caller who leaves.
func TestFailedOpenLeavesNothing(t *testing.T) {
	for _, step := range []string{"template", "create", "gateway admit", "driver admit", "connect"} {
		t.Run(step, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
				w.failing(step, problem.New(problem.DiskFull, "", "no room"))
				if step == "connect" {
					// It ended before it answered: the driver knows how.
					release := w.holding("connect")
					go func() {
						synctest.Wait()
						for name := range w.all() {
							w.die(string(name), jail.Exit{Cause: jail.CauseMemory, Signal: "killed", Hit: []jail.LimitName{jail.LimitMemory}})
						}
						release()
					}()
				}
				_, err := svc.Open(t.Context(), admin, OpenRequest{})
				want := problem.DiskFull
				if step == "connect" {
					want = problem.LimitMemory
				}
				wantCode(t, err, want)
				w.nothingLeft(t)
				all, _ := svc.List(t.Context(), admin, "", true)
				if len(all) != 1 || all[0].State != StateFailed || all[0].Ended.Cause != CauseFailed || all[0].Ended.Message == "" {
					t.Errorf("it is listed as %+v", all)
				}
			})
		})
		if step == "gateway admit" {
			continue // it does not wait for anybody
		}
		t.Run(step+" cancelled", func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
				defer w.holding(step)()
				ctx, cancel := context.WithCancel(t.Context())
				go func() {
					synctest.Wait()
					cancel()
				}()
				if _, err := svc.Open(ctx, admin, OpenRequest{}); !errors.Is(err, context.Canceled) {
					t.Errorf("the error is %v", err)
				}
				w.nothingLeft(t)
			})
		})
	}
}

func TestABrowserThatDoesNotObeyItsPoliciesOpensNoSession(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		mustOpen(t, svc, OpenRequest{Browser: "full"})
		w.failing("administered", problem.New(problem.JailFailed, "", "it opened a local file"))
		_, err := svc.Open(t.Context(), admin, OpenRequest{Browser: "full"})
		wantCode(t, err, problem.JailFailed)
		mustOpen(t, svc, OpenRequest{Browser: "shell"}) // it reads none
	})
}

func TestBrowserThatDoesNotAnswerIsGivenUp(t *testing.T) {
	for slow, want := range map[pace.Pace]time.Duration{1: connectLimit, 3: 3 * connectLimit, 900: 12 * connectLimit} {
		inBubble(t, atPace(slow), func(t *testing.T, w *fixture, svc *Service) {
			defer w.holding("connect")()
			began := time.Now()
			_, err := svc.Open(t.Context(), admin, OpenRequest{})
			wantCode(t, err, problem.Timeout)
			if took := time.Since(began); took != want {
				t.Errorf("at the pace %v it took %s, want %s", slow, took, want)
			}
			if p, _ := problem.As(err); !strings.Contains(p.Message, want.String()) {
				t.Errorf("it does not say how long it was waited: %q", p.Message)
			}
			w.nothingLeft(t)
		})
	}
}

// atPace has the machine be so slow.
func atPace(p pace.Pace) func(*Options) {
	return func(o *Options) { o.Pace = func(context.Context) pace.Pace { return p } }
}

func TestASlowMachinesBrowserIsWaitedFor(t *testing.T) {
	for _, step := range []string{"connect", "administered"} {
		for slow, want := range map[pace.Pace]string{1: problem.Timeout, 3: ""} {
			inBubble(t, atPace(slow), func(t *testing.T, w *fixture, svc *Service) {
				release := sync.OnceFunc(w.holding(step))
				defer release()
				time.AfterFunc(2*connectLimit, release)
				_, err := svc.Open(t.Context(), admin, OpenRequest{Browser: "full"})
				wantCode(t, err, want)
			})
		}
	}
}

func TestLastWordsOfABrowserAreInTheError(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		w.stderr = "one\ncannot find \x1b[31mlibnss3.so\n"
		w.failing("connect", errors.New("eof"))
		release := w.holding("connect")
		go func() {
			synctest.Wait()
			for name := range w.all() {
				w.die(string(name), jail.Exit{Code: 127, Cause: jail.CauseExited})
			}
			release()
		}()
		_, err := svc.Open(t.Context(), admin, OpenRequest{})
		wantCode(t, err, problem.JailFailed)
		if p, _ := problem.As(err); !strings.Contains(p.Message, "status 127") || !strings.Contains(p.Message, "cannot find \uFFFD[31mlibnss3.so") {
			t.Errorf("the message is %q", p.Message)
		}
	})
}

func TestNoMoreSessionsThanConfigured(t *testing.T) {
	inBubble(t, func(o *Options) { o.Sessions.Max = 2 }, func(t *testing.T, w *fixture, svc *Service) {
		first := mustOpen(t, svc, OpenRequest{})
		mustOpen(t, svc, OpenRequest{})
		_, err := svc.Open(t.Context(), admin, OpenRequest{})
		wantCode(t, err, problem.TooManySessions)
		if w.count("create") != 2 {
			t.Error("a jail was made for a session that was refused")
		}
		if _, err := svc.Close(t.Context(), admin, first.ID); err != nil {
			t.Fatal(err)
		}
		mustOpen(t, svc, OpenRequest{}) // its place is free at once
	})
}

func TestNoTenantAndNoAgentTakesAllPlaces(t *testing.T) {
	open := func(t *testing.T, svc *Service, by identity.Principal, tenant string) error {
		_, err := svc.Open(t.Context(), by, OpenRequest{Tenant: tenant})
		return err
	}
	many := func(t *testing.T, svc *Service, by identity.Principal, tenant string) (n int, err error) {
		for n < 20 {
			if err = open(t, svc, by, tenant); err != nil {
				return n, err
			}
			n++
		}
		return n, nil
	}
	bot, twin := agentIn("a", "bot"), agentIn("a", "twin")
	for _, test := range []struct{ max, tenants, agent, others, next int }{
		{10, 2, 6, 2, 2}, // 8 of tenant a, 6 of them of one agent
		{4, 3, 2, 1, 1},
		{2, 2, 1, 0, 1},
		{1, 2, 1, 0, 0}, // one place cannot be divided
		{10, 1, 8, 2, 0},
	} {
		t.Run(fmt.Sprintf("%d places of %d tenants", test.max, test.tenants), func(t *testing.T) {
			inBubble(t, func(o *Options) { o.Sessions.Max = test.max }, func(t *testing.T, w *fixture, svc *Service) {
				w.tenants = test.tenants
				for _, turn := range []struct {
					who    string
					by     identity.Principal
					tenant string
					want   int
					key    string
				}{{"the agent", bot, "a", test.agent, "quotas.agent"}, {"its people", admin, "a", test.others, "quotas.tenant"}, {"the next tenant", admin, "b", test.next, "sessions.max"}} {
					n, err := many(t, svc, turn.by, turn.tenant)
					wantCode(t, err, problem.TooManySessions)
					if n != turn.want {
						t.Errorf("%s got %d, want %d (%v)", turn.who, n, turn.want, err)
					}
					if p, _ := problem.As(err); test.max == 10 && test.tenants == 2 && !strings.Contains(p.Hint, turn.key) {
						t.Errorf("%s is told: %s", turn.who, p.Hint)
					}
				}
			})
		})
	}
	inBubble(t, func(o *Options) { o.Sessions.Max = 10 }, func(t *testing.T, w *fixture, svc *Service) {
		w.tenants = 2
		_, err := many(t, svc, bot, "a")
		wantCode(t, err, problem.TooManySessions)
		if err := open(t, svc, twin, "a"); err != nil {
			t.Errorf("what one agent holds is counted for another: %v", err)
		}
	})
}

// Sessions that one tenant opens and closes faster than they can be removed hold up that tenant.
func TestOneTenantsClosedSessionsDoNotStopTheOthers(t *testing.T) {
	inBubble(t, func(o *Options) { o.Sessions.Max = 4 }, func(t *testing.T, w *fixture, svc *Service) {
		w.tenants = 2
		defer w.holding("destroy")()
		flood := func(tenant string) (n int, err error) {
			for ; n < 20; n++ {
				out, err := svc.Open(t.Context(), admin, OpenRequest{Tenant: tenant})
				if err == nil {
					_, err = svc.Close(t.Context(), admin, out.ID)
				}
				if err != nil {
					return n, err
				}
			}
			return n, nil
		}
		n, err := flood("a")
		wantCode(t, err, problem.TooManySessions)
		if m, _ := flood("b"); n != 4 || m == 0 {
			t.Errorf("tenant a had %d, and then tenant b %d", n, m)
		}
	})
}

func TestOpeningFasterThanRemovingIsBounded(t *testing.T) {
	inBubble(t, func(o *Options) { o.Sessions.Max = 2 }, func(t *testing.T, w *fixture, svc *Service) {
		release := w.holding("destroy")
		var err error
		for n := 0; n < 10 && err == nil; n++ {
			var out Session
			if out, err = svc.Open(t.Context(), admin, OpenRequest{}); err == nil {
				_, err = svc.Close(t.Context(), admin, out.ID)
			}
		}
		wantCode(t, err, problem.TooManySessions)
		if w.limit > 4 {
			t.Errorf("%d jails were there at once", w.limit)
		}
		release()
	})
}

// The memory and the processor of the host are everybody's: an agent may have less of them than the configuration says.
func TestAnAgentNarrowsLimitsAndWidensNone(t *testing.T) {
	number := func(n int) *int { return &n }
	cores := func(n float64) *float64 { return &n }
	bot := agentIn("default", "bot")
	for field, wider := range map[string]LimitsRequest{
		"memory": {Memory: "1GiB"}, "cpu": {CPU: cores(2.5)}, "tasks": {Tasks: number(513)}, "disk": {Disk: "512MiB"},
		"shared_memory": {SHM: "512MiB"}, "files": {Files: number(8193)},
	} {
		inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
			_, err := svc.Open(t.Context(), bot, OpenRequest{Limits: wider})
			wantCode(t, err, problem.BadLimit)
			if err == nil || !strings.Contains(err.Error(), "limits."+field) {
				t.Errorf("the error does not name %s: %v", field, err)
			}
			if w.count("create") != 0 {
				t.Errorf("%s: a jail was made", field)
			}
			mustOpen(t, svc, OpenRequest{Limits: wider}) // an operator may
		})
	}
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		for _, narrower := range []LimitsRequest{{}, {Memory: "512MiB", CPU: cores(0.5), Tasks: number(100)}, {Memory: "768MiB"}} {
			if _, err := svc.Open(t.Context(), bot, OpenRequest{Limits: narrower}); err != nil {
				t.Errorf("%+v: %v", narrower, err)
			}
		}
	})
}

func TestRequestsAreValidatedBeforeAnythingIsMade(t *testing.T) {
	number := func(n int) *int { return &n }
	cores := func(n float64) *float64 { return &n }
	nan := 0.0
	for name, test := range map[string]struct {
		request OpenRequest
		code    string
		field   string
	}{
		"operator without domain": {OpenRequest{CredentialMode: "operator"}, problem.BadRequest, "domains"},
		"operator with a suffix":  {OpenRequest{CredentialMode: "operator", Domains: []string{"co.uk"}}, problem.BadRequest, "domains[0]"},
		"operator with a host":    {OpenRequest{CredentialMode: "operator", Domains: []string{"www.example.com"}}, problem.BadRequest, "example.com"},
		"operator, domain twice":  {OpenRequest{CredentialMode: "operator", Domains: []string{"example.com", "Example.com"}}, problem.BadRequest, "domains[1]"},
		"accounts without a mode": {OpenRequest{Domains: []string{"example.com"}}, problem.BadRequest, "credential_mode"},
		"unknown access":          {OpenRequest{Access: "root"}, problem.BadRequest, "access"},
		"unknown mode":            {OpenRequest{CredentialMode: "root"}, problem.BadRequest, "credential_mode"},
		"unknown recording":       {OpenRequest{Record: "all"}, problem.BadRequest, "record"},
		"unknown browser":         {OpenRequest{Browser: "firefox"}, problem.BadRequest, "browser"},
		"template with a path":    {OpenRequest{Template: "../browser"}, problem.BadTemplate, "template"},
		"label with an escape":    {OpenRequest{Label: "a\x1b[2J"}, problem.BadRequest, "label"},
		"label too long":          {OpenRequest{Label: strings.Repeat("é", maxLabel+1)}, problem.BadRequest, "label"},
		"ttl zero":                {OpenRequest{TTL: "0s"}, problem.BadLimit, "ttl"},
		"ttl beyond the most":     {OpenRequest{TTL: "9h"}, problem.BadLimit, "ttl"},
		"idle negative":           {OpenRequest{Idle: "-1s"}, problem.BadLimit, "idle"},
		"ttl not a time":          {OpenRequest{TTL: "soon"}, problem.BadRequest, "ttl"},
		"disk not a size":         {OpenRequest{Limits: LimitsRequest{Disk: "lots"}}, problem.BadLimit, "limits.disk"},
		"memory zero":             {OpenRequest{Limits: LimitsRequest{Memory: "0"}}, problem.BadLimit, "limits.memory"},
		"memory too much":         {OpenRequest{Limits: LimitsRequest{Memory: "2TiB"}}, problem.BadLimit, "limits.memory"},
		"disk zero":               {OpenRequest{Limits: LimitsRequest{Disk: "0"}}, problem.BadLimit, "limits.disk"},
		"shared memory zero":      {OpenRequest{Limits: LimitsRequest{SHM: "0"}}, problem.BadLimit, "limits.shared_memory"},
		"tasks zero":              {OpenRequest{Limits: LimitsRequest{Tasks: number(0)}}, problem.BadLimit, "limits.tasks"},
		"files negative":          {OpenRequest{Limits: LimitsRequest{Files: number(-1)}}, problem.BadLimit, "limits.files"},
		"processor zero":          {OpenRequest{Limits: LimitsRequest{CPU: cores(0)}}, problem.BadLimit, "limits.cpu"},
		"processor not a number":  {OpenRequest{Limits: LimitsRequest{CPU: cores(nan / nan)}}, problem.BadLimit, "limits.cpu"},
		"processor beyond an int": {OpenRequest{Limits: LimitsRequest{CPU: cores(1e300)}}, problem.BadLimit, "limits.cpu"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
				_, err := svc.Open(t.Context(), admin, test.request)
				wantCode(t, err, test.code)
				if err == nil || !strings.Contains(err.Error(), test.field) {
					t.Errorf("the error does not name %s: %v", test.field, err)
				}
				if len(w.log) > 0 {
					t.Errorf("before the refusal there was %q", w.log)
				}
			})
		})
	}
}

func TestEverythingWrongIsReportedAtOnce(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, _ *fixture, svc *Service) {
		zero := 0
		_, err := svc.Open(t.Context(), admin, OpenRequest{Browser: "lynx", Record: "all", TTL: "soon", Limits: LimitsRequest{Memory: "lots", Tasks: &zero, Files: &zero}})
		for _, field := range []string{"browser", "record", `"soon" is not a duration`, `"lots" is not a size`, "limits.tasks", "limits.files"} {
			if !strings.Contains(err.Error(), field) {
				t.Errorf("%s is missing in %v", field, err)
			}
		}
	})
}

func TestOverriddenLimitsReachTheJail(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		tasks, files, cpu := 111, 222, 0.25
		out := mustOpen(t, svc, OpenRequest{Browser: "full", Limits: LimitsRequest{Memory: "99MiB", Disk: "33MiB", SHM: "22MiB",
			Tasks: &tasks, Files: &files, CPU: &cpu}})
		want := jail.Limits{Memory: 99 << 20, Disk: 33 << 20, SharedMemory: 22 << 20, Tasks: tasks, Files: files, MilliCPU: 250,
			WallClock: svc.Sessions.WallClock}
		j := w.all()[jail.Name(out.Jail)]
		if j.spec.Limits != want || j.spec.Program.Argv[0] != "/opt/full" {
			t.Errorf("the jail has %+v and runs %s", j.spec.Limits, j.spec.Program.Argv[0])
		}
	})
}

func TestNothingOfAnEarlierSessionIsInheritedWithItsAddress(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		// The address of the next jail, which an earlier Forget did not clear.
		stale := netip.AddrFrom4([4]byte{10, 9, 0, 1})
		w.mu.Lock()
		w.admitted[stale] = Caller{Session: "s_old"}
		w.mu.Unlock()
		out := mustOpen(t, svc, OpenRequest{})
		if who := w.knownAs(stale); out.Address != stale.String() || who.Session != out.ID {
			t.Errorf("%s is known as %+v", out.Address, who)
		}
		w.failing("forget", errors.New("a connection that cannot be proven closed"))
		_, err := svc.Open(t.Context(), admin, OpenRequest{})
		wantCode(t, err, problem.Internal)
		if !strings.Contains(err.Error(), "end earlier connections of address 10.9.0.") {
			t.Errorf("the error is %v", err)
		}
		if w.count("gateway admit") != 1 {
			t.Error("an address was admitted that was not forgotten")
		}
		w.failing("forget", nil)
	})
}

// What a session is opened for, such as a task, may take longer than sessions do as a rule.
func TestASessionLastsAsLongAsWhatItIsFor(t *testing.T) {
	inBubble(t, func(o *Options) {
		o.Sessions.TTL, o.Sessions.Idle, o.Sessions.MaxTTL = 5*time.Minute, time.Minute, time.Hour
	}, func(t *testing.T, w *fixture, svc *Service) {
		for _, c := range []struct {
			r         OpenRequest
			ttl, idle time.Duration
		}{
			{OpenRequest{}, 5 * time.Minute, time.Minute},
			{OpenRequest{Min: 2 * time.Minute}, 5 * time.Minute, 2 * time.Minute},
			{OpenRequest{Min: 30 * time.Minute}, 30 * time.Minute, 30 * time.Minute},
			{OpenRequest{Min: 2 * time.Hour}, time.Hour, time.Hour},
			{OpenRequest{Min: 30 * time.Minute, TTL: "10m", Idle: "1s"}, 10 * time.Minute, time.Second},
		} {
			if p, err := svc.plan(c.r); err != nil || p.ttl != c.ttl || p.idle != c.idle {
				t.Errorf("%+v: %s, %s, %v", c.r, p.ttl, p.idle, err)
			}
		}
	})
}
