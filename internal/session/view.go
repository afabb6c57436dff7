package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
)

// State is how far a session has come.
type State string

// The states, in their order. A session that could not be opened goes from opening to failed.
const (
	StateOpening State = "opening"
	StateReady   State = "ready"
	StateClosing State = "closing" // it can no longer be used, and its jail is being removed
	StateClosed  State = "closed"  // nothing of it is left
	StateFailed  State = "failed"  // it could not be opened, and nothing of it is left
)

// Session is what is known of one session.
type Session struct {
	ID             string `json:"id" doc:"s_ and 16 letters and digits"`
	Label          string `json:"label,omitempty"`
	State          State  `json:"state" enum:"opening,ready,closing,closed,failed"`
	Tenant         string `json:"tenant"`
	OpenedBy       string `json:"opened_by" doc:"admin, operator:ID or agent:ID"`
	CredentialMode string `json:"credential_mode" enum:"clean,operator,refresh"`
	Access         string `json:"access" enum:"tools,cdp"`
	// Grant, Injected, Storage and NeedsRefresh are of operator sessions.
	Domains        []string  `json:"domains,omitempty" doc:"domains of its accounts; of a refresh session, the domain to log in to"`
	Grant          string    `json:"grant,omitempty" doc:"the id of the grant that it was opened with"`
	Injected       int       `json:"injected,omitempty" doc:"number of cookies that were put in"`
	Storage        int       `json:"storage,omitempty" doc:"origins for which it has what their pages had stored"`
	NeedsRefresh   []Refresh `json:"needs_refresh,omitempty" doc:"accounts that need a new login"`
	Record         string    `json:"record" enum:"off,transient,audit"`
	Template       string    `json:"template"`
	Browser        string    `json:"browser" enum:"shell,full"`
	BrowserVersion string    `json:"browser_version,omitempty"`
	// Jail and Address are set as soon as there is a jail.
	Jail    string `json:"jail,omitempty"`
	Address string `json:"address,omitempty"`
	Warm    bool   `json:"warm" doc:"the browser was started before it was asked for"`

	Created   time.Time  `json:"created_at"`
	Ready     *time.Time `json:"ready_at,omitempty"`
	ExpiresAt *time.Time `json:"expires_at,omitempty" doc:"when its time is up"`
	IdleUntil *time.Time `json:"idle_until,omitempty" doc:"when the session is closed unless it is used before"`

	Control *Control `json:"control,omitempty" doc:"the person who has taken over the browser; everybody else gets taken_over meanwhile"`

	Timing Timing `json:"timing"`
	// Usage is there when one session is asked for, while it is ready.
	Usage *Usage `json:"usage,omitempty"`
	// Screenshots are those that are kept; see the session's record.
	Screenshots []Shot `json:"screenshots,omitempty"`
	Ended       *Ended `json:"ended,omitempty" doc:"why it ended"`
}

// Timing is how long the stages of opening took, in milliseconds. A warm session's first four were before it.
type Timing struct {
	Clone  float64 `json:"clone_ms"`
	Attach float64 `json:"attach_ms"`
	Start  float64 `json:"start_ms"`
	Verify float64 `json:"verify_ms"`
	Ready  float64 `json:"ready_ms" doc:"from the started jail to the browser's first answer"`
	Inject float64 `json:"inject_ms,omitempty" doc:"logins validated, put in, read back and compared"`
	Total  float64 `json:"total_ms" doc:"how long the caller waited"`
}

// Usage is what a jail consumes now.
type Usage struct {
	MemoryBytes int64            `json:"memory_bytes"`
	MemoryPeak  int64            `json:"memory_peak_bytes"`
	CPU         float64          `json:"cpu_ms"`
	Tasks       int              `json:"tasks"`
	DiskBytes   int64            `json:"disk_bytes"`
	OpenFiles   int              `json:"open_files"`
	LimitsHit   []jail.LimitName `json:"limits_hit,omitempty" doc:"limits that the jail has reached so far"`
}

