package kubernetes

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"regexp"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/kubernetes/shim"
	"github.com/clawjail/clawjail/internal/problem"
)

// Options configure a Driver.
type Options struct {
	API          *API
	Installation jail.Installation
	// Node is the name of this control plane, which removes only objects that it has made.
	Node string
	// Namespace is where the pods are. Nothing else should be in it, nor pods of another control plane.
	Namespace string
	// Images are those of the templates, by their names.
	Images map[string]string
	// Account is the service account of the pods, which may do nothing.
	Account string
	// Gateway is where pods reach this control plane, as HOST:PORT, and Key what they know it by.
	Gateway string
	Key     ed25519.PrivateKey
	// Warm is how many pods are kept ready of each kind of jail that was wanted. 0 is none.
	Warm int
	// Seccomp is a profile in the kubelet's folder for pods of browsers, and empty the runtime's; RuntimeClass is the runtime, and empty the cluster's.
	Seccomp, RuntimeClass string
	// Folder is how large the volume of a folder is, in bytes. StorageClass is that of volumes, and SharedStorageClass that of those which pods of several
	// nodes use at once. Empty is the cluster's default.
	Folder                           int64
	StorageClass, SharedStorageClass string
	// Console keeps what jails of LifetimeKeep print. Without one there are none.
	Console jail.Console
	// Probes are what no pod may reach.
	Probes []shim.Probe
	// Window is how long a pod whose connection broke is waited for. Default 30 s.
	Window time.Duration
	// Grace is how long owner jails outlive their owner. Default 30 s.
	Grace time.Duration
	// Absence is how long a control plane may say nothing before the others have all that it has made deleted. Default 2 min.
	Absence time.Duration
	// PoolIdle is how long an unused pool is kept. Default 10 min.
	PoolIdle time.Duration
	// Journal hears of each jail first and last. Default Unwritten.
	Journal jail.Journal
	// Barrier is that of jail.Options.
	Barrier func(jail.Step)
	Log     *slog.Logger     // default: discarded
	Now     func() time.Time // default time.Now
}

// Validate fills in defaults and reports everything that is wrong at once.
func (o *Options) Validate() error {
	bad := problem.ValidationError{Code: problem.BadConfig}
	if _, err := jail.ParseInstallation(string(o.Installation)); err != nil {
		bad.Add("installation", "%v", err)
	}
	label := regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)
	for _, one := range []struct{ field, value string }{{"node", o.Node}, {"namespace", o.Namespace}, {"account", o.Account}} {
		if !label.MatchString(one.value) {
			bad.Add(one.field, "%q is no name of 1 to 63 letters, digits, dots and dashes", one.value)
		}
	}
	if host, port, err := net.SplitHostPort(o.Gateway); err != nil || host == "" || port == "" {
		bad.Add("gateway", "%q is not HOST:PORT", o.Gateway)
	}
	if o.API == nil || len(o.Key) != ed25519.PrivateKeySize {
		bad.Add("api", "the API server, or the key for pods, is missing")
	}
	if o.Window <= 0 {
		o.Window = 30 * time.Second
	}
	if o.Grace <= 0 {
		o.Grace = 30 * time.Second
	}
	o.Absence, o.PoolIdle = cmp.Or(o.Absence, 2*time.Minute), cmp.Or(o.PoolIdle, 10*time.Minute)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Journal == nil {
		o.Journal = Unwritten{}
	}
	if o.Barrier == nil {
		o.Barrier = func(jail.Step) {}
	}
	return bad.Err()
}

// Driver makes each jail as a pod, by a claim of agent-sandbox. The API server knows which jails there are; this process knows besides
// which of them it owns, and has the connections with their pods.
//
// All jails end with this process, as their connections do. Jails of agents are made anew by their keeper, with the same volumes.
type Driver struct {
	*jail.Registry
	o      Options
	server *shim.Server
	pin    string // by which pods know this control plane
	// followed are the claims of this control plane.
	followed *claims

	background context.Context // ends the watchers
	stop       context.CancelFunc
	watchers   sync.WaitGroup
	reaping    chan struct{} // one token: single flight
	pooling    chan struct{} // one token: a pool is made or deleted
	began      time.Time

	mu      sync.Mutex // guards what follows
	changed *sync.Cond
	pods    map[string]*pod     // that are connected, by their Sandbox
	claimed map[jail.Name]*pod  // those of them that were made for a claim
	at      map[netip.Addr]*pod // the last one of each address
	jails   map[jail.Name]*pod
	pools   map[string]*pool     // by their names
	uses    map[jail.Name]string // the pool of each jail
	claims  map[jail.Name]string // the UID of the claim of each jail that was not asked to end

	presence presence // seen is Run's alone
}

