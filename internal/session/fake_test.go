package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/cdp/guard"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/policy/redact"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/weblogin"
)

// fixture is a driver, a gateway, a list of templates and browsers in memory. Every one of its steps can be made to
// fail or to wait, and it keeps what happened, in order. All waiting is on channels, so a synctest bubble can skip it.
type fixture struct {
	t *testing.T

	mu       sync.Mutex
	log      []string
	jails    map[jail.Name]*fakeJail
	admitted map[netip.Addr]Caller
	refusals map[string]*problem.Error // by host and port
	activity map[netip.Addr]time.Time
	hit      []jail.LimitName // beside the disk
	hosts    []string         // that every address connected to
	digest   string
	number   int
	limit    int // jails at the same time
	tenants  int // of the installation; 0 is 1
	// fail has the error of a step, hold what it waits for first.
	fail map[string]error
	once map[string]error // only the next time
	hold map[string]chan struct{}
	// stderr is what the next jails print.
	stderr string
	// prepare is done to the next browsers.
	prepare func(*fakeBrowser)
	trail   []string // the audit log, in short
	held    map[string]context.CancelCauseFunc
	holds   int
}

// admin is who uses sessions in tests that are not about who does.
var admin = identity.Principal{Kind: identity.KindAdmin, ID: "admin", Role: identity.RoleAdmin}

type fakeJail struct {
	spec    jail.Spec
	addr    netip.Addr
	open    bool // admitted to the firewall
	browser *fakeBrowser
	exit    chan struct{}
	how     jail.Exit
}

type fakeBrowser struct {
	once sync.Once
	// step is what the fixture has to say about a step of this browser.
	step func(name string) error
	// within is step for what honours its context.
	within func(ctx context.Context, name string) error
	done   chan struct{}
	lost   atomic.Bool // its cookies
	// navigate waits for what it gets, or for the end.
	navigate chan error

	mu  sync.Mutex
	at  string // where the page is
	has string // the selector of what it has
	// signOut says that the page has a control to sign out.
	signOut bool
	// passwords is how many fields for a password the page has.
	passwords int
	jar       map[string][]cookies.Cookie // by context
	// takes says what the browser makes of cookies: nil takes them as they are.
	takes func([]cookies.Cookie) ([]cookies.Cookie, error)
	sets  int // calls of SetCookies
	// stored is what pages have stored, by context, and keeps what the browser makes of it: nil keeps it as it is.
	stored map[string][]weblogin.Origin
	keeps  func(weblogin.Origin) (weblogin.Origin, error)
	// redirect is where a page leads to, visits where somebody went.
	redirect map[string]string
	visits   []string
	guards   []guard.Options // of those who attached
	clients  []*fakeDevtools
	viewers  []*fakeViewer
	secrets  []string // tabs with a password
	typed    []string // by a person
	room     cdp.Room
}

// Conceal implements Browser; what it does is shown with a real one.
func (b *fakeBrowser) Conceal(*redact.Values) {}

func (b *fakeBrowser) Contexts(context.Context) ([]string, error) {
	if err := b.step("contexts"); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []string
	for id := range b.jar {
		if id != "" {
			out = append(out, id)
		}
	}
	return out, nil
}

func (b *fakeBrowser) Cookies(_ context.Context, id string) ([]cookies.Cookie, error) {
	if err := b.step("get cookies"); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []cookies.Cookie
	for _, c := range b.jar[id] {
		out = append(out, c.Clone())
	}
	return out, nil
}

func (b *fakeBrowser) SetCookies(_ context.Context, id string, list []cookies.Cookie) error {
	if err := b.step("set cookies"); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sets++
	kept := list
	if b.takes != nil {
		var err error
		if kept, err = b.takes(list); err != nil {
			return err
		}
	}
	if b.jar == nil {
		b.jar = map[string][]cookies.Cookie{}
	}
	for _, c := range kept {
		b.jar[id] = append(b.jar[id], c.Clone())
	}
	return nil
}

func (b *fakeBrowser) Origins(context.Context) ([]string, error) {
	if err := b.step("origins"); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []string
	for _, o := range b.stored[""] {
		out = append(out, o.Origin)
	}
	return out, nil
}

func (b *fakeBrowser) Weigh(ctx context.Context, id string, origins []string) ([]weblogin.OriginInfo, error) {
	list, err := b.Stored(ctx, id, origins)
	return weblogin.Describe(list), err
}

func (b *fakeBrowser) Stored(_ context.Context, id string, origins []string) ([]weblogin.Origin, error) {
	if err := b.step("get storage"); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []weblogin.Origin
	for _, o := range b.stored[id] {
		if slices.Contains(origins, o.Origin) {
			out = append(out, cloned(o))
		}
	}
	return out, nil
}

func (*fakeBrowser) Prepare(string, string) {}