// Cause is why a session ended.
type Cause string

// The causes.
const (
	CauseClosed        Cause = "closed"             // somebody closed it
	CauseExpired       Cause = "expired"            // its time was up
	CauseIdle          Cause = "idle"               // its idle time was over
	CauseShutdown      Cause = "shutdown"           // clawjail was stopped
	CauseBrowserExited Cause = "browser_exited"     // its browser ended by itself
	CauseMemory        Cause = "limit_memory"       // its browser ran out of memory
	CauseWallClock     Cause = "limit_wall_clock"   // its jail existed for as long as any may
	CauseOwnerLost     Cause = "owner_lost"         // the host daemon had lost the control plane
	CauseAccountLost   Cause = "account_lost"       // its browser had lost the account
	CauseCookiesLost   Cause = "cookies_lost"       // its browser had lost its cookies, none of which was an account's
	CauseRevoked       Cause = "revoked"            // the key that opened it is not good any more
	CauseDisallowed    Cause = "account_disallowed" // the permission that it was opened with was taken back
	CauseFailed        Cause = "failed"             // it could not be opened
)

// Ended says why and how a session ended.
type Ended struct {
	Cause   Cause     `json:"cause" enum:"closed,expired,idle,shutdown,browser_exited,limit_memory,limit_wall_clock,owner_lost,account_lost,cookies_lost,revoked,account_disallowed,failed"`
	Message string    `json:"message" doc:"one sentence"`
	At      time.Time `json:"at"`
	// LimitsHit are the limits that the jail had run into.
	LimitsHit []jail.LimitName `json:"limits_hit,omitempty"`
	ExitCode  *int             `json:"exit_code,omitempty"`
	Signal    string           `json:"signal,omitempty"`
	// Stderr are the last lines that the browser printed.
	Stderr []string `json:"stderr,omitempty"`
	// Teardown is how long removing the jail took, in milliseconds, once it is removed.
	Teardown *float64 `json:"teardown_ms,omitempty"`
	// TeardownError says that removing did not work. The host daemon's reaper goes on with it.
	TeardownError string `json:"teardown_error,omitempty"`

	by string // the actor who closed it
}

// Shot is one screenshot that is kept.
type Shot struct {
	Number int       `json:"number"`
	At     time.Time `json:"at"`
	Format string    `json:"format" enum:"png,jpeg"`
	Bytes  int       `json:"bytes"`
}

const (
	// endedFor is how long an ended session can be asked about, maxEnded how many of a tenant.
	endedFor = 10 * time.Minute
	maxEnded = 256
	// usageLimit bounds how long Get waits for the numbers.
	usageLimit = 2 * time.Second
)

// Get returns one session, with its current usage. The code is not_found when there is none.
func (svc *Service) Get(ctx context.Context, by identity.Principal, id string) (Session, error) {
	s, err := svc.permitted(ctx, by, identity.SessionRead, id)
	if err != nil {
		return Session{}, err
	}
	svc.mu.Lock()
	out := svc.view(s)
	svc.mu.Unlock()
	if out.State != StateReady {
		return out, nil
	}
	ctx, cancel := context.WithTimeout(ctx, usageLimit)
	defer cancel()
	status, err := svc.Driver.Inspect(ctx, jail.Name(out.Jail))
	if err != nil {
		// The session is there all the same. The log says that the host daemon does not answer.
		if !errors.Is(err, jail.ErrNotFound) {
			svc.Log.Warn("measure a session", "session", id, "jail", out.Jail, "error", err)
		}
		return out, nil
	}
	u := status.Usage
	out.Usage = &Usage{MemoryBytes: u.MemoryBytes, MemoryPeak: u.MemoryPeak, CPU: milliseconds(u.CPU), Tasks: u.Tasks,
		DiskBytes: u.DiskBytes, OpenFiles: u.OpenFiles, LimitsHit: u.Hit}
	return out, nil
}

