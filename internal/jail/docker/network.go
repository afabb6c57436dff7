//go:build linux

package docker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	cerrdefs "github.com/containerd/errdefs"
	apinetwork "github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/linux"
	"github.com/clawjail/clawjail/internal/problem"
)

// NetworkName is the name of the agents' network in the wire contract.
const NetworkName = "sand_bed"

// othersBits is the part of the network, at its beginning, from which the engine gives containers addresses by itself. Leases are
// behind it, so that no container of somebody else's is given the address that an agent's has just had.
const othersBits = 25

func othersRange(subnet netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(subnet.Masked().Addr(), othersBits)
}

// Options of the engine's bridge driver.
const (
	optionBridge = "com.docker.network.bridge.name"
	optionICC    = "com.docker.network.bridge.enable_icc"
)

// network is the engine's network of the installation.
type network struct {
	id, name string
	subnet   netip.Prefix
}

// prepare makes sure of the network and of the rules on its bridge. The rules come first: no container of ours ever has a
// network without them.
func (d *Driver) prepare(ctx context.Context) (network, error) {
	return d.with(ctx, func(*linux.Firewall) error { return nil })
}

// with is prepare, and then use, before anybody can remove what was prepared.
func (d *Driver) with(ctx context.Context, use func(*linux.Firewall) error) (network, error) {
	done, err := d.turn(ctx)
	if err != nil {
		return network{}, err
	}
	defer done()
	n, err := d.provide(ctx)
	if err != nil {
		return network{}, err
	}
	d.mu.Lock()
	firewall := d.firewall
	d.mu.Unlock()
	return n, use(firewall)
}

