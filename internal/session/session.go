// Package session opens, uses and closes browser sessions: an ephemeral jail with a Chromium in it, the way out
// through the gateway, and an end.
//
// It promises:
//
//   - Open returns a session whose browser answers and whose jail is confined, or an error after which nothing of the
//     attempt is left. A caller who goes away in the middle is such an error.
//   - Every session ends: when it is closed, when its time is up, when it was not used for its idle time, when its
//     browser is gone, or when the service shuts down. The cause is kept for a while, with the limits that it ran into.
//   - From the moment in which a session ends, no client reaches its browser and its jail reaches no host. Removing the
//     jail goes on behind that, in a goroutine that Shutdown waits for.
//   - A jail is used by one session only. Warm browsers were used by none.
//   - Rights are checked before anything is done, and every action is on record before it is done. One that cannot
//     be recorded is not done; ending is exempt.
//   - An operator session is ready when its browser has every cookie of its accounts as it was stored, and nothing of
//     other domains; see [Accounts]. It reaches what its grant names and nothing else. Nothing is saved back from it.
//   - A session ends with the key that opened it.
//   - When a browser loses its cookies, no request leaves without them, and its session ends and says so.
//   - The output of a browser is kept in a bounded tail, and never logged.
//   - While a person has taken over a session's browser, no other client uses it, what the person does is not recorded
//     (only that they had it), and no script of an earlier user is in its pages.
//   - In a refresh session only its opener sees and steers the browser.
//
// All methods of a Service may be called at the same time.
package session

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/base/pace"
	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/cdp/guard"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/policy/redact"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/session/recording"
)

// Driver is the part of a jail.Driver that sessions use, with the same promises.
type Driver interface {
	Create(ctx context.Context, spec jail.Spec) (*jail.Jail, error)
	Admit(ctx context.Context, name jail.Name) error
	Wait(ctx context.Context, name jail.Name) (jail.Exit, error)
	Inspect(ctx context.Context, name jail.Name) (jail.Status, error)
	Destroy(ctx context.Context, name jail.Name) error
}

// Gateway is the only way out of a jail, as sessions see it.
type Gateway interface {
	// Admit makes an address known as a session's, with its policy. Nothing of an earlier session with that address
	// is inherited.
	Admit(addr netip.Addr, who Caller) error
	// Forget closes every connection of an address and makes it unknown. It returns when they are closed. On error the
	// address is cut off, and cannot be admitted again before a further Forget succeeds. Forgetting an address that is
	// not known is no error.
	Forget(addr netip.Addr, jail string) error
	// LastActivity is when the address last sent or received anything; zero when it did not.
	LastActivity(addr netip.Addr) time.Time
	// Hosts are those that the address was let connect to, in the order of the first time. There may be more than are kept.
	Hosts(addr netip.Addr) []string
	// Refused is why the way of an address to a host was refused last, since a time; nil when it was not.
	Refused(addr netip.Addr, to hostport.Endpoint, since time.Time) *problem.Error
}

// Caller describes the session behind an address, for the gateway.
type Caller struct {
	Jail    jail.Name
	Session string
	Tenant  string
	// Opener is the id of the agent that opened the session; empty when no agent did.
	Opener string
	// Vet is asked for each new connection, before anything is done for it. An error refuses the connection.
	Vet func(ctx context.Context) error
	// Actor is the opener, as the audit log names principals.
	Actor  string
	Policy policy.Policy
	// Confined: rules that operators make later may only take away from Policy.
	Confined bool
}

// Templates knows what is installed.
type Templates interface {
	// Template returns one. The code is template_missing when there is none of that name.
	Template(ctx context.Context, name string) (Template, error)
}

// Template is what sessions need to know of an installed template.
type Template struct {
	Digest string
	// Programs are the absolute paths of what can be started in it, by the names of package template: shell, full.
	Programs map[string]string
}