// List returns the sessions of a tenant that a principal may see, oldest first: those that are opening or ready, and with
// all also those that are being removed or ended a short while ago. An empty tenant is every tenant that the principal
// may see.
func (svc *Service) List(ctx context.Context, by identity.Principal, tenant string, all bool) ([]Session, error) {
	tenant = by.Among(tenant)
	if err := svc.Authority.AuthorizeWith(ctx, by, identity.SessionList, identity.Object{Tenant: tenant, Agent: by.AgentID()}); err != nil {
		return nil, err
	}
	svc.mu.Lock()
	defer svc.mu.Unlock()
	svc.purge()
	out := make([]Session, 0, len(svc.sessions))
	add := func(s *session) {
		if (tenant == "" || s.plan.tenant == tenant) && identity.CanWith(by, identity.SessionList, s.object()) == nil {
			out = append(out, svc.view(s))
		}
	}
	for _, s := range svc.sessions {
		if all || s.state == StateOpening || s.state == StateReady {
			add(s)
		}
	}
	if all {
		for _, s := range svc.ended {
			add(s)
		}
	}
	slices.SortFunc(out, func(a, b Session) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	return out, nil
}

// Status is the service in numbers.
type Status struct {
	Sessions    int `json:"sessions" doc:"opening or ready"`
	MaxSessions int `json:"max_sessions"`
	Closing     int `json:"closing" doc:"closed, and their jails are being removed"`
	WarmSize    int `json:"warm_size" doc:"browsers that are to be kept ready"`
	WarmReady   int `json:"warm_ready" doc:"browsers that are ready"`
}

// Status returns the service in numbers.
func (svc *Service) Status() Status {
	svc.mu.Lock()
	defer svc.mu.Unlock()
	open, closing := svc.count(quota.Holder{})
	return Status{Sessions: int(open.All), MaxSessions: svc.Sessions.Max, Closing: int(closing.All),
		WarmSize: svc.WarmPool.Size, WarmReady: svc.pool.size()}
}

// States counts the sessions that are not gone, by state.
func (svc *Service) States() map[State]int {
	svc.mu.Lock()
	defer svc.mu.Unlock()
	out := make(map[State]int)
	for _, s := range svc.sessions {
		out[s.state]++
	}
	return out
}

// find looks a session up, also among those that have ended. The caller holds svc.mu.
func (svc *Service) find(id string) *session {
	svc.purge()
	if s, ok := svc.sessions[id]; ok {
		return s
	}
	for _, s := range svc.ended {
		if s.id == id {
			return s
		}
	}
	return nil
}

// keepEnded keeps a session that has ended. One too many of its tenant takes the place of the oldest. The caller holds svc.mu.
func (svc *Service) keepEnded(s *session) {
	first, n := len(svc.ended), 1
	for at, other := range svc.ended {
		if other.plan.tenant == s.plan.tenant {
			first, n = min(first, at), n+1
		}
	}
	if svc.ended = append(svc.ended, s); n > maxEnded {
		svc.ended = slices.Delete(svc.ended, first, first+1)
	}
	svc.purge()
}

// purge forgets the sessions that ended too long ago. The caller holds svc.mu.
func (svc *Service) purge() {
	now := svc.Now()
	first := 0
	for first < len(svc.ended) && now.Sub(svc.ended[first].ended.At) >= endedFor {
		first++
	}
	if first > 0 {
		svc.ended = slices.Delete(svc.ended, 0, first)
	}
}

// Held is how much sessions, their recordings and their messages take.
func (svc *Service) Held(asks quota.Holder) []quota.Amount {
	svc.mu.Lock()
	open, _ := svc.count(asks)
	svc.mu.Unlock()
	out := append([]quota.Amount{{Kind: quota.Sessions(), Whole: int64(svc.Sessions.Max), Held: open}}, svc.shelf.Held(asks)...)
	return append(out, svc.messages.Amounts(asks)...)
}

// count counts the sessions of all, of a tenant and of an agent. The caller holds svc.mu.
func (svc *Service) count(asks quota.Holder) (open, closing quota.Held) {
	for _, s := range svc.sessions {
		holds := quota.Holder{Tenant: s.plan.tenant, Agent: s.by.AgentID()}
		if s.state == StateOpening || s.state == StateReady {
			open.Count(asks, holds, 1)
		} else {
			closing.Count(asks, holds, 1)
		}
	}
	return open, closing
}

// view is a session as it is shown. The caller holds svc.mu.
func (svc *Service) view(s *session) Session {
	out := Session{
		ID: s.id, Label: s.plan.label, State: s.state, Tenant: s.plan.tenant, OpenedBy: s.by.Actor(),
		CredentialMode: s.plan.mode, Access: string(s.plan.access), Domains: slices.Clone(s.plan.domains), Grant: s.grant.ID,
		Injected: s.injected.cookies, Storage: s.injected.origins, NeedsRefresh: slices.Clone(s.refresh), Record: s.plan.record,
		Template: s.plan.shape.template, Browser: string(s.plan.shape.build), BrowserVersion: s.version,
		Control: controlOf(s.takeover), Jail: string(s.jail), Warm: s.warm, Created: s.created, Timing: s.timing, Screenshots: shotsOf(s.tape),
	}
	if s.plan.mode == ModeRefresh {
		out.Domains = []string{s.plan.refresh}
	}
	if s.addr.IsValid() {
		out.Address = s.addr.String()
	}
	if !s.ready.IsZero() {
		ready, expires := s.ready, s.expires
		out.Ready, out.ExpiresAt = &ready, &expires
	}
	if s.state == StateReady {
		until := svc.idleUntil(s)
		out.IdleUntil = &until
	}
	if s.ended != nil {
		ended := *s.ended
		out.Ended = &ended
	}
	return out
}

// endedProblem is what somebody gets who wants to use a session that has ended. The caller holds no lock.
func (svc *Service) endedProblem(s *session) error {
	svc.mu.Lock()
	e := *s.ended
	svc.mu.Unlock()
	code := problem.SessionClosed
	switch e.Cause {
	case CauseBrowserExited:
		code = problem.BrowserExited
	case CauseMemory:
		code = problem.LimitMemory
	case CauseWallClock:
		code = problem.LimitWallClock
	case CauseAccountLost, CauseCookiesLost:
		code = lostCodes[e.Cause]
	}
	return problem.New(code, "open a new one; why this one ended is in `clawjail session show "+s.id+"`",
		"session %s has ended: %s", s.id, e.Message).With("cause", string(e.Cause))
}

func milliseconds(d time.Duration) float64 {
	return float64(d.Round(time.Microsecond).Microseconds()) / 1000
}

// sentence says why a session ended.
func sentence(e Ended, p plan) string {
	switch e.Cause {
	case CauseClosed:
		if e.by != "" {
			return "it was closed by " + e.by
		}
		return "it was closed"
	case CauseExpired:
		return fmt.Sprintf("its time of %s was up", p.ttl)
	case CauseIdle:
		return fmt.Sprintf("nobody used it for %s", p.idle)
	case CauseShutdown:
		return "clawjail was stopped"
	case CauseMemory:
		return "its browser ran out of memory"
	case CauseWallClock:
		return "its jail existed for as long as any may"
	case CauseRevoked:
		return "the key that opened it has expired or was revoked"
	case CauseDisallowed:
		return "the permission to use its account was taken back"
	case CauseAccountLost:
		return "the browser's network process ended, and the account with it"
	case CauseCookiesLost:
		return "the browser's network process ended, and the cookies with it"
	case CauseOwnerLost:
		return "the host daemon had lost the control plane"
	}
	return "its browser ended by itself"
}