// turn waits for the token of preparing, until done.
func (d *Driver) turn(ctx context.Context) (done func(), err error) {
	select {
	case d.preparing <- struct{}{}:
		return func() { <-d.preparing }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// provide is prepare for who has the token.
func (d *Driver) provide(ctx context.Context) (network, error) {
	have, err := d.findNetwork(ctx)
	if err != nil {
		return network{}, err
	}
	if have == nil {
		subnet, err := d.chooseSubnet(ctx)
		if err != nil {
			return network{}, err
		}
		have = &network{subnet: subnet}
	}
	if err := d.furnish(ctx, have.subnet); err != nil {
		return network{}, err
	}
	if have.id == "" {
		if *have, err = d.makeNetwork(ctx, have.subnet); err != nil {
			return network{}, err
		}
	}
	d.mu.Lock()
	d.network = *have
	d.mu.Unlock()
	return *have, d.keepRelay(ctx, *have)
}

// furnish makes the pool and the firewall of a subnet, once.
func (d *Driver) furnish(ctx context.Context, subnet netip.Prefix) error {
	d.mu.Lock()
	firewall, pool := d.firewall, d.pool
	d.mu.Unlock()
	if firewall != nil && pool.Subnet() == subnet {
		return firewall.Ensure(ctx)
	}
	pool, err := jail.NewPool(subnet, jail.AgentUID)
	if err != nil {
		return err
	}
	made, err := d.openFirewall(ctx, linux.FirewallConfig{
		Installation: d.o.Installation, Pool: pool, Port: d.o.Port, Log: d.o.Log})
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range d.Entries() {
		if l := e.Record().Lease; l.Index >= 0 && (pool.IndexOf(l.Addr) != l.Index || !pool.Claim(l.Index)) {
			// It is of a network that is gone, and cannot have what it says.
			e.Change(func(r *jail.Record) { r.Lease.Index = -1 })
		}
	}
	d.firewall, d.pool = made, pool
	if firewall != nil {
		return firewall.Close()
	}
	return nil
}

func (d *Driver) openFirewall(ctx context.Context, c linux.FirewallConfig) (*linux.Firewall, error) {
	if d.o.Relay != nil {
		return linux.OpenRelayFirewall(ctx, c, d.gatewayAddr(c.Pool))
	}
	return linux.OpenContainerFirewall(ctx, c)
}

// betweenContainers is the engine's setting of whether containers reach each other. With a relay they must, as far as the engine
// knows: the rules on the bridge let nothing but the relay through.
func (d *Driver) betweenContainers() string {
	return strconv.FormatBool(d.o.Relay != nil)
}

// findNetwork is the installation's network, or nil. One that is not as declared is an error: containers may hang on it.
func (d *Driver) findNetwork(ctx context.Context) (*network, error) {
	list, err := d.engine.NetworkList(ctx, client.NetworkListOptions{
		Filters: client.Filters{}.Add("label", labelInstallation+"="+string(d.o.Installation))})
	if err != nil {
		return nil, d.engineError(err)
	}
	list.Items = slices.DeleteFunc(list.Items, func(n apinetwork.Summary) bool { return n.Labels[labelRole] != "" })
	if len(list.Items) == 0 {
		return nil, nil
	}
	n := list.Items[0].Network
	wrong := ""
	switch {
	case len(list.Items) > 1:
		wrong = "there are several"
	case n.Driver != "bridge" || !n.Internal:
		wrong = "it is not internal"
	case n.EnableIPv6:
		wrong = "it has IPv6"
	case n.Options[optionBridge] != linux.ContainerBridge(d.o.Installation):
		wrong = "its bridge has another name"
	case n.Options[optionICC] != d.betweenContainers():
		wrong = "whether its containers reach each other is set otherwise, as for another gateway.placement"
	case len(n.IPAM.Config) != 1:
		wrong = "it has several subnets"
	case d.o.Compose && n.IPAM.Config[0].IPRange != othersRange(n.IPAM.Config[0].Subnet):
		wrong = "the engine gives any of its addresses to containers of docker-compose"
	case d.o.Subnet.IsValid() && n.IPAM.Config[0].Subnet != d.o.Subnet.Masked():
		wrong = "its subnet is another"
	}
	if wrong != "" {
		return nil, problem.New(problem.Conflict, "end the agents' containers, then `docker network rm "+n.Name+"`; it is made again",
			"the network %s is not as it was declared: %s", n.Name, wrong)
	}
	return &network{id: n.ID, name: n.Name, subnet: n.IPAM.Config[0].Subnet.Masked()}, nil
}

func (d *Driver) chooseSubnet(ctx context.Context) (netip.Prefix, error) {
	if d.o.Subnet.IsValid() {
		return d.o.Subnet.Masked(), linux.CheckSubnet(ctx, d.o.Installation, d.o.Subnet)
	}
	return linux.FreeSubnet(ctx, d.o.Installation, Subnets())
}

// makeNetwork takes the plain name when it is free, and one with the installation's id where engines are shared.
func (d *Driver) makeNetwork(ctx context.Context, subnet netip.Prefix) (network, error) {
	no := false
	var errs []error
	for _, name := range []string{d.o.Network, d.o.Network + "_" + string(d.o.Installation)} {
		if _, err := d.engine.NetworkInspect(ctx, name, client.NetworkInspectOptions{}); err == nil {
			errs = append(errs, fmt.Errorf("the name %s is somebody else's", name))
			continue
		} else if !cerrdefs.IsNotFound(err) {
			return network{}, d.engineError(err)
		}
		made, err := d.engine.NetworkCreate(ctx, name, client.NetworkCreateOptions{
			Driver: "bridge", Internal: true, EnableIPv6: &no,
			IPAM: &apinetwork.IPAM{Driver: "default", Config: []apinetwork.IPAMConfig{{Subnet: subnet, Gateway: subnet.Addr().Next(),
				IPRange: othersRange(subnet)}}},
			Options: map[string]string{
				optionBridge: linux.ContainerBridge(d.o.Installation), optionICC: d.betweenContainers(),
				"com.docker.network.bridge.enable_ip_masquerade": "false",
			},
			Labels: map[string]string{labelInstallation: string(d.o.Installation)},
		})
		if err != nil {
			return network{}, fmt.Errorf("make the network %s: %w", name, d.engineError(err))
		}
		return network{id: made.ID, name: name, subnet: subnet}, nil
	}
	return network{}, problem.Wrap(errors.Join(errs...), problem.Conflict, "remove one of them with `docker network rm`", "no name for the agents' network is free")
}

// RemoveNetwork removes the network and the rules, when no container is left. It is for uninstalling.
func (d *Driver) RemoveNetwork(ctx context.Context) error {
	left, err := d.withdrawComposed(ctx) // without the token of preparing: a comparison waits for it
	if err != nil {
		return err
	}
	if left {
		return jail.ErrComposed
	}
	done, err := d.turn(ctx) // so that nothing of it is brought back meanwhile
	if err != nil {
		return err
	}
	defer done()
	have, err := d.findNetwork(ctx)
	if err != nil {
		return err
	}
	if err := d.removeRelay(ctx); err != nil {
		return err
	}
	if have != nil {
		// The rules of an earlier process are this one's to remove.
		if err := d.furnish(ctx, have.subnet); err != nil {
			return err
		}
		if _, err := d.engine.NetworkRemove(ctx, have.id, client.NetworkRemoveOptions{}); err != nil && !cerrdefs.IsNotFound(err) {
			return d.engineError(err)
		}
	}
	// A killed process may have left addresses in the table whose containers were ended before there was a firewall again.
	var errs []error
	err = d.reapMembers(ctx, func(_ jail.Finding, remove func() error) { errs = append(errs, remove()) })
	if err := errors.Join(append(errs, err)...); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.network = network{}
	if d.firewall == nil {
		return nil
	}
	firewall := d.firewall
	d.firewall, d.pool = nil, nil
	return errors.Join(firewall.Uninstall(ctx), firewall.Close())
}

// guard puts back what somebody else took from the firewall.
func (d *Driver) guard(ctx context.Context) error {
	firewall, members, err := d.guardRules(ctx)
	if err != nil {
		return fmt.Errorf("look after the firewall: %w", err)
	}
	if firewall == nil {
		return nil
	}
	listed := map[int]bool{}
	for _, t := range members {
		listed[t.Index] = true
	}
	var errs []error
	for _, e := range d.Entries() {
		if r, idle := e.Idle(); r.State == jail.StateReady && idle && r.Exit == nil && r.Lease.Index >= 0 && !listed[r.Lease.Index] {
			errs = append(errs, d.restore(ctx, firewall, e)) // without the token of preparing: the admission of a container waits for it
		}
	}
	return errors.Join(errs...)
}

// guardRules puts the rules back, and lists the members of their tables. Where the network was removed there is no firewall.
func (d *Driver) guardRules(ctx context.Context) (*linux.Firewall, []jail.HostResource, error) {
	done, err := d.turn(ctx) // somebody may be removing them
	if err != nil {
		return nil, nil, err
	}
	defer done()
	d.mu.Lock()
	firewall := d.firewall
	d.mu.Unlock()
	if firewall == nil && d.wanted() { // after a restart, with containers that run
		if _, err := d.provide(ctx); err != nil {
			return nil, nil, err
		}
		d.mu.Lock()
		firewall = d.firewall
		d.mu.Unlock()
	}
	if firewall == nil {
		return nil, nil, nil
	}
	if err := firewall.Ensure(ctx); err != nil {
		return nil, nil, err
	}
	members, err := firewall.List(ctx)
	return firewall, members, err
}

// restore adds a ready container to its table again, unless it is being ended.
func (d *Driver) restore(ctx context.Context, firewall *linux.Firewall, e *jail.Entry) error {
	if err := e.Acquire(ctx); err != nil {
		return err
	}
	defer e.Leave()
	r := e.Record()
	if r.State != jail.StateReady {
		return nil
	}
	d.o.Log.Warn("a container was missing in the firewall's table", "jail", r.Name, "address", r.Lease.Addr)
	return firewall.Add(ctx, jail.TableAgents, r.Lease)
}
