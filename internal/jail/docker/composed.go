//go:build linux

package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/jail"
)

const (
	// composedEvery is how often the engine is asked for containers of docker-compose, beside its events.
	composedEvery = 10 * time.Second
	// composedPatience is how long a listing waits for another one.
	composedPatience = time.Minute
)

// composed are the containers of docker-compose that the gateway is open to.
type composed struct {
	one chan struct{} // one token: comparing
	// confined are containers of the network that cannot take the address of another. The caller that compares holds it.
	confined map[string]bool

	mu      sync.Mutex // guards what follows
	version uint64
	all     map[netip.Addr]jail.Composed
	news    chan struct{} // closed with the next version
	closed  bool          // no container is let in any more
}

func newComposed(now time.Time) composed {
	// It counts on from the clock, so that a version of an earlier process is none of this one's.
	return composed{one: make(chan struct{}, 1), version: uint64(now.UnixNano()), all: map[netip.Addr]jail.Composed{}, news: make(chan struct{})}
}

// agentsMember is the address of a member of the firewall's table of agents.
func agentsMember(t jail.HostResource) (netip.Addr, bool) {
	table, text, _ := strings.Cut(t.ID, " ")
	addr, err := netip.ParseAddr(text)
	return addr, t.Kind == jail.ResourceTableMember && jail.Table(table) == jail.TableAgents && err == nil
}

// has says whether a member of the firewall's table is one of them.
func (c *composed) has(t jail.HostResource) bool {
	addr, ok := agentsMember(t)
	if !ok {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, is := c.all[addr]
	return is
}

func (c *composed) snapshot() (map[netip.Addr]jail.Composed, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.all), c.closed
}

// set makes them others.
func (c *composed) set(all map[netip.Addr]jail.Composed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if maps.Equal(c.all, all) {
		return
	}
	c.all = all
	c.version++
	close(c.news)
	c.news = make(chan struct{})
}

// Composed lists the containers of docker-compose that the gateway is open to, when that is of another version than after; else it
// waits for a change, for up to a minute.
func (d *Driver) Composed(ctx context.Context, after uint64) (uint64, []jail.Composed, error) {
	c := &d.composed
	patience := time.NewTimer(composedPatience)
	defer patience.Stop()
	c.mu.Lock()
	if c.version == after {
		news := c.news
		c.mu.Unlock()
		select {
		case <-news:
		case <-patience.C:
		case <-d.background.Done():
		case <-ctx.Done():
			return 0, nil, ctx.Err()
		}
		c.mu.Lock()
	}
	defer c.mu.Unlock()
	out := slices.Collect(maps.Values(c.all))
	slices.SortFunc(out, func(a, b jail.Composed) int { return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.ID, b.ID)) })
	return c.version, out, nil
}

// followComposed compares what the gateway is open to with the engine whenever that says that something has changed, and now and
// then, until the context ends.
func (d *Driver) followComposed(ctx context.Context) {
	said := ""
	for ctx.Err() == nil {
		err := d.untilEventsEnd(ctx)
		// An engine that is away is told once.
		if err != nil && ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			d.o.Log.Warn("containers of docker-compose cannot be followed", "error", d.engineError(err))
		}
		wake.Sleep(ctx, time.Second)
	}
}

func (d *Driver) untilEventsEnd(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The events first: what happens after the comparison is told.
	events := d.engine.Events(ctx, client.EventsListOptions{Filters: client.Filters{}.Add("type", "container", "network").
		Add("event", "start", "die", "connect", "disconnect", "destroy")})
	every := time.NewTicker(composedEvery)
	defer every.Stop()
	for {
		if err := d.compareComposed(ctx); err != nil {
			return err
		}
		select {
		case <-events.Messages:
		case err := <-events.Err:
			return err
		case <-every.C:
		}
	}
}

// compareComposed opens the gateway to the containers of docker-compose that run on the network, and closes it to all that do not.
func (d *Driver) compareComposed(ctx context.Context) error {
	c := &d.composed
	select {
	case c.one <- struct{}{}:
		defer func() { <-c.one }()
	case <-ctx.Done():
		return ctx.Err()
	}
	old, closed := c.snapshot()
	if closed {
		return nil
	}
	n, err := d.prepare(ctx)
	if err != nil {
		return err
	}
	if err := d.expel(ctx, n); err != nil {
		return err
	}
	are, err := d.listComposed(ctx, n)
	if err != nil {
		return err
	}
	d.mu.Lock()
	firewall, pool := d.firewall, d.pool
	d.mu.Unlock()
	members, err := firewall.List(ctx)
	if err != nil {
		return err
	}
	open := map[netip.Addr]bool{}
	var errs []error
	for _, t := range members {
		addr, ok := agentsMember(t)
		if !ok || pool.IndexOf(addr) >= 0 {
			continue
		}
		if _, is := are[addr]; is && are[addr] == old[addr] {
			open[addr] = true
			continue
		}
		if err := firewall.RemoveResource(ctx, t); err != nil {
			errs = append(errs, fmt.Errorf("close the gateway to %s: %w", addr, err))
			continue
		}
		d.o.Log.Info("a container of docker-compose does not reach the gateway any more", "address", addr, "agent", old[addr].Agent)
	}
	// The owner of an address is known before the address is opened: no container is taken for the one that had it before.
	c.set(are)
	for addr, who := range are {
		if open[addr] {
			continue
		}
		if err := firewall.AddAddress(ctx, jail.TableAgents, addr); err != nil {
			errs = append(errs, fmt.Errorf("open the gateway to %s: %w", addr, err))
			continue
		}
		d.o.Log.Info("a container of docker-compose reaches the gateway", "address", addr, "tenant", who.Tenant, "agent", who.Agent)
	}
	return errors.Join(errs...)
}

