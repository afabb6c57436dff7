// Package hostd is the host daemon: the small root process that makes jails for the control plane, and the client
// with which the control plane talks to it. The client is a jail.Driver.
//
// It promises:
//
//   - It trusts its caller with jails, not with the host. The kernel says which user calls: only the control plane's
//     user and root get an answer. Operations have typed arguments; a name is a name of
//     this installation, an unknown or doubled member of a request is an error, and no operation takes a command
//     for the host. The folders of the host that a jail is to see, or is made of, are opened by descriptor beneath
//     workspace_roots and jail_roots of the configuration, which is root's, and beneath folders that root has added.
//   - The stdio of a jail goes to its caller as descriptors and is closed here at once. A jail whose stdio the
//     caller did not receive is destroyed.
//   - Jails belong to an owner: the process that holds a connection open under a random token. When the connection
//     drops, also because the process was killed, the owner's jails end after a grace period.
//   - Jails of agents are kept: what is declared of them stands on the disk, they are started again when they end
//     and when the host does, and they outlive both daemons. See the packages keeper and console.
//   - Before anything of a jail exists on the host, a file of the journal names it. A host daemon that starts
//     reads the journal and the host, and removes what should not be there, before it takes the first call.
//
// One connection carries one call. The caller sends one frame, the host daemon answers with one and closes;
// a caller that closes first has changed its mind, and the call is cancelled. A program that is started in a jail has a
// second answer: when it has ended.
package hostd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/hostd/stdio"
	"github.com/clawjail/clawjail/internal/jail"
)

// Jails is a driver of the jails of templates. A *jail.Lifecycle is one.
type Jails interface {
	driver
	AwaitOwners() // is that of jail.Registry
	// Run ends the jails whose time is up until the context ends.
	Run(ctx context.Context)
	Close()
}

// driver is one that makes jails for owners.
type driver interface {
	jail.Maker
	// Lost and Found are those of jail.Registry.
	Lost(owner string)
	Found(owner string)
	// HostResources lists what there is of jails, but for their records.
	HostResources(ctx context.Context) ([]jail.HostResource, error)
}

// Parts are the five parts of a driver together with what all jails share.
type Parts struct {
	jail.Parts
	// Jails makes a driver that is not made of parts. It may be nil: then it is a jail.Lifecycle of them.
	Jails func(ctx context.Context, o jail.Options) (Jails, error)
	// Journal is for the records of such a driver, instead of the host daemon's own. It may be nil.
	Journal jail.Journal
	// Gateway is where such jails reach the gateway. It may be zero: then they reach that of the pool.
	Gateway netip.Addr
	// Start makes what all jails share (a bridge, a firewall table, a tree of cgroups) and begins what works in
	// the background. It is called after the first Reap: the parts can list and remove before it, and nothing
	// that an earlier process left is in its way. It may be nil.
	Start func(ctx context.Context) error
	// Close ends what works in the background and removes what was made ahead. Jails run on. It is called once,
	// also when Start failed. It may be nil.
	Close func(ctx context.Context) error
	// Divide says how much of a whole the jails of a tenant may take together. It is called again and again. It is nil where the
	// host cannot bound them together.
	Divide func(ctx context.Context, share func(whole int64) int64) error
	// Unlinked is that of WorkspaceOptions. May be nil.
	Unlinked func(device uint64) (map[string]int64, error)
	// Volumes are how large what agents keep may become, by their keys, also of those that are gone. It is nil where nothing of
	// that has a size.
	Volumes func() (map[string]int64, error)
	// RemoveMade removes the folders of an agent's mounts that were made for it alone. Where it is nil they stay.
	RemoveMade func(ctx context.Context, a jail.Agent, mounts []jail.Mount) error
}

