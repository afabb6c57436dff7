//go:build linux

package docker

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"github.com/moby/moby/client"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/linux"
	"github.com/clawjail/clawjail/internal/problem"
)

// Options configure a Driver. They come from the root-owned configuration.
type Options struct {
	Installation jail.Installation
	// Socket is the path of the engine's socket.
	Socket string
	// Subnet is the network of the containers. None is the first of Subnets that the host does not use.
	Subnet netip.Prefix
	// Network is the name of the engine's network when it is free, or the installation's. Default sand_bed.
	Network string
	// Port is the gateway's.
	Port uint16
	// RunDir holds what does not outlive the host. It is made when it is missing.
	RunDir string
	// DataDir holds what outlives it: where in a container's output was read to. It is made when it is missing.
	DataDir string
	// WorkspaceRoots are the folders beneath which jails may see something.
	WorkspaceRoots []string
	// AddedRoots are further WorkspaceRoots, of the tenant default, asked for each time. May be nil.
	AddedRoots func() ([]string, error)
	// Journal keeps the records of containers, and of nothing else.
	Journal jail.Journal
	// Output takes what an agent's containers print. Without it no containers are kept.
	Output func(jail.Agent, jail.Stream) (Output, error)
	// Relay, when it is there, brings the containers' connections to the gateway. Without one the gateway is at the address of
	// their bridge.
	Relay *Relay
	// Compose keeps the network also without a container, and opens the gateway to what docker-compose has started on it.
	Compose bool
	// Grace is how long owner jails outlive their owner, and how long things without a record are left alone. Default 30 s.
	Grace time.Duration
	// ScanEvery is how often the engine is compared with the journal. Default 10 s.
	ScanEvery time.Duration
	Log       *slog.Logger     // default: discarded
	Now       func() time.Time // default time.Now
	// Barrier is called before every step of a creation, for tests that kill something there.
	Barrier func(jail.Step)
}

// Output keeps one stream of an agent. Package ringlog has one.
type Output interface {
	io.Writer
	// End is how many bytes were ever written.
	End() int64
}

