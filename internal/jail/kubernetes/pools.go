package kubernetes

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// maxWarmPools bounds the pools in which pods wait: each caller that wants other limits has one of its own.
const maxWarmPools = 8

// pool is what jails that are alike have in common: a template and a pool of the cluster, in which pods may wait.
type pool struct {
	spec   jail.Spec // of each, without what is of one jail
	made   bool
	warm   bool
	wanted time.Time // last
	inUse  int       // jails
}

// poolFor is the name of the pool of jails that are like this one. It is wanted until the jail is forgotten. The lease that it goes with is part of the
// name: what went with an earlier one may still be there, and is deleted in a moment.
func (d *Driver) poolFor(ctx context.Context, spec jail.Spec, owners []Owner) (string, error) {
	template := d.podTemplate(spec)
	text, err := json.Marshal(template, json.Deterministic(true))
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(append(text, owners[0].UID...))
	name := "jail-" + hex.EncodeToString(sum[:8])
	d.mu.Lock()
	one := d.pools[name]
	if one == nil {
		spec.Program, spec.HomeFiles = jail.Program{}, nil // these are of one jail
		one = &pool{spec: spec, warm: d.o.Warm > 0 && spec.Agent == nil && d.warmPools() < maxWarmPools}
		// Before the first of its pods can connect. Those of an earlier process may have done so.
		d.pools[name] = one
		for _, p := range d.pods {
			if p.Pool == name && !p.verified {
				d.watchers.Go(func() { d.warm(p, spec) })
			}
		}
	}
	one.wanted = time.Now()
	one.inUse++
	d.mu.Unlock()
	if err := d.makePool(ctx, name, one, template, owners); err != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		one.inUse--
		return "", err
	}
	return name, nil
}

// warmPools counts the pools in which pods wait. The caller holds d.mu.
func (d *Driver) warmPools() (n int) {
	for _, one := range d.pools {
		if one.warm {
			n++
		}
	}
	return n
}

// makePool makes a pool where it is not there.
func (d *Driver) makePool(ctx context.Context, name string, p *pool, template any, owners []Owner) error {
	is := func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return p.made
	}
	if is() {
		return nil
	}
	select {
	case d.pooling <- struct{}{}:
		defer func() { <-d.pooling }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if is() {
		return nil
	}
	replicas := 0
	if p.warm {
		replicas = d.o.Warm
	}
	for _, one := range []struct {
		kind, kinds string
		spec        any
	}{
		{"SandboxTemplate", "sandboxtemplates", map[string]any{"networkPolicyManagement": "Unmanaged", "podTemplate": template}},
		{"SandboxWarmPool", "sandboxwarmpools", map[string]any{"replicas": replicas, "sandboxTemplateRef": map[string]any{"name": name}}},
	} {
		err := d.o.API.ask(ctx, http.MethodPost, resource(extensionsGroup, d.o.Namespace, one.kinds), map[string]any{
			"apiVersion": extensionsGroup, "kind": one.kind, "metadata": Meta{Name: name, Labels: d.labels(), Owners: owners}, "spec": one.spec}, &struct{}{})
		if errors.Is(err, ErrNotFound) {
			return problem.Wrap(err, problem.RuntimeMissing, "install agent-sandbox 1.0 with its extensions", "the cluster has no %s of %s", one.kind, extensionsGroup)
		}
		if err != nil && problem.CodeOf(err) != problem.Conflict { // an earlier process has made it
			return fmt.Errorf("make the %s %s: %w", one.kind, name, err)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	p.made = true
	return nil
}

// unuse says that a jail needs its pool no more. The caller holds d.mu.
func (d *Driver) unuse(name jail.Name) {
	if one := d.pools[d.uses[name]]; one != nil {
		one.inUse--
		one.wanted = time.Now()
	}
	delete(d.uses, name)
}

// tidyPools deletes the pools of this control plane that were unused for a while, of this process and of earlier ones.
func (d *Driver) tidyPools(ctx context.Context) error {
	kinds := []string{"sandboxwarmpools", "sandboxtemplates"}
	names := map[string]bool{}
	for _, kind := range kinds {
		some, err := d.o.API.named(ctx, selected(d.o.Namespace, kind, d.labels(), ""))
		if err != nil {
			return err
		}
		for _, name := range some {
			names[name] = true
		}
	}
	var errs []error
	for name := range names {
		errs = append(errs, d.tidyPool(ctx, name, kinds))
	}
	return errors.Join(errs...)
}

func (d *Driver) tidyPool(ctx context.Context, name string, kinds []string) error {
	select {
	case d.pooling <- struct{}{}: // no other call makes the pool meanwhile
		defer func() { <-d.pooling }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if !d.unwanted(name) {
		return nil
	}
	for _, kind := range kinds {
		err := d.o.API.ask(ctx, http.MethodDelete, object(extensionsGroup, d.o.Namespace, kind, name), map[string]any{"apiVersion": "v1", "kind": "DeleteOptions"}, &struct{}{})
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
	}
	d.o.Log.Info("reap", "pool", name, "reason", "nobody wants its pods")
	return nil
}

// unwanted says whether a pool is not in use any more, and forgets it. The next jail that needs the pool makes it anew.
func (d *Driver) unwanted(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	one := d.pools[name]
	if one == nil {
		return time.Since(d.began) > d.o.PoolIdle
	}
	if one.inUse > 0 || time.Since(one.wanted) <= d.o.PoolIdle {
		return false
	}
	delete(d.pools, name)
	return true
}