// Options are what Serve needs. Fields without a default are required.
type Options struct {
	// Socket is the path of the unix socket, in a folder that only this process's user can write.
	Socket string
	// Group owns the socket beside this process's user; -1 leaves the group that it is made with.
	Group int
	// ControlUID is the user that may call, besides root.
	ControlUID uint32
	// Installation marks everything on the host.
	Installation jail.Installation
	Pool         *jail.Pool
	Parts        Parts
	Journal      jail.Journal
	// Keep is about the jails of agents.
	Keep KeepOptions
	// Containers makes the driver of containers, with ContainerJournal. Without both there are none.
	Containers       func(ContainerOptions) (Containers, error)
	ContainerJournal jail.Journal
	// Checkpoints is the path of the file that keeps the audit log's notes, in a folder that only this process's user
	// can write. It is made when it is missing.
	Checkpoints string
	// HasTemplate returns nil when jails can be made from the template. The name has been validated.
	HasTemplate func(ctx context.Context, name string) error
	// Templates lists the templates that there are.
	Templates func(ctx context.Context) ([]Template, error)
	// Version of the program, for OpInfo.
	Version string
	// ListBytes is how much of a list one answer has. Default 8 MiB.
	ListBytes int

	Log *slog.Logger     // default: nothing is logged
	Now func() time.Time // default time.Now
	// Grace is that of jail.Options, and 30 s by default. ScanEvery is how often the host is compared with the journal. Default 1 min.
	Grace, ScanEvery time.Duration
	// Barrier is called before every step of a jail's life, for tests that kill the process there. May be nil.
	Barrier func(jail.Step)
	// Notify tells the service manager about READY=1 and STOPPING=1. May be nil.
	Notify func(state string) error

	// Quotas say how much of the Memory that jails may declare together, in bytes, and of the host's a tenant may have.
	Quotas config.Quotas
	Memory int64
	// Workspaces say which folders of the host are looked after, so that no tenant takes their whole disk.
	Workspaces WorkspaceOptions
	// MaxJails bounds the jails of the installation. Default 1024.
	MaxJails int
	// MaxConnections bounds the open connections of one user. A quarter of them is kept for calls that do not
	// last. Default 256.
	MaxConnections int
	// MaxCreates bounds the creates that work at the same time; further ones wait. Default 32.
	MaxCreates int
	// Patience is how long a caller may take to send a request, to read an answer or to accept a jail, and how
	// long calls may go on after the end was asked for. Default 5 s.
	Patience time.Duration

	// EndJails ends every jail when Serve ends. Without it they run on, and the next host daemon takes them over.
	EndJails bool
}

func (o *Options) defaults() error {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, fmt.Errorf("host daemon: %s is missing", what))
		}
	}
	need(o.Socket != "", "the path of the socket")
	need(o.HasTemplate != nil && o.Templates != nil, "the templates")
	need(o.Pool != nil, "the address pool")
	need(o.Journal != nil, "the journal")
	need(o.Checkpoints != "", "the path of the checkpoints")
	errs = append(errs, o.Keep.defaults())
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	nothing := func(context.Context) error { return nil }
	if o.Parts.Start == nil {
		o.Parts.Start = nothing
	}
	if o.Parts.Close == nil {
		o.Parts.Close = nothing
	}
	if o.Notify == nil {
		o.Notify = func(string) error { return nil }
	}
	o.Grace = cmp.Or(o.Grace, 30*time.Second)
	o.ScanEvery = cmp.Or(o.ScanEvery, time.Minute)
	if o.Quotas == (config.Quotas{}) {
		o.Quotas = config.Default().Quotas
	}
	o.ListBytes = cmp.Or(o.ListBytes, pageBytes)
	o.MaxJails = cmp.Or(o.MaxJails, 1024)
	o.MaxConnections = cmp.Or(o.MaxConnections, 256)
	o.MaxCreates = cmp.Or(o.MaxCreates, 32)
	o.Patience = cmp.Or(o.Patience, 5*time.Second)
	need(o.MaxJails > 0 && o.MaxConnections > 0 && o.MaxCreates > 0 && o.Patience > 0 && o.ScanEvery > 0 && o.ListBytes > 0, "a limit, which must be positive,")
	return errors.Join(errs...)
}

// open makes the driver.
func (p Parts) open(ctx context.Context, o jail.Options) (Jails, error) {
	if p.Jails != nil {
		return p.Jails(ctx, o)
	}
	o.Parts = p.Parts
	return jail.NewLifecycle(ctx, o)
}

const (
	// endLimit bounds how long the jails of a host daemon that ends them may take.
	endLimit = 60 * time.Second
	// endAtOnce is how many are ended at the same time.
	endAtOnce = 16
	// never keeps the lifecycle from comparing the host with the journal by its own timer, which keeps the report to
	// itself: scan does it.
	never = math.MaxInt64
)