func (b *fakeBrowser) Store(_ context.Context, id string, list []weblogin.Origin) ([]weblogin.Origin, error) {
	if err := b.step("set storage"); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var back []weblogin.Origin
	for _, o := range list {
		o = cloned(o)
		if b.keeps != nil {
			var err error
			if o, err = b.keeps(o); err != nil {
				return nil, err
			}
		}
		if b.stored == nil {
			b.stored = map[string][]weblogin.Origin{}
		}
		b.stored[id] = append(b.stored[id], o)
		back = append(back, cloned(o))
	}
	return back, nil
}

// cloned has values of its own, which are not wiped with the others.
func cloned(o weblogin.Origin) weblogin.Origin {
	out := weblogin.Origin{Origin: o.Origin}
	for _, item := range o.Local {
		out.Local = append(out.Local, weblogin.Item{Name: item.Name, Value: secret.Own(item.Value.Append(nil))})
	}
	return out
}

func (b *fakeBrowser) SignIn(_ context.Context, tab string, selectors ...string) (browser.SignInPage, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	tab = cmp.Or(tab, "t1")
	out := browser.SignInPage{URL: b.at, Tab: tab, Document: tab + " " + b.at, Loaded: true, Status: 200, SignOut: b.signOut, Passwords: b.passwords}
	for _, selector := range selectors {
		out.Matches, out.Bad = append(out.Matches, selector != "" && selector == b.has), append(out.Bad, false)
	}
	return out, nil
}

func (b *fakeBrowser) Where(tab string) (name, document string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	tab = cmp.Or(tab, "t1")
	return tab, tab + " " + b.at
}

func (b *fakeBrowser) Version() browser.Version {
	return browser.Version{Product: "Fake/1", UserAgent: "Fake", Protocol: "1.3"}
}
func (b *fakeBrowser) Administered(ctx context.Context) error { return b.within(ctx, "administered") }
func (b *fakeBrowser) Network(context.Context) error {
	if err := b.step("network"); err != nil {
		return err
	}
	if b.lost.Load() {
		return problem.New(problem.CookiesLost, "", "gone")
	}
	return nil
}
func (b *fakeBrowser) Done() <-chan struct{} { return b.done }

func (b *fakeBrowser) Close() error {
	b.once.Do(func() {
		close(b.done)
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, d := range b.clients {
			_ = d.Close()
		}
	})
	return nil
}

