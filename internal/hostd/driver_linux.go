package hostd

import (
	"context"
	"errors"
	"os"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/docker"
	"github.com/clawjail/clawjail/internal/jail/linux"
)

// Assemble makes this host's driver out of its five parts. The records of the journal have claimed their leases
// in the pool before Parts.Start is called.
func Assemble(ctx context.Context, how AssembleOptions) (_ Parts, err error) {
	c, id, pool, log := how.Config, how.Installation, how.Pool, how.Log
	if c.Kubernetes.On() {
		return assemblePods(ctx, c, id, log)
	}
	if err := linux.BecomeSubreaper(); err != nil {
		return Parts{}, err
	}
	added := func() ([]string, error) { return UsableRoots(c) }
	o := linux.Options{
		Installation: id, RunDir: c.RunDir, DataDir: c.DataDir, Templates: c.TemplatesDir, AddedRoots: added,
		Storage: string(c.Storage), ZFSDataset: c.ZFSDataset, Runtime: c.Runtime, Gateway: pool.Gateway(), Log: log,
		WorkspaceRoots: c.Agents.WorkspaceRoots, JailRoots: c.Agents.JailRoots, StageDir: os.Getenv(stageDirVariable), Share: ShareOfSeveral(c.Quotas),
	}
	if o.AppArmor, err = linux.LoadAppArmor(ctx, linux.AppArmorOptions{Installation: id, Mode: string(c.AppArmor), Root: "/", Log: log}); err != nil {
		return Parts{}, err
	}
	var closers []func(context.Context) error
	closeAll := func(ctx context.Context) error {
		var errs []error
		for i := len(closers) - 1; i >= 0; i-- {
			errs = append(errs, closers[i](ctx))
		}
		return errors.Join(errs...)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, closeAll(context.WithoutCancel(ctx)))
		}
	}()
	closeOf := func(f func() error) { closers = append(closers, func(context.Context) error { return f() }) }

	storage, err := linux.NewStorage(o)
	if err != nil {
		return Parts{}, err
	}
	closeOf(storage.Close)
	if err := storage.Ready(ctx); err != nil {
		return Parts{}, err
	}
	limiter, err := linux.NewLimiter(o)
	if err != nil {
		return Parts{}, err
	}
	runtime, err := linux.NewRuntime(o, limiter)
	if err != nil {
		return Parts{}, err
	}
	closeOf(runtime.Close)
	network, err := linux.OpenNetwork(ctx, linux.NetworkConfig{
		Installation: id, Pool: pool, RunDir: c.RunDir, Ready: c.NetworkSlots.Ready, Ending: how.Ending, Log: log})
	if err != nil {
		return Parts{}, err
	}
	closers = append(closers, network.Close)
	firewall, err := linux.OpenFirewall(ctx, linux.FirewallConfig{Installation: id, Pool: pool, Port: c.Gateway.Port, Log: log})
	if err != nil {
		return Parts{}, err
	}
	closeOf(firewall.Close)
	return Parts{
		Parts: jail.Parts{Storage: storage, Network: network, Firewall: firewall, Runtime: runtime, Limiter: limiter, Means: runtime.Means()},
		Start: func(ctx context.Context) error {
			network.Start()
			return nil
		},
		Close:  closeAll,
		Divide: limiter.Divide, Volumes: storage.Volumes, Unlinked: limiter.Unlinked,
		RemoveMade: func(ctx context.Context, a jail.Agent, mounts []jail.Mount) error {
			if len(mounts) == 0 {
				return nil
			}
			roots, err := jail.RootsFor(a.Tenant, c.Agents.WorkspaceRoots, added)
			if err != nil {
				return err
			}
			return linux.RemoveMade(ctx, roots, linux.Holder{Installation: id, Agent: a}, mounts)
		},
	}, nil
}

// OpenContainers makes the driver of containers. It asks the engine for nothing before there is something to do.
func OpenContainers(c config.Config, id jail.Installation, o ContainerOptions) (Containers, error) {
	relay, err := relayOf(c, o)
	if err != nil {
		return nil, err
	}
	return docker.New(docker.Options{
		Installation: id, Socket: c.Docker.Socket, Subnet: c.Docker.Subnet, Port: c.Gateway.Port,
		RunDir: c.RunDir, DataDir: c.DataDir, WorkspaceRoots: c.Agents.WorkspaceRoots, Journal: o.Journal,
		AddedRoots: func() ([]string, error) { return UsableRoots(c) },
		Output:     func(a jail.Agent, s jail.Stream) (docker.Output, error) { return o.Output(a, s) },
		Relay:      relay, Compose: c.Docker.Compose,
		Grace: o.Grace, Log: o.Log, Now: o.Now, Barrier: o.Barrier,
	})
}

// Uninstall removes what all jails of an installation share. It refuses while there are jails.
func Uninstall(ctx context.Context, c config.Config, id jail.Installation, pool *jail.Pool) error {
	if c.Kubernetes.On() {
		return leaveCluster(ctx, c, id)
	}
	o := linux.Options{Installation: id, RunDir: c.RunDir, DataDir: c.DataDir, Gateway: pool.Gateway()}
	limiter, err := linux.NewLimiter(o)
	if err != nil {
		return err
	}
	firewall, err := linux.OpenFirewall(ctx, linux.FirewallConfig{Installation: id, Pool: pool, Port: c.Gateway.Port})
	if err != nil {
		return err
	}
	return linux.Uninstall(ctx, o, limiter, firewall)
}

// Trees makes the folders that templates are built in, so that this host's storage can clone them.
func Trees(c config.Config) (TreeMaker, error) {
	return linux.OpenTrees(c.DataDir, string(c.Storage), c.ZFSDataset)
}