// Serve takes over what the journal names, removes what should not be on the host, and serves calls until the
// context ends. It returns when everything that it started has ended.
func Serve(ctx context.Context, o Options) (err error) {
	if err := o.defaults(); err != nil {
		return err
	}
	reaped := newReapings(o.Now)
	who := newTenants(o)
	var folders *workspaces
	count := &bound{limit: o.MaxJails, jails: map[jail.Name]declared{}, check: func(s jail.Spec, held int64) error {
		return errors.Join(who.check(s.Tenant(), held, s.Limits.Memory), folders.check(s))
	}}
	counted := func(j jail.Journal) jail.Journal {
		return &boundedJournal{Journal: &reapJournal{Journal: j, reaped: reaped}, bound: count}
	}
	consoles, err := stdio.New(stdio.Options{
		Installation: o.Installation, Dir: o.Keep.Consoles, Logs: o.Keep.Logs, Keep: o.Keep.LogBytes, Log: o.Log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, consoles.Close()) }()
	life, err := o.Parts.open(ctx, jail.Options{
		Installation: o.Installation, Pool: o.Pool, Journal: counted(o.Journal), Log: o.Log,
		Now: o.Now, Grace: o.Grace, ScanEvery: never, Barrier: o.Barrier, Console: consoles,
	})
	if err != nil {
		return err
	}
	defer life.Close()
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endLimit)
		defer cancel()
		if closeErr := o.Parts.Close(end); closeErr != nil {
			err = errors.Join(err, fmt.Errorf("end the driver: %w", closeErr))
		}
	}()
	m := makers{life: life, template: o.HasTemplate, images: o.Parts.Jails != nil}
	if m.containers, err = o.openContainers(counted(o.ContainerJournal), consoles); err != nil {
		return err
	}
	if m.containers != nil {
		defer func() { err = errors.Join(err, m.containers.Close(context.WithoutCancel(ctx))) }()
	}
	folders = newWorkspaces(o, who, m)
	report, err := life.Reap(asReaper(ctx), jail.ReapOptions{})
	reaped.note(report)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		// One thing that cannot be removed must not keep everything else from running: the timer tries again.
		o.Log.Error("remove what an earlier run has left", "error", err)
	}
	if err := o.Parts.Start(ctx); err != nil {
		return fmt.Errorf("prepare the host: %w", err)
	}
	notes, err := openCheckpoints(o.Checkpoints, o.Now, o.Log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, notes.close()) }()
	keeping, err := o.openKeeper(m, consoles, who, count.room)
	if err != nil {
		return err
	}
	listener, err := listen(o.Socket, o.Group)
	if err != nil {
		return errors.Join(err, keeping.Close())
	}
	s := newServer(o, m, keeping, count, who, notes, reaped)
	background, endBackground := context.WithCancel(context.WithoutCancel(ctx))
	var owned sync.WaitGroup
	owned.Go(func() { life.Run(asReaper(background)) })
	owned.Go(func() { folders.run(background) })
	owned.Go(func() { scan(background, life, o.ScanEvery, reaped, o.Log) })
	if m.containers != nil {
		owned.Go(func() {
			if err := m.containers.Run(asReaper(background)); err != nil {
				o.Log.Error("look after the containers", "error", err)
			}
		})
	}
	keeping.Start()
	owned.Go(func() { s.accept(background, listener) })
	o.Log.Info("host daemon is ready", "socket", o.Socket, "installation", o.Installation, "subnet", o.Pool.Subnet())
	s.notify("READY=1")

	<-ctx.Done()
	s.notify("STOPPING=1")
	err = listener.Close() // removes the socket: a client that connects from now on gets an error at once
	s.drain()
	err = errors.Join(err, keeping.Close())
	if o.EndJails {
		err = errors.Join(err, endJails(background, m, o.Log))
	}
	endBackground()
	owned.Wait()
	return err
}

// endJails ends every jail there is, those of agents too: they are started again with the next host daemon.
func endJails(ctx context.Context, m makers, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, endLimit)
	defer cancel()
	all, err := m.list(ctx)
	if err != nil {
		return err
	}
	log.Info("end all jails", "count", len(all))
	errs := make([]error, len(all))
	atOnce := make(chan struct{}, endAtOnce)
	var working sync.WaitGroup
	for i, st := range all {
		atOnce <- struct{}{}
		working.Go(func() {
			defer func() { <-atOnce }()
			errs[i] = m.destroy(ctx, st.Name)
		})
	}
	working.Wait()
	if m.containers != nil && m.containers.Gateway().IsValid() {
		err := m.containers.RemoveNetwork(ctx)
		if errors.Is(err, jail.ErrComposed) {
			log.Info("containers of docker-compose are left; none of them reaches the gateway")
			err = nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