func (b *fakeBrowser) Navigate(ctx context.Context, url string) (browser.Result, error) {
	if url == "slow" {
		select {
		case err := <-b.navigate:
			return browser.Result{URL: url}, err
		case <-b.done:
			return browser.Result{}, problem.New(problem.BrowserExited, "", "the pipe is closed")
		case <-ctx.Done():
			return browser.Result{}, problem.Wrap(ctx.Err(), problem.Timeout, "", "the browser took too long")
		}
	}
	if err := b.step("navigate"); err != nil {
		return browser.Result{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.at, b.visits = url, append(b.visits, url)
	if to, found := b.redirect[url]; found {
		b.at = to
	}
	return browser.Result{URL: b.at, Status: 200}, nil
}

// visiting is an operation that goes somewhere, photographing one that takes a picture. They are the fake's own.
type visiting struct {
	address string
	limit   time.Duration
	effect  browser.Effect
}

func (v visiting) Tool() string                                       { return "navigate" }
func (v visiting) Target() string                                     { return v.address }
func (v visiting) Effect() browser.Effect                             { return v.effect }
func (v visiting) Validate() error                                    { return nil }
func (v visiting) Limit() time.Duration                               { return v.limit }
func (v visiting) Result() any                                        { return new(browser.Result) }
func (v visiting) Run(context.Context, *browser.Browser) (any, error) { panic("the fake runs it") }

type photographing struct{ visiting }

func (photographing) Tool() string { return "screenshot" }

// visitLimit is how long a visit may take that does not say.
const visitLimit = 30 * time.Second

func visit(svc *Service, ctx context.Context, by identity.Principal, id, address string, limit time.Duration) (browser.Result, error) {
	if limit == 0 {
		limit = visitLimit
	}
	out, err := svc.Drive(ctx, by, id, visiting{address, limit, browser.Steers})
	result, _ := out.(browser.Result)
	return result, err
}

func photograph(svc *Service, ctx context.Context, by identity.Principal, id string) ([]byte, error) {
	out, err := svc.Drive(ctx, by, id, photographing{visiting{"", visitLimit, browser.Looks}})
	picture, _ := out.(browser.Picture)
	return picture.Data, err
}

func (b *fakeBrowser) Do(ctx context.Context, op browser.Operation) (any, error) {
	if _, own := op.(browser.Screenshot); own { // a recording's
		if err := b.within(ctx, "picture"); err != nil {
			return nil, err
		}
	}
	switch op := op.(type) {
	case photographing, browser.Screenshot:
		return browser.Picture{ContentType: "image/png", Data: []byte("a picture in png")}, nil
	case visiting:
		return b.Navigate(ctx, op.address)
	case browser.Tabs:
		return browser.TabsResult{Running: true, Tabs: []browser.Tab{{TabID: "t1"}}}, nil
	}
	return nil, fmt.Errorf("the fake cannot %T", op)
}

func newFixture(t *testing.T) *fixture {
	return &fixture{t: t, jails: map[jail.Name]*fakeJail{}, admitted: map[netip.Addr]Caller{}, activity: map[netip.Addr]time.Time{},
		digest: "sha256:one", fail: map[string]error{}, once: map[string]error{}, hold: map[string]chan struct{}{}}
}

func (w *fixture) step(ctx context.Context, name string) error {
	w.mu.Lock()
	w.log = append(w.log, name)
	err, hold := w.fail[name], w.hold[name]
	w.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if once := w.once[name]; once != nil {
		delete(w.once, name)
		return once
	}
	return err
}

func (w *fixture) failOnce(step string, err error) { w.mu.Lock(); w.once[step] = err; w.mu.Unlock() }

func (w *fixture) failing(step string, err error) { w.mu.Lock(); w.fail[step] = err; w.mu.Unlock() }

func (w *fixture) holding(step string) (release func()) {
	c := make(chan struct{})
	w.mu.Lock()
	w.hold[step] = c
	w.mu.Unlock()
	return func() { w.mu.Lock(); delete(w.hold, step); w.mu.Unlock(); close(c) }
}

func (w *fixture) Template(ctx context.Context, name string) (Template, error) {
	err := w.step(ctx, "template")
	w.mu.Lock()
	defer w.mu.Unlock()
	return Template{Digest: w.digest, Programs: map[string]string{"shell": "/opt/shell", "full": "/opt/full"}}, err
}

func (w *fixture) Create(ctx context.Context, spec jail.Spec) (*jail.Jail, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if err := w.step(ctx, "create"); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.number++
	name := jail.Name(fmt.Sprintf("bfake%05d", w.number))
	j := &fakeJail{spec: spec, addr: netip.AddrFrom4([4]byte{10, 9, 0, byte(w.number)}), exit: make(chan struct{}),
		browser: &fakeBrowser{done: make(chan struct{}), navigate: make(chan error),
			step: func(name string) error { return w.step(context.Background(), name) }, within: w.step}}
	if w.prepare != nil {
		w.prepare(j.browser)
	}
	w.jails[name] = j
	w.limit = max(w.limit, len(w.jails))
	// Its output is complete and ended: a read of a file never waits then.
	file, err := os.CreateTemp(w.t.TempDir(), "stderr")
	if err == nil {
		_, err = file.WriteString(w.stderr)
	}
	if err == nil {
		_, err = file.Seek(0, 0)
	}
	if err != nil {
		return nil, err
	}
	return &jail.Jail{Name: name, Lease: jail.Lease{Addr: j.addr}, Stdio: &jail.Stdio{Err: file},
		Timing: jail.Timing{Clone: time.Millisecond}}, nil
}

func (w *fixture) connect(ctx context.Context, stdio *jail.Stdio) (Browser, error) {
	if err := w.step(ctx, "connect"); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	// One jail's connection at a time is waited for, and it is the newest without one in all tests but those that say.
	newest := jail.Name("")
	for name := range w.jails {
		newest = max(newest, name)
	}
	return w.jails[newest].browser, nil
}

func (w *fixture) jailNamed(name jail.Name) (*fakeJail, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if j := w.jails[name]; j != nil {
		return j, nil
	}
	return nil, jail.ErrNotFound
}

func (w *fixture) driverAdmit(ctx context.Context, name jail.Name) error {
	if err := w.step(ctx, "driver admit"); err != nil {
		return err
	}
	j, err := w.jailNamed(name)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, known := w.admitted[j.addr]; !known {
		return errors.New("the firewall is opened before the gateway knows the address")
	}
	j.open = true
	return nil
}

func (w *fixture) Wait(ctx context.Context, name jail.Name) (jail.Exit, error) {
	j, err := w.jailNamed(name)
	if err != nil {
		return jail.Exit{}, err
	}
	select {
	case <-j.exit:
		return j.how, nil
	case <-ctx.Done():
		return jail.Exit{}, ctx.Err()
	}
}

func (w *fixture) Inspect(ctx context.Context, name jail.Name) (jail.Status, error) {
	if err := w.step(ctx, "inspect"); err != nil {
		return jail.Status{}, err
	}
	_, err := w.jailNamed(name)
	w.mu.Lock()
	defer w.mu.Unlock()
	return jail.Status{Usage: jail.Usage{Tasks: 42, CPU: 1500 * time.Microsecond, Hit: append([]jail.LimitName{jail.LimitDisk}, w.hit...)}}, err
}

func (w *fixture) Destroy(ctx context.Context, name jail.Name) error {
	if err := w.step(ctx, "destroy"); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if j := w.jails[name]; j != nil {
		if _, known := w.admitted[j.addr]; known {
			w.t.Errorf("%s is destroyed, and its address given back, while the gateway still knows it", name)
		}
	}
	delete(w.jails, name)
	return nil
}

// driver and way give the two Admits their own types.
type driver struct{ *fixture }

func (d driver) Admit(ctx context.Context, name jail.Name) error { return d.driverAdmit(ctx, name) }

type way struct{ *fixture }

func (g way) Admit(addr netip.Addr, who Caller) error {
	if err := g.step(context.Background(), "gateway admit"); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, taken := g.admitted[addr]; taken {
		return errors.New("the address is admitted already")
	}
	g.admitted[addr] = who
	return nil
}

func (g way) Forget(addr netip.Addr, name string) error {
	if err := g.step(context.Background(), "forget"); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if name == "" || string(g.admitted[addr].Jail) == name {
		delete(g.admitted, addr)
	}
	return nil
}

func (g way) Refused(addr netip.Addr, to hostport.Endpoint, _ time.Time) *problem.Error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, known := g.admitted[addr]; !known {
		return nil
	}
	return g.refusals[to.String()]
}

func (g way) LastActivity(addr netip.Addr) time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.activity[addr]
}