// Browser is a browser that answered.
type Browser interface {
	Version() browser.Version
	// Administered is an error when a full Chromium has not read the policies of its jail.
	Administered(ctx context.Context) error
	Jar
	// Network says whether the cookies are still those of its first call. The code is cookies_lost when they are not.
	// A connection that was made before a call which returns nil was made with them.
	Network(ctx context.Context) error
	// SignIn says what of a tab's page has to do with signing in, and which CSS selectors it has an element for.
	SignIn(ctx context.Context, tab string, selectors ...string) (browser.SignInPage, error)
	// Where names a tab, the current one when none is named, and its document, as SignIn does.
	Where(tab string) (name, document string)
	// Conceal makes everything that pages say lose the values, before it is cut, compared or waited for.
	Conceal(values *redact.Values)
	// Navigate opens an address in the current tab, for the session's own purposes.
	Navigate(ctx context.Context, url string) (browser.Result, error)
	// Do runs an operation of the control contract.
	Do(ctx context.Context, op browser.Operation) (any, error)
	// UseRoom has the messages of its DevTools clients take their memory from a room.
	UseRoom(room cdp.Room)
	// Attach adds a DevTools client, every message of which passes a guard.
	Attach(ctx context.Context, o guard.Options) (Devtools, error)
	// Live is the browser as people watch and steer it.
	Live() LiveBrowser
	// Done is closed when the browser's pipe is.
	Done() <-chan struct{}
	// Close closes the pipe, which ends the browser, without waiting for the browser. It may be called twice.
	Close() error
}

// Devtools is one DevTools client of a browser. Receive is called by one goroutine at a time; see [cdp.Client].
type Devtools interface {
	Send(ctx context.Context, frame []byte) error
	// SendFrom is Send for a message that is still to be read; see [cdp.Client.SendFrom].
	SendFrom(ctx context.Context, r io.Reader) error
	Receive(ctx context.Context) ([]byte, error)
	// Done is closed when the client has ended, and Err says why.
	Done() <-chan struct{}
	Err() error
	// Close ends the client and detaches what it had attached. The session goes on.
	Close() error
}

// Connector makes a Browser out of the stdin and stdout of a jail, which it owns from then on and closes on error. It
// returns when the browser has answered for the first time.
type Connector func(ctx context.Context, stdio *jail.Stdio) (Browser, error)

// DefaultTemplate is what browsers run in.
const DefaultTemplate = "browser"

// Options configure a Service. Every field is required unless it says otherwise.
type Options struct {
	Driver    Driver
	Gateway   Gateway
	Templates Templates
	// Connect is what Dialer makes, except in tests.
	Connect Connector

	// Sessions, Quotas, Limits and WarmPool are those of the configuration.
	Sessions config.Sessions
	Quotas   config.Quotas
	Limits   config.Limits
	WarmPool config.WarmPool
	// Template is what sessions run in when they do not say. Default [DefaultTemplate].
	Template string
	// Proxy is the gateway's URL as the browser is told it, for example http://10.90.0.1:3000.
	Proxy string
	// Policy is what the browser of a clean session may reach. The gateway leaves the public web out of that of one that an
	// agent opened, unless it was said that it has it.
	Policy policy.Policy
	// ExtraCA are the certificates that browsers trust besides the public ones. May be empty. See [ParseCertificates].
	ExtraCA Certificates
	// Unsandboxed: browsers run without a sandbox of their own, because the jails of this host do not let them have one.
	Unsandboxed bool
	// Authority decides who may do what, and Records is where it is written down.
	Authority Authority
	Records   audit.Records
	// Accounts are for operator sessions.
	Accounts Accounts
	// Tag is what the ids of sessions begin with; see [store.NodeTag]. May be empty.
	Tag string
	// Recordings is the folder for recordings of sessions, which the Service makes; see [recording.Shelf].
	Recordings string
	// Observe is told of every session that was opened, and of every one that could not be, with why. It must return at
	// once. May be nil.
	Observe func(s Session, err error)

	// Pace says how slow this machine is now. It is asked when a browser has not answered in the time that an ordinary
	// machine needs. May be nil: then it is an ordinary one.
	Pace func(context.Context) pace.Pace

	Log *slog.Logger
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

func (o *Options) complete() error {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, fmt.Errorf("sessions: %s is missing", what))
		}
	}
	need(o.Driver != nil, "the driver")
	need(o.Gateway != nil, "the gateway")
	need(o.Templates != nil, "the list of templates")
	need(o.Connect != nil, "the connector")
	need(o.Proxy != "", "the gateway's URL")
	need(o.Authority != nil, "the authority")
	need(o.Records != nil, "the audit log")
	need(o.Accounts.complete(), "the access to accounts")
	need(o.Recordings != "", "the folder for recordings")
	need(o.Sessions.Max > 0, "the largest number of sessions")
	need(o.Quotas.Tenant > 0 && o.Quotas.Agent > 0, "what one tenant and one agent may hold")
	need(o.Sessions.TTL > 0 && o.Sessions.MaxTTL >= o.Sessions.TTL && o.Sessions.Idle > 0, "a lifetime")
	if err := o.Policy.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("sessions: policy: %w", err))
	}
	if o.Template == "" {
		o.Template = DefaultTemplate
	}
	if o.Pace == nil {
		o.Pace = func(context.Context) pace.Pace { return 1 }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return errors.Join(errs...)
}