// pod is one that is connected.
type pod struct {
	*shim.Pod
	Identity
	verified bool // before anybody wanted it
	// exit is how the cluster says that the pod has ended, if that was seen. Guarded by the driver's mu.
	exit *jail.Exit
}

var _ jail.Maker = (*Driver)(nil)

// New makes a Driver. Close must be called.
func New(ctx context.Context, o Options) (*Driver, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	d := &Driver{o: o, reaping: make(chan struct{}, 1), pods: map[string]*pod{}, claimed: map[jail.Name]*pod{}, at: map[netip.Addr]*pod{}, jails: map[jail.Name]*pod{}, pools: map[string]*pool{}, uses: map[jail.Name]string{}, claims: map[jail.Name]string{},
		pooling: make(chan struct{}, 1), began: time.Now()}
	d.changed = sync.NewCond(&d.mu)
	d.background, d.stop = context.WithCancel(context.Background())
	side, pin, err := shim.ServerTLS(o.Key)
	if err != nil {
		return nil, err
	}
	d.pin = pin
	if d.Registry, err = jail.OpenRegistry(ctx, jail.RegistryOptions{Journal: o.Journal, Log: o.Log, Now: o.Now, Grace: o.Grace, Barrier: o.Barrier}); err != nil {
		return nil, err
	}
	d.followed = followClaims(o.API, o.Namespace, d.labels(), o.Log)
	d.watchers.Go(func() { d.followed.run(d.background) })
	d.server = shim.NewServer(shim.Options{TLS: side, Who: d.who, Arrived: d.arrived, Broken: d.broken, Window: o.Window, Log: o.Log})
	return d, nil
}

// Unwritten is a journal of nothing: what there is of jails the API server knows.
type Unwritten struct{}

// Put implements jail.Journal. An ended context is an error, as in the journal of the host daemon.
func (Unwritten) Put(ctx context.Context, _ jail.Record) error { return ctx.Err() }

// Delete implements jail.Journal.
func (Unwritten) Delete(context.Context, jail.Name) error { return nil }

// Load implements jail.Journal.
func (Unwritten) Load(context.Context) ([]jail.Record, []jail.Name, error) { return nil, nil, nil }

// Serve lets pods in, until the listener is closed.
func (d *Driver) Serve(l net.Listener) { d.server.Serve(l) }

// Close ends the connections, and with them what runs in the pods. The next control plane reaps what is left in the cluster.
func (d *Driver) Close() {
	d.stop()
	d.server.Close()
	d.watchers.Wait()
}