// die ends the browser of a jail by itself.
func (w *fixture) die(name string, how jail.Exit) {
	w.mu.Lock()
	j := w.jails[jail.Name(name)]
	w.mu.Unlock()
	j.how = how // before exit is closed, and read after it
	close(j.exit)
	_ = j.browser.Close()
}

// all is a copy of the jails, so that a test may look while others make some.
func (w *fixture) all() map[jail.Name]*fakeJail {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.jails)
}

func (w *fixture) has(name jail.Name) bool { return w.all()[name] != nil }

func (w *fixture) isOpen(j *fakeJail) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return j.open
}

func (w *fixture) knownAs(addr netip.Addr) Caller {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.admitted[addr]
}

func (w *fixture) count(step string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, s := range w.log {
		if s == step {
			n++
		}
	}
	return n
}

func (w *fixture) left() (jails, admitted int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.jails), len(w.admitted)
}

func (w *fixture) nothingLeft(t *testing.T) {
	t.Helper()
	if jails, admitted := w.left(); jails != 0 || admitted != 0 {
		t.Errorf("%d jails and %d addresses at the gateway are left", jails, admitted)
	}
}

func (w *fixture) before(t *testing.T, first, second string) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	a, b := slices.Index(w.log, first), slices.Index(w.log, second)
	if a < 0 || b < 0 || a > b {
		t.Errorf("%q does not come before %q in %q", first, second, w.log)
	}
}

func (w *fixture) options(change ...func(*Options)) Options {
	c := config.Default()
	o := Options{
		Driver: driver{w}, Gateway: way{w}, Templates: w, Connect: w.connect,
		Sessions: c.Sessions, Quotas: c.Quotas, Limits: c.Limits, WarmPool: config.WarmPool{Size: 0, MaxAge: time.Minute, Browser: config.BrowserShell},
		Authority: rights{w}, Records: records{w: w}, Accounts: Accounts{Grants: noAccounts{}, Vault: noAccounts{}, Leases: noAccounts{}, Node: "n"},
		Proxy: "http://10.9.0.1:3000", Policy: policy.PublicWeb(), Recordings: w.t.TempDir(),
	}
	for _, f := range change {
		f(&o)
	}
	return o
}

// inBubble runs a test with a Service in a bubble of its own time. Goroutines that are left at the end fail it.
func inBubble(t *testing.T, change func(*Options), test func(t *testing.T, w *fixture, svc *Service)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		if change == nil {
			change = func(*Options) {}
		}
		svc, err := New(w.options(change))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		test(t, w, svc)
		if err := svc.Shutdown(t.Context()); err != nil {
			t.Errorf("shut down: %v", err)
		}
		w.nothingLeft(t)
	})
}

func mustOpen(t *testing.T, svc *Service, r OpenRequest) Session {
	t.Helper()
	out, err := svc.Open(t.Context(), admin, r)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return out
}

func mustGet(t *testing.T, svc *Service, id string) Session {
	t.Helper()
	out, err := svc.Get(t.Context(), admin, id)
	if err != nil {
		t.Fatalf("get: %v", err)
	}
	return out
}

func wantCode(t *testing.T, err error, code string) {
	t.Helper()
	if got := problem.CodeOf(err); got != code {
		t.Errorf("the code is %q, want %q: %v", got, code, err)
	}
}