// Service has all sessions of one control plane.
type Service struct {
	Options

	background context.Context // ends work that no call waits for: filling the pool, watching
	stop       context.CancelFunc
	tasks      sync.WaitGroup // everything that runs behind a call
	templates  templates
	trust      *trust
	pool       *pool
	shelf      *recording.Shelf
	messages   *quota.Gate // of DevTools clients
	logins     logins
	recheck    wake.Signal     // for permissions that were taken back
	lookAfter  []time.Duration // pages draw late: pauses between looks at those of a session in which something was done

	mu       sync.Mutex
	sessions map[string]*session  // all that are not yet gone
	visits   map[accountPage]bool // whether the last visit of a page saw a field for a password
	tokens   map[[sha256.Size]byte]token
	ended    []*session // gone ones that can still be asked about, oldest first
	unfreed  []string   // ended sessions whose leases on accounts could not be given back yet
	shutting bool
	draining bool
}

// New makes a Service and starts filling its warm pool. Shutdown ends it.
func New(o Options) (*Service, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	shelf, err := recording.Open(recording.Options{Dir: o.Recordings, Keep: recordingsKept, Now: o.Now, Quotas: o.Quotas, Tenants: o.Authority.Counted})
	if err != nil {
		return nil, err
	}
	svc := &Service{Options: o, sessions: map[string]*session{}, visits: map[accountPage]bool{}, tokens: map[[sha256.Size]byte]token{}, shelf: shelf}
	svc.messages = quota.NewGate(quota.GateOptions{Kind: quota.Messages(), Whole: maxOfMessages, Quotas: o.Quotas, Tenants: o.Authority.Counted})
	svc.background, svc.stop = context.WithCancel(context.Background())
	svc.logins = newLogins(o.Accounts.Logins)
	svc.recheck = wake.New()
	svc.lookAfter = []time.Duration{time.Second, 2 * time.Second, 4 * time.Second}
	svc.templates = templates{source: o.Templates, now: svc.Now, seen: map[string]seenTemplate{}}
	svc.trust = newTrust(svc)
	svc.pool = newPool(svc)
	svc.tasks.Go(svc.pool.run)
	svc.tasks.Go(svc.recheckPermissions)
	return svc, nil
}

