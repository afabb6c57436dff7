//go:build linux

package docker

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/google/nftables"
	apinetwork "github.com/moby/moby/api/types/network"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/linux"
	"github.com/clawjail/clawjail/internal/testenv"
)

// unnetworked is an installation whose network is at no engine, and its subnet.
func unnetworked(t *testing.T, socket string) (Options, *jail.Pool) {
	testenv.Need(t, testenv.Root)
	number := installations.Add(1)
	pool, err := jail.NewPool(freeSubnet(t, byte(number)), jail.AgentUID)
	if err != nil {
		t.Fatal(err)
	}
	return Options{Installation: jail.Installation("d" + testenv.Tag(number)), Socket: socket, Port: 3000,
		RunDir: t.TempDir(), DataDir: t.TempDir(), Journal: &memoryJournal{recs: map[jail.Name]jail.Record{}}}, pool
}

// tables is how many tables the host's firewall has.
func tables(t *testing.T) int {
	t.Helper()
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	list, err := c.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// The rules are looked after until the host daemon ends, also while the network is being removed. No engine is needed.
func TestRulesThatAreBeingRemovedDoNotComeBack(t *testing.T) {
	o, pool := unnetworked(t, filepath.Join(t.TempDir(), "none"))
	synctest.Test(t, func(t *testing.T) {
		d, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		firewall, err := d.openFirewall(t.Context(), linux.FirewallConfig{Installation: o.Installation, Pool: pool, Port: o.Port})
		if err != nil {
			t.Fatal(err)
		}
		d.firewall, d.pool = firewall, pool
		remove := func() {
			t.Helper()
			if err := firewall.Uninstall(t.Context()); err != nil {
				t.Error(err)
			}
		}
		with := tables(t)
		remove()
		without := tables(t)
		if err := d.guard(t.Context()); err != nil || without == with || tables(t) != with {
			t.Errorf("what somebody else took away is not put back: %d tables of %d, %v", tables(t), with, err)
		}

		d.preparing <- struct{}{} // as RemoveNetwork does, step by step
		remove()
		guarded := make(chan error)
		go func() { guarded <- d.guard(t.Context()) }()
		synctest.Wait()
		d.mu.Lock()
		d.firewall, d.pool = nil, nil
		d.mu.Unlock()
		<-d.preparing
		if err := <-guarded; err != nil || tables(t) != without {
			t.Errorf("when the network was removed there are %d tables, not %d: %v", tables(t), without, err)
		}
		remove()
		if err := firewall.Close(); err != nil {
			t.Error(err)
		}
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// remover is the context of a caller beside whom the network is removed as soon as that can be.
type remover struct {
	context.Context
	d       *Driver
	removed int
}

// Err implements context.Context. It does in the end what RemoveNetwork does.
func (r *remover) Err() error {
	select {
	case r.d.preparing <- struct{}{}:
		defer func() { <-r.d.preparing }()
	default:
		return r.Context.Err() // not now
	}
	r.d.mu.Lock()
	firewall := r.d.firewall
	r.d.firewall, r.d.pool = nil, nil
	r.d.mu.Unlock()
	if firewall != nil {
		r.removed++
		return errors.Join(firewall.Uninstall(r.Context), firewall.Close())
	}
	return r.Context.Err()
}

func TestANetworkIsNotRemovedWhileAContainerIsLetIn(t *testing.T) {
	var o Options
	var pool *jail.Pool
	mux := http.NewServeMux()
	mux.HandleFunc("/_ping", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Api-Version", "1.44") })
	mux.HandleFunc("/v1.44/images/{name}/json", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"Os":"linux","Config":{}}`) })
	mux.HandleFunc("/v1.44/networks", func(w http.ResponseWriter, _ *http.Request) {
		if err := json.NewEncoder(w).Encode([]apinetwork.Summary{{Network: apinetwork.Network{ID: "x", Name: "x", Driver: "bridge", Internal: true,
			Options: map[string]string{optionBridge: linux.ContainerBridge(o.Installation), optionICC: "false"},
			IPAM:    apinetwork.IPAM{Config: []apinetwork.IPAMConfig{{Subnet: pool.Subnet()}}}}}}); err != nil {
			t.Error(err)
		}
	})
	o, pool = unnetworked(t, serveEngine(t, mux))
	without := tables(t)
	var ctx *remover
	o.Barrier = func(s jail.Step) {
		if err := ctx.Err(); err != nil {
			t.Error(err)
		}
	}
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx = &remover{t.Context(), d, 0}
	lease, err := pool.Lease(0)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.open(ctx, lease); err != nil || ctx.removed != 0 {
		t.Errorf("the gateway is opened: %v; and the network removed %d times", err, ctx.removed)
	}
	if err := d.firewall.Remove(t.Context(), jail.TableAgents, lease); err != nil {
		t.Error(err)
	}
	if err := ctx.Err(); err != nil || ctx.removed != 1 || tables(t) != without {
		t.Errorf("afterwards: %v; removed %d times, and there are %d tables, not %d", err, ctx.removed, tables(t), without)
	}
	// A name and an address are given before it can be removed. What is made after that the engine refuses.
	if _, err := d.Create(ctx, shell(jail.LifetimeOwner, `:`)); err == nil || len(d.Entries()) != 0 {
		t.Errorf("a container is made without a network: %v", err)
	}
	if err := errors.Join(ctx.Err(), d.Close(t.Context())); err != nil || tables(t) != without {
		t.Errorf("%v; there are %d tables, not %d", err, tables(t), without)
	}
}
