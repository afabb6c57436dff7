package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

const (
	leaseGroup = "coordination.k8s.io/v1"
	// labelManaged is that of the leases of all control planes, with the value managed.
	labelManaged, managed = "app.kubernetes.io/managed-by", "clawjail"
	// renewEvery is how often a control plane says that it is there, and looks who else is.
	renewEvery = 10 * time.Second
)

// presence is what a Driver knows of the leases in its namespace. A control plane has one, and whatever it makes belongs to that: when the lease is
// deleted, the cluster deletes all of it. The others delete one that is not renewed for a while during which the API server answers.
type presence struct {
	uid  string              // of its own lease, or empty
	seen map[string]sighting // changed by Run alone
}

type sighting struct {
	version string
	since   time.Time
}

type lease struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Meta       Meta      `json:"metadata"`
	Spec       leaseSpec `json:"spec"`
}

type leaseSpec struct {
	Holder  string `json:"holderIdentity,omitempty"`
	Seconds int    `json:"leaseDurationSeconds,omitempty"`
	Renewed string `json:"renewTime"` // with microseconds, as the API server wants it
}

func leaseName(node string) string { return "clawjail-" + node }

// owners are the owner references of objects that are made now: the lease, which is made first.
func (d *Driver) owners(ctx context.Context) ([]Owner, error) {
	d.mu.Lock()
	uid := d.presence.uid
	d.mu.Unlock()
	if uid == "" {
		var err error
		if uid, err = d.renew(ctx); err != nil {
			return nil, fmt.Errorf("say that this control plane is there: %w", err)
		}
	}
	return []Owner{{APIVersion: leaseGroup, Kind: "Lease", Name: leaseName(d.o.Node), UID: uid}}, nil
}

// renew says that this control plane is there.
func (d *Driver) renew(ctx context.Context) (uid string, err error) {
	spec := leaseSpec{Holder: d.o.Node, Seconds: int(d.o.Absence.Seconds()), Renewed: d.o.Now().UTC().Format("2006-01-02T15:04:05.000000Z07:00")}
	var got lease
	patch := func() error {
		return d.o.API.ask(ctx, http.MethodPatch, object(leaseGroup, d.o.Namespace, "leases", leaseName(d.o.Node)), map[string]any{"spec": spec}, &got)
	}
	err = patch()
	if errors.Is(err, ErrNotFound) {
		labels := d.labels()
		labels[labelManaged] = managed
		err = d.o.API.ask(ctx, http.MethodPost, resource(leaseGroup, d.o.Namespace, "leases"),
			lease{APIVersion: leaseGroup, Kind: "Lease", Meta: Meta{Name: leaseName(d.o.Node), Labels: labels}, Spec: spec}, &got)
	}
	if problem.CodeOf(err) == problem.Conflict { // another jail was faster
		err = patch()
	}
	if errors.Is(err, ErrNotFound) {
		err = problem.Wrap(err, problem.RuntimeMissing, "install the chart, packaging/kubernetes/chart, or set kubernetes.namespace", "the cluster has no namespace %s", d.o.Namespace)
	}
	if err != nil {
		return "", err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if before := d.presence.uid; before != "" && before != got.Meta.UID {
		// It was away for so long that others have deleted it, and with it what had been made.
		d.o.Log.Warn("what this control plane had made was deleted, as it was taken for gone", "node", d.o.Node)
	}
	d.presence.uid = got.Meta.UID
	return got.Meta.UID, nil
}

// besideFor is how long a control plane counts as one of the namespace that does not renew its lease.
const besideFor = 3 * renewEvery

// Beside are the other control planes that make jails in the namespace now, by their names.
func (d *Driver) Beside() (out []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, s := range d.presence.seen {
		if time.Since(s.since) < besideFor {
			out = append(out, strings.TrimPrefix(name, leaseName("")))
		}
	}
	return out
}

// Leave has the cluster delete everything that this process has made there, if it has said that it is there. One that only looks changes nothing.
func (d *Driver) Leave(ctx context.Context) error {
	d.mu.Lock()
	uid := d.presence.uid
	d.mu.Unlock()
	if uid == "" {
		return nil
	}
	return d.o.API.Leave(ctx, d.o.Namespace, d.o.Node)
}

// Leave has the cluster delete everything in a namespace that a control plane has made there, by its name.
func (a *API) Leave(ctx context.Context, namespace, node string) error {
	err := a.ask(ctx, http.MethodDelete, object(leaseGroup, namespace, "leases", leaseName(node)),
		map[string]any{"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}, &struct{}{})
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// lookForOthers deletes the leases of control planes that are gone. It has to be called again and again.
func (d *Driver) lookForOthers(ctx context.Context) error {
	var list struct {
		Items []struct {
			Meta struct {
				Meta
				Version string `json:"resourceVersion"`
			} `json:"metadata"`
		} `json:"items"`
	}
	query := url.Values{"labelSelector": {labelManaged + "=" + managed}}
	if err := d.o.API.ask(ctx, http.MethodGet, resource(leaseGroup, d.o.Namespace, "leases")+"?"+query.Encode(), nil, &list); err != nil {
		d.see(nil) // the others could not renew theirs either
		return err
	}
	seen := map[string]sighting{}
	var errs []error
	for _, l := range list.Items {
		name := l.Meta.Name
		if name == leaseName(d.o.Node) || !strings.HasPrefix(name, leaseName("")) {
			continue
		}
		now := time.Now() // of the clock that does not jump
		s := d.presence.seen[name]
		if s.version != l.Meta.Version {
			s = sighting{version: l.Meta.Version, since: now}
		}
		seen[name] = s
		if now.Sub(s.since) < d.o.Absence {
			continue
		}
		err := d.o.API.ask(ctx, http.MethodDelete, object(leaseGroup, d.o.Namespace, "leases", name), map[string]any{"apiVersion": "v1", "kind": "DeleteOptions",
			"propagationPolicy": "Background", "preconditions": map[string]any{"uid": l.Meta.UID, "resourceVersion": l.Meta.Version}}, &struct{}{})
		switch {
		case err == nil:
			d.o.Log.Info("reap", "lease", name, "reason", "its control plane is gone, and with it goes what it had made")
		case !errors.Is(err, ErrNotFound) && problem.CodeOf(err) != problem.Conflict: // it is gone, or was renewed after all
			errs = append(errs, err)
		}
	}
	d.see(seen)
	return errors.Join(errs...)
}

func (d *Driver) see(seen map[string]sighting) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.presence.seen = seen
}