// Subnets are the networks that containers get the first free one of. They stay clear of those of the other drivers and
// of what engines choose themselves.
func Subnets() []netip.Prefix {
	var out []netip.Prefix
	for _, s := range []string{"10.214.16.0/20", "10.187.16.0/20", "10.91.16.0/20", "172.30.224.0/20", "192.168.224.0/20"} {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// Validate fills in defaults and reports everything that is wrong at once.
func (o *Options) Validate() error {
	bad := problem.ValidationError{Code: problem.BadConfig}
	if _, err := jail.ParseInstallation(string(o.Installation)); err != nil {
		bad.Add("installation", "%v", err)
	}
	for name, dir := range map[string]string{"docker.socket": o.Socket, "run_dir": o.RunDir, "data_dir": o.DataDir} {
		if !filepath.IsAbs(dir) {
			bad.Add(name, "%q is not an absolute path", dir)
		}
	}
	for _, dir := range o.WorkspaceRoots {
		if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir || dir == "/" {
			bad.Add("agents.workspace_roots", "%q is not an absolute, clean path of a folder", dir)
		}
	}
	if o.Port == 0 {
		bad.Add("port", "the gateway's port is missing")
	}
	if o.Journal == nil {
		bad.Add("journal", "is missing")
	}
	if o.Subnet.IsValid() {
		if _, err := jail.NewPool(o.Subnet, jail.AgentUID); err != nil {
			bad.Add("docker.subnet", "%v", err)
		}
	}
	if o.Relay != nil {
		o.Relay.validate(&bad)
	}
	if o.Relay != nil && o.Compose {
		bad.Add("docker.compose", "is for a gateway that listens at the containers' bridge")
	}
	if o.Network == "" {
		o.Network = NetworkName
	}
	if o.Grace <= 0 {
		o.Grace = 30 * time.Second
	}
	if o.ScanEvery <= 0 {
		o.ScanEvery = 10 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Barrier == nil {
		o.Barrier = func(jail.Step) {}
	}
	return bad.Err()
}

// Driver is a jail.Maker of containers. It speaks with the engine when there is something to do, and not before.
type Driver struct {
	*jail.Registry
	o      Options
	engine *client.Client

	background context.Context // ends the watchers
	stop       context.CancelFunc
	watchers   sync.WaitGroup
	reaping    chan struct{} // one token: single flight
	preparing  chan struct{} // one token

	mu       sync.Mutex
	drained  map[jail.Name]chan struct{} // closed when what a container printed was read; of those that are followed
	network  network                     // zero until it was needed
	pool     *jail.Pool
	firewall *linux.Firewall
	relay    jail.Process // zero until one was made or found

	composed composed
}

var _ jail.Maker = (*Driver)(nil)

// New reads the journal. Containers that it names are taken over by Run.
func New(o Options) (*Driver, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	engine, err := client.New(client.WithHost("unix://"+o.Socket), client.WithUserAgent("clawjail"))
	if err != nil {
		return nil, err
	}
	d := &Driver{
		o: o, engine: engine, reaping: make(chan struct{}, 1), preparing: make(chan struct{}, 1),
		drained: map[jail.Name]chan struct{}{}, composed: newComposed(o.Now()),
	}
	d.background, d.stop = context.WithCancel(context.Background())
	if d.Registry, err = jail.OpenRegistry(d.background, jail.RegistryOptions{Journal: o.Journal, Log: o.Log, Now: o.Now, Grace: o.Grace, Barrier: o.Barrier}); err != nil {
		return nil, errors.Join(err, d.Close(d.background))
	}
	for _, e := range d.Entries() {
		r := e.Record()
		if r.Exit == nil && r.Process.PID != 0 {
			if err := d.endExecutions(r); err != nil {
				o.Log.Error("end what an earlier process started in a container", "jail", r.Name, "error", err)
			}
			d.watch(e)
			d.follow(e)
		}
	}
	return d, nil
}

// Gateway is the address at which containers find the gateway: that of their bridge, where it is to listen, or the relay's.
// It is zero until a container was wanted.
func (d *Driver) Gateway() netip.Addr {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pool == nil {
		return netip.Addr{}
	}
	return d.gatewayAddr(d.pool)
}

// Close stops watching. Containers run on; the next Driver takes them over.
func (d *Driver) Close(context.Context) error {
	d.stop()
	d.watchers.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	if d.firewall != nil {
		errs = append(errs, d.firewall.Close())
		d.firewall = nil
	}
	return errors.Join(append(errs, d.engine.Close())...)
}

// Run looks after the rules every second, enforces wall clocks and grace periods, and compares the engine with the
// journal now and then, until the context ends. While no container was ever wanted it does nothing. Owners could not come
// back before it, however long the start took.
func (d *Driver) Run(ctx context.Context) error {
	d.AwaitOwners()
	if d.o.Compose {
		var following sync.WaitGroup
		following.Go(func() { d.followComposed(ctx) })
		defer following.Wait()
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var scanned time.Time
	for {
		if err := d.look(ctx, &scanned); err != nil && ctx.Err() == nil {
			d.o.Log.Error("look after the containers", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (d *Driver) look(ctx context.Context, scanned *time.Time) error {
	if !d.wanted() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, jail.TeardownLimit)
	defer cancel()
	errs := []error{d.guard(ctx), d.guardRelay(ctx)}
	if d.o.Now().Sub(*scanned) >= d.o.ScanEvery {
		*scanned = d.o.Now()
		_, err := d.Reap(ctx, jail.ReapOptions{})
		return errors.Join(append(errs, err)...)
	}
	for r, why := range d.Overdue() {
		d.o.Log.Info("end a container", "jail", r.Name, "reason", why.Text)
		errs = append(errs, d.end(ctx, r.Name, why.Cause))
	}
	return errors.Join(errs...)
}

// wanted says whether there is, or was, a container since the driver was made.
func (d *Driver) wanted() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pool != nil || len(d.Entries()) > 0
}
