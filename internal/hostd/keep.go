package hostd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"time"

	"github.com/clawjail/clawjail/internal/hostd/agents"
	"github.com/clawjail/clawjail/internal/hostd/stdio"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// KeepOptions say where the jails of agents are kept. Those without a default are required.
type KeepOptions struct {
	// Agents is the folder of the declarations and tokens, Logs that of what was printed.
	Agents, Logs string
	// Consoles is the folder of the pipes, on a file system that does not outlive the host.
	Consoles string
	// LogBytes is how much of each stream is kept. Default 8 MiB.
	LogBytes int64
	// Boot names this run of the host. Default what the kernel says.
	Boot string
	// MaxAgents, MaxStarts and FirstPause are those of agents.Options. MaxAgents is Options.MaxJails by default.
	MaxAgents  int
	MaxStarts  int
	FirstPause time.Duration
}

func (k *KeepOptions) defaults() (err error) {
	if k.Agents == "" || k.Logs == "" || k.Consoles == "" {
		err = errors.New("host daemon: a folder of what is kept is missing")
	}
	k.LogBytes = cmp.Or(k.LogBytes, 8<<20)
	if k.Boot == "" {
		var bootErr error
		k.Boot, bootErr = agents.BootOf()
		err = errors.Join(err, bootErr)
	}
	return err
}

// Containers is the driver that makes the jails of agents as containers of an engine. It asks the engine for nothing before
// there is something to do.
type Containers interface {
	driver
	// Run looks after the network, the rules and the containers until the context ends.
	Run(ctx context.Context) error
	// Gateway is the address of the gateway for containers; zero while no container was wanted.
	Gateway() netip.Addr
	// Composed lists the containers of docker-compose that the gateway is open to, when that is of another version than after;
	// else it waits for a change until the context ends or a minute has passed.
	Composed(ctx context.Context, after uint64) (version uint64, all []jail.Composed, err error)
	// RemoveNetwork removes what all containers share, when there are none.
	RemoveNetwork(ctx context.Context) error
	// Uninstall removes every container of the installation, what they have kept in volumes, and what they share.
	Uninstall(ctx context.Context) error
	Close(ctx context.Context) error
}

// ContainerOptions are what a driver of containers gets from the host daemon.
type ContainerOptions struct {
	// Journal is for the records of containers alone.
	Journal jail.Journal
	// Output keeps what containers print.
	Output  func(jail.Agent, jail.Stream) (LogWriter, error)
	Grace   time.Duration
	Log     *slog.Logger
	Now     func() time.Time
	Barrier func(jail.Step)
	// UID and GID are the control plane's.
	UID, GID int
}

// LogWriter keeps one stream of an agent.
type LogWriter interface {
	io.Writer
	// End is how many bytes were ever written.
	End() int64
}

// makers are the drivers of this host.
type makers struct {
	life       Jails
	containers Containers // nil where there is no engine
	// images says that life makes jails of images, too.
	images bool
	// template says whether jails may be made of one.
	template func(ctx context.Context, name string) error
}

// drivers are both, or the one.
func (m makers) drivers() []driver {
	if m.containers == nil {
		return []driver{m.life}
	}
	return []driver{m.life, m.containers}
}

// of is the driver that a jail of that name is, or would be, of.
func (m makers) of(_ context.Context, inContainer bool) (jail.Maker, error) {
	if !inContainer || m.images {
		return ofTemplates{m.life, m.template}, nil
	}
	if m.containers == nil {
		return nil, problem.New(problem.Unsupported, "name a template instead of an image", "this host daemon makes no containers")
	}
	return m.containers, nil
}

// ofTemplates makes no jail of a template that is missing, or not as it was built, for every caller and however long ago the jail
// was declared.
type ofTemplates struct {
	jail.Maker
	template func(ctx context.Context, name string) error
}

// CreateFor implements jail.Maker.
func (o ofTemplates) CreateFor(ctx context.Context, owner string, spec jail.Spec, deliver func(context.Context, *jail.Jail) error) (*jail.Jail, error) {
	if err := errors.Join(spec.Validate(), o.good(ctx, spec)); err != nil {
		return nil, err
	}
	return o.Maker.CreateFor(ctx, owner, spec, deliver)
}

// Check implements jail.Maker.
func (o ofTemplates) Check(ctx context.Context, spec jail.Spec) error {
	if err := o.Maker.Check(ctx, spec); err != nil {
		return err
	}
	return o.good(ctx, spec)
}

func (o ofTemplates) good(ctx context.Context, spec jail.Spec) error {
	if spec.Template == "" || jail.ValidTemplateName(spec.Template) != nil {
		return nil // of something else, or refused by name
	}
	return o.template(ctx, spec.Template)
}

// named is the driver of a jail.
func (m makers) named(ctx context.Context, n jail.Name) (jail.Maker, error) {
	return m.of(ctx, n.InContainer())
}

// destroy ends a jail of any driver.
func (m makers) destroy(ctx context.Context, n jail.Name) error {
	maker, err := m.named(ctx, n)
	if err != nil {
		return err
	}
	return maker.Destroy(ctx, n)
}

// list lists the jails of all drivers.
func (m makers) list(ctx context.Context) ([]jail.Status, error) {
	all, err := m.life.List(ctx)
	if err != nil || m.containers == nil {
		return all, err
	}
	more, err := m.containers.List(ctx)
	return append(all, more...), err
}

// hasContainers says whether the engine is needed: a host without containers may have no engine.
func (m makers) hasContainers(ctx context.Context) bool {
	if m.containers == nil {
		return false
	}
	all, err := m.containers.List(ctx)
	return err != nil || len(all) > 0 || m.containers.Gateway().IsValid()
}

// openContainers makes the driver of containers, where there is one.
func (o *Options) openContainers(journal jail.Journal, c *stdio.Console) (Containers, error) {
	if o.Containers == nil || o.ContainerJournal == nil {
		return nil, nil
	}
	d, err := o.Containers(ContainerOptions{
		Journal: journal, Grace: o.Grace, Log: o.Log, Now: o.Now, Barrier: o.Barrier,
		Output: func(a jail.Agent, s jail.Stream) (LogWriter, error) { return c.Writer(a, s) },
	})
	if err != nil {
		return nil, fmt.Errorf("prepare containers: %w", err)
	}
	return d, nil
}

// openKeeper reads what is declared.
func (o *Options) openKeeper(m makers, c *stdio.Console, who *tenants, room func() error) (*agents.Keeper, error) {
	k, err := agents.Open(agents.Options{
		Dir: o.Keep.Agents, Maker: m.of, Console: c, Boot: o.Keep.Boot, Log: o.Log, Now: o.Now, Room: room,
		RemoveMade: o.Parts.RemoveMade, Share: who.share,
		MaxAgents: cmp.Or(o.Keep.MaxAgents, o.MaxJails), MaxStarts: o.Keep.MaxStarts, FirstPause: o.Keep.FirstPause,
	})
	if err != nil {
		return nil, fmt.Errorf("read the agents: %w", err)
	}
	return k, nil
}