// Run ends jails whose time is up, or whose owner is gone, and removes objects that belong to no jail, until the context ends.
func (d *Driver) Run(ctx context.Context) {
	d.AwaitOwners()
	every := max(1, int(min(renewEvery, d.o.Absence/3)/time.Second))
	// The lease is renewed also while a removal takes long.
	var renewing sync.WaitGroup
	defer renewing.Wait()
	renewing.Go(func() {
		for {
			if _, err := d.renew(ctx); err != nil && ctx.Err() == nil {
				d.o.Log.Error("say that this control plane is there", "error", err)
			}
			if !wake.Sleep(ctx, time.Duration(every)*time.Second) {
				return
			}
		}
	})
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for looks := 0; ; looks++ {
		for r, why := range d.Overdue() {
			d.o.Log.Info("end a jail", "jail", r.Name, "reason", why.Text)
			if err := d.end(ctx, r.Name, why.Cause); err != nil && ctx.Err() == nil {
				d.o.Log.Error("end a jail", "jail", r.Name, "error", err)
			}
		}
		if looks%every == 0 {
			_, reaped := d.Reap(ctx, jail.ReapOptions{})
			if err := errors.Join(reaped, d.tidyPools(ctx), d.lookForOthers(ctx)); err != nil && ctx.Err() == nil {
				d.o.Log.Error("look after what is in the cluster", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// who identifies a pod by its token. It accepts pods that wait in a pool, and those that were claimed for a jail of this control plane.
func (d *Driver) who(ctx context.Context, token string, from netip.Addr) (string, any, error) {
	id, err := d.o.API.identify(ctx, d.o.Namespace, token, from, func(claim string) string {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.claims[jail.Name(claim)]
	})
	if err != nil {
		return "", nil, err
	}
	if id.Claim != "" {
		if _, err := d.Lookup(jail.Name(id.Claim)); err != nil {
			return "", nil, problem.Wrap(err, problem.NotFound, "it ends by itself", "the pod %s is of no jail of this control plane", id.Pod)
		}
	}
	return id.UID, id, nil
}

// arrived keeps a pod for the jail that it is claimed for, now or later.
func (d *Driver) arrived(p *shim.Pod) {
	d.mu.Lock()
	one := &pod{Pod: p, Identity: p.About().(Identity)}
	// The cluster has given the address to another pod: the one before is gone, and what was let through for it is not for this one.
	if before := d.at[p.Address()]; before != nil && before.Identity.UID != one.Identity.UID {
		d.o.Log.Warn("a pod is gone, as another one has its address", "pod", before.Identity.Pod, "address", p.Address(), "now", one.Identity.Pod)
		before.Forget()
	}
	d.at[p.Address()] = one
	of := d.pools[one.Pool]
	if of == nil {
		d.pods[one.Sandbox] = one
		if one.Claim != "" {
			d.claimed[jail.Name(one.Claim)] = one
		}
		d.changed.Broadcast()
	}
	d.mu.Unlock()
	d.watchers.Go(func() {
		if of != nil {
			d.warm(one, of.spec)
		}
		select {
		case <-p.Done():
		case <-d.background.Done():
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.at[p.Address()] == one {
			delete(d.at, p.Address())
		}
		if d.pods[one.Sandbox] == one {
			delete(d.pods, one.Sandbox)
			delete(d.claimed, jail.Name(one.Claim))
		}
	})
}

// warmLimit is how long a pod may take to say how it is confined before anybody wants it.
const warmLimit = time.Minute

// warm looks at a pod of a pool. A pod that is not as declared never becomes ready, so that no jail gets it.
func (d *Driver) warm(p *pod, spec jail.Spec) {
	ctx, cancel := context.WithTimeout(d.background, warmLimit)
	defer cancel()
	if err := d.confined(ctx, p, spec); err != nil {
		d.o.Log.Error("look at a pod of a warm pool", "pod", p.Identity.Pod, "pool", p.Pool, "error", err)
		p.Forget()
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	p.verified = true
	d.pods[p.Sandbox] = p
	d.changed.Broadcast()
}

// making is what a creation carries from step to step.
type making struct {
	jail.Making
	name jail.Name
	spec jail.Spec
	warm bool // pods wait for such jails
	pod  *pod
	ends [3]*os.File // of the program
}

// creation is the order in which a jail comes to be.
var creation = []jail.Beginning[*Driver, *making]{
	{Step: jail.StepClone, State: jail.StateCloned, Took: func(t *jail.Timing) *time.Duration { return &t.Clone }, Do: (*Driver).claim},
	{Step: jail.StepStart, State: jail.StateAttached, Took: func(t *jail.Timing) *time.Duration { return &t.Start }, Do: (*Driver).await},
	{Step: jail.StepVerify, Took: func(t *jail.Timing) *time.Duration { return &t.Verify }, Do: (*Driver).verify},
	{Step: jail.StepDeliver, Do: (*Driver).deliver},
	{Step: jail.StepBegin, State: jail.StateStarted, Took: func(t *jail.Timing) *time.Duration { return &t.Start }, Do: (*Driver).begin},
}

// Create makes a jail without an owner.
func (d *Driver) Create(ctx context.Context, spec jail.Spec) (*jail.Jail, error) {
	return d.CreateFor(ctx, "", spec, func(context.Context, *jail.Jail) error { return nil })
}

// CreateFor implements jail.Maker.
func (d *Driver) CreateFor(ctx context.Context, owner string, spec jail.Spec, deliver func(context.Context, *jail.Jail) error) (*jail.Jail, error) {
	if err := d.Check(ctx, spec); err != nil {
		return nil, err
	}
	e, err := d.Enter(jail.Record{Owner: owner, Spec: spec, Lease: jail.Lease{Index: -1, UID: jail.AgentUID}},
		func(n int) (jail.Name, error) { return jail.NewName(spec.Kind, d.o.Installation, n) })
	if err != nil {
		return nil, err
	}
	m := &making{Making: jail.Making{Deliver: deliver}, name: e.Record().Name, spec: spec}
	j, err := jail.Make(ctx, d, e, m, creation, plainly, d.teardown)
	if err == nil {
		d.o.Log.Info("jail made", "jail", j.Name, "pod", m.pod.Identity.Pod, "claim", j.Timing.Clone, "start", j.Timing.Start, "verify", j.Timing.Verify)
	}
	return j, err
}

func plainly(do func() error) error { return do() }

// await waits until the pod of the claim has connected.
func (d *Driver) await(ctx context.Context, e *jail.Entry, m *making) error {
	looking, enough := context.WithCancel(ctx)
	var sandbox string
	var why error // the pod does not come
	given := false
	changed := func(change func()) {
		d.mu.Lock()
		defer d.mu.Unlock()
		change()
		d.changed.Broadcast()
	}
	var looks sync.WaitGroup
	looks.Go(func() {
		// A pod that is made for the claim says whose it is when it connects. One that waited has connected before.
		if !m.warm && !wake.Sleep(looking, stuckAfter) {
			return
		}
		name, err := d.followed.sandbox(looking, string(m.name))
		if err != nil {
			changed(func() { why, given = err, looking.Err() == nil })
			return
		}
		changed(func() { sandbox = name })
		d.watchStuck(looking, name, func(reason error, final bool) { changed(func() { why, given = reason, final }) })
	})
	stop := context.AfterFunc(ctx, func() { changed(func() {}) })
	defer func() {
		stop()
		enough()
		looks.Wait()
	}()
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		if m.pod = cmp.Or(d.claimed[m.name], d.pods[sandbox]); m.pod != nil {
			break
		}
		if ctx.Err() != nil || given {
			return fmt.Errorf("wait for the pod of the claim %s: %w", m.name, cmp.Or(why, ctx.Err()))
		}
		d.changed.Wait()
	}
	d.jails[m.name] = m.pod
	m.Jail.Lease.Addr = m.pod.Address()
	e.Change(func(r *jail.Record) { r.Lease.Addr = m.pod.Address() })
	return nil
}

// verify looks at a pod that warm has not looked at.
func (d *Driver) verify(ctx context.Context, _ *jail.Entry, m *making) error {
	if m.pod.verified {
		return nil
	}
	return d.confined(ctx, m.pod, m.spec)
}

// deliver gives the jail to its owner, with the other ends of its program's stdio.
func (d *Driver) deliver(ctx context.Context, _ *jail.Entry, m *making) (err error) {
	if m.spec.Lifetime == jail.LifetimeKeep {
		ends, err := d.o.Console.Open(ctx, m.name, *m.spec.Agent)
		if err == nil {
			m.ends, err = jail.OwnStdio(ends) // those of the console are for a program to inherit, and a close of theirs wakes nobody
			for _, f := range ends {
				err = errors.Join(err, f.Close())
			}
		}
		if err != nil {
			return fmt.Errorf("make pipes: %w", err)
		}
		return m.hand(ctx)
	}
	if m.ends, m.Jail.Stdio, err = jail.Pipes(); err != nil {
		return err
	}
	return m.hand(ctx)
}

// hand gives the jail to its caller. The ends of its program are closed when the caller does not take it.
func (m *making) hand(ctx context.Context) error {
	err := m.Hand(ctx)
	if err != nil {
		for _, f := range m.ends {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}

// begin starts the program, and watches for its end.
func (d *Driver) begin(ctx context.Context, e *jail.Entry, m *making) error {
	running, err := m.pod.Run(ctx, shim.Run{Main: true, Program: m.spec.Program, Home: m.spec.Kind.Home(), HomeFiles: m.spec.HomeFiles, Make: folders(m.spec)}, m.ends)
	if err != nil {
		return err
	}
	e.Change(func(r *jail.Record) { r.Process.PID = running.PID })
	if e.Watch() {
		d.watchers.Go(func() {
			exit, err := running.Wait(d.background)
			if err != nil {
				exit = d.exitOf(m.pod)
			}
			e.Exited(exit)
		})
	}
	return nil
}

// Admit says that the gateway takes the jail's requests: a pod reaches it anyway, and nothing else.
func (d *Driver) Admit(ctx context.Context, name jail.Name) error {
	return d.AdmitBy(ctx, name, func(jail.Record) error { return nil })
}

// Inspect reports one jail, with what its pod says that it uses.
func (d *Driver) Inspect(ctx context.Context, name jail.Name) (jail.Status, error) {
	e, err := d.Lookup(name)
	if err != nil {
		return jail.Status{}, err
	}
	r := e.Record()
	s := r.Status()
	if p := d.podOf(name); p != nil && r.Exit == nil && r.Process.PID != 0 {
		s.Usage, err = p.Usage(ctx)
	}
	return s, err
}

func (d *Driver) podOf(name jail.Name) *pod {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.jails[name]
}

// Destroy ends a jail in whatever state it is.
func (d *Driver) Destroy(ctx context.Context, name jail.Name) error {
	return d.end(ctx, name, jail.CauseDestroyed)
}

func (d *Driver) end(ctx context.Context, name jail.Name, why jail.Cause) error {
	return d.End(ctx, name, why, d.teardown)
}

// ending is the teardown: the same list for close, failure and reaper.
var ending = []jail.Ending[*Driver]{
	{Step: jail.StepTerminate, Do: func(d *Driver, ctx context.Context, e *jail.Entry, r jail.Record) error {
		d.mu.Lock()
		delete(d.claims, r.Name)
		d.mu.Unlock()
		return d.terminate(ctx, e, r)
	}},
	{Step: jail.StepStop, Do: func(d *Driver, ctx context.Context, _ *jail.Entry, r jail.Record) error {
		if r.Spec.Lifetime != jail.LifetimeKeep {
			return nil
		}
		return d.o.Console.Finish(ctx, r.Name)
	}},
	{Step: jail.StepDestroy, Do: func(d *Driver, ctx context.Context, _ *jail.Entry, r jail.Record) error {
		return d.followed.remove(ctx, string(r.Name))
	}},
	{Step: jail.StepForget, Last: true, Do: func(d *Driver, _ context.Context, _ *jail.Entry, r jail.Record) error {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.jails, r.Name)
		d.unuse(r.Name)
		return nil
	}},
}

func (d *Driver) teardown(ctx context.Context, e *jail.Entry) error {
	return jail.TearDown(ctx, d, e, ending, plainly)
}

// terminate ends what runs in the pod. A pod that cannot be asked is deleted anyway.
func (d *Driver) terminate(ctx context.Context, _ *jail.Entry, r jail.Record) error {
	p := d.podOf(r.Name)
	if p == nil {
		return nil
	}
	grace := jail.OwnerGrace
	switch {
	case r.Exit != nil:
		grace = 0
	case r.Spec.Lifetime == jail.LifetimeKeep:
		grace = jail.KeepGrace
	}
	ctx, cancel := context.WithTimeout(ctx, grace+5*time.Second)
	defer cancel()
	if err := p.End(ctx, grace); err != nil {
		d.o.Log.Warn("end a pod", "jail", r.Name, "error", err)
		p.Forget()
	}
	return nil
}

// Reap removes the claims of this control plane that no jail here needs.
func (d *Driver) Reap(ctx context.Context, o jail.ReapOptions) (jail.ReapReport, error) {
	report := jail.ReapReport{Findings: []jail.Finding{}}
	select {
	case d.reaping <- struct{}{}:
		defer func() { <-d.reaping }()
	case <-ctx.Done():
		return report, ctx.Err()
	}
	// A jail is there before its claim, and goes after it: one that was there before the claims were read needs no look.
	known := map[jail.Name]bool{}
	for _, e := range d.Entries() {
		known[e.Record().Name] = true
	}
	claims, err := d.followed.names(ctx)
	if err != nil {
		return report, fmt.Errorf("reap: %w", err)
	}
	var errs []error
	for _, name := range claims {
		if _, err := d.Lookup(jail.Name(name)); err == nil || known[jail.Name(name)] {
			report.Jails++
			continue
		}
		f := jail.Finding{Name: jail.Name(name), Reason: "no jail of this control plane needs it"}
		if !o.DryRun {
			if err := d.followed.remove(ctx, name); err != nil {
				f.Error = err.Error()
				errs = append(errs, err)
			} else {
				f.Removed = true
			}
		}
		report.Findings = append(report.Findings, f)
		d.o.Log.Info("reap", "jail", f.Name, "reason", f.Reason, "removed", f.Removed, "error", f.Error)
	}
	return report, errors.Join(errs...)
}

// labels are those of everything that this control plane has made.
func (d *Driver) labels() map[string]string {
	return map[string]string{labelInstallation: string(d.o.Installation), labelNode: d.o.Node}
}