// expel takes containers off the network that could speak there in the name of another: a container that sends packets of its own
// making (NET_RAW, which engines give by default) has any address, and so has one that is connected under it.
func (d *Driver) expel(ctx context.Context, n network) error {
	got, err := d.engine.NetworkInspect(ctx, n.id, client.NetworkInspectOptions{})
	if err != nil {
		return d.engineError(err)
	}
	known := d.composed.confined
	d.composed.confined = map[string]bool{}
	var errs []error
	for id := range got.Network.Containers {
		confined := known[id]
		if !confined {
			is, err := d.engine.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
			if cerrdefs.IsNotFound(err) {
				continue
			}
			if err != nil {
				errs = append(errs, d.engineError(err))
				continue
			}
			h := is.Container.HostConfig
			confined = h != nil && !h.Privileged && len(h.CapAdd) == 0 &&
				slices.ContainsFunc(h.CapDrop, func(c string) bool { return strings.EqualFold(c, "ALL") })
		}
		if confined {
			d.composed.confined[id] = true
			continue
		}
		if _, err := d.engine.NetworkDisconnect(ctx, n.id, client.NetworkDisconnectOptions{Container: id, Force: true}); err != nil && !cerrdefs.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("take container %.12s off the network: %w", id, d.engineError(err)))
			continue
		}
		d.o.Log.Warn("a container was taken off the network of agents: it has capabilities, with which it could speak for another (cap_drop: [ALL])", "container", id[:12])
	}
	return errors.Join(errs...)
}

// listComposed are the containers that run on the network, and on no other, with the labels of an agent, and that expel has let be.
func (d *Driver) listComposed(ctx context.Context, n network) (map[netip.Addr]jail.Composed, error) {
	list, err := d.engine.ContainerList(ctx, client.ContainerListOptions{Filters: client.Filters{}.Add("label", labelCompose+"=1")})
	if err != nil {
		return nil, d.engineError(err)
	}
	d.mu.Lock()
	pool := d.pool
	d.mu.Unlock()
	are := map[netip.Addr]jail.Composed{}
	for _, one := range list.Items {
		who := jail.Composed{ID: one.ID, Tenant: one.Labels[labelTenant], Agent: one.Labels[labelAgent]}
		if !d.composed.confined[one.ID] || one.State != container.StateRunning || one.NetworkSettings == nil || len(one.NetworkSettings.Networks) != 1 ||
			jail.ValidAgentName(who.Tenant) != nil || jail.ValidAgentName(who.Agent) != nil {
			continue
		}
		for _, on := range one.NetworkSettings.Networks {
			if on != nil && on.NetworkID == n.id {
				who.Addr = on.IPAddress.Unmap()
			}
		}
		// The addresses of leases are agents' that need no token.
		if !who.Addr.IsValid() || !n.subnet.Contains(who.Addr) || who.Addr == pool.Gateway() || pool.IndexOf(who.Addr) >= 0 {
			continue
		}
		if other, taken := are[who.Addr]; taken {
			return nil, fmt.Errorf("the engine says that %.12s and %.12s have the address %s", who.ID, other.ID, who.Addr)
		}
		are[who.Addr] = who
	}
	return are, nil
}

// withdrawComposed closes the gateway to all of them, for good, and says whether any is left on the network.
func (d *Driver) withdrawComposed(ctx context.Context) (left bool, err error) {
	if !d.o.Compose {
		return false, nil
	}
	c := &d.composed
	select {
	case c.one <- struct{}{}:
		defer func() { <-c.one }()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.set(map[netip.Addr]jail.Composed{})
	have, err := d.findNetwork(ctx)
	if err != nil || have == nil {
		return false, err
	}
	if err := d.furnish(ctx, have.subnet); err != nil {
		return false, err
	}
	var errs []error
	reap := d.reapMembers(ctx, func(_ jail.Finding, remove func() error) { errs = append(errs, remove()) })
	if err := errors.Join(append(errs, reap)...); err != nil {
		return false, err
	}
	are, err := d.listComposed(ctx, *have)
	return len(are) > 0, err
}