// session is one session. Its fields are guarded by Service.mu, except those that are set once before it is shared.
type session struct {
	id      string
	by      identity.Principal // its opener
	plan    plan
	policy  policy.Policy
	created time.Time
	// revoked is done when the opener's key is not valid any more, which revoke says; unhold ends waiting for it.
	revoked context.Context
	revoke  context.CancelCauseFunc
	unhold  func()
	// grant is what an operator session was permitted with.
	grant  grant.Grant
	stored string // the first origin of which one of its accounts has storage; empty for none
	// permissions are the ids of those that let an agent open it without a grant of its own.
	permissions []string
	// abort ends an opening.
	abort context.CancelCauseFunc
	// stop is closed when the session begins to end, settled when why it ended is known, and gone when nothing of it
	// is left on the host.
	stop, settled, gone chan struct{}
	// values are the secrets of the logins that were injected, so that they can be taken out of what leaves. Nil when none were.
	values *redact.Values
	// attached are the DevTools clients.
	attached map[*attachment]struct{}
	// lives are those who watch.
	lives map[*Live]struct{}
	// tape is the recording, nil when there is none; it is set before the session is ready.
	tape *recording.Tape
	// lost is closed when its browser has lost its cookies.
	lost   chan struct{}
	losing sync.Once
	// life ends when the session begins to end.
	life context.Context
	die  context.CancelFunc

	state    State
	instance *instance // nil until there is one, and when it is gone
	browser  Browser   // of the instance, once it has answered
	jail     jail.Name
	addr     netip.Addr
	version  string // of the browser
	warm     bool
	ready    time.Time
	expires  time.Time
	used     time.Time // when somebody last asked something of it
	using    int       // requests in flight
	timing   Timing
	ended    *Ended
	leased   bool // it may have leases on accounts
	touched  bool // an agent has had its hands on it
	starting bool // its opening has got as far as its browser, and is not over
	injected injected
	refresh  []Refresh // accounts that a person has to log in to again
	// watch knows which of its accounts are still signed in.
	watch *loginWatch

	takeover *takeover  // the person who has taken its browser over; nil when there is none
	period   *usePeriod // in which it is used
	// scripted says that a script of somebody's may be in its pages: one was run, or a DevTools client was there.
	scripted  bool
	thumbnail thumbnail
}

// Drain keeps new sessions from being opened, or lets them be opened again.
func (svc *Service) Drain(drain bool) {
	svc.mu.Lock()
	defer svc.mu.Unlock()
	svc.draining = drain
}

// Ready is nil while new sessions can be opened here, or else the reason why not.
func (svc *Service) Ready() error {
	svc.mu.Lock()
	defer svc.mu.Unlock()
	return svc.unready()
}

// unready is Ready for a caller that has the lock.
func (svc *Service) unready() error {
	switch {
	case svc.shutting:
		return problem.New(problem.ShuttingDown, "try again when clawjail runs again", "clawjail is being stopped")
	case svc.draining:
		return problem.New(problem.NodeDraining, "ask another control plane; to have this one open sessions again: clawjail node resume NODE", "this control plane opens no new sessions")
	}
	return nil
}

// Shutdown closes every session, empties the pool, and returns when nothing is left or when ctx ends. No session can be
// opened from its beginning on.
func (svc *Service) Shutdown(ctx context.Context) error {
	svc.mu.Lock()
	svc.shutting = true
	all := make([]*session, 0, len(svc.sessions))
	for _, s := range svc.sessions {
		all = append(all, s)
	}
	svc.mu.Unlock()
	svc.stop()
	for _, s := range all {
		svc.startClosing(s, Ended{Cause: CauseShutdown})
	}
	done := make(chan struct{})
	go func() { // ends with the tasks, which all end: see their bounds
		defer close(done)
		svc.tasks.Wait()
	}()
	select {
	case <-done:
		return svc.shelf.Close()
	case <-ctx.Done():
		return fmt.Errorf("close all sessions: %w", context.Cause(ctx))
	}
}

func notFound(id string) error {
	return problem.New(problem.NotFound, "list them: clawjail session ls", "there is no session %s", quote(id))
}
