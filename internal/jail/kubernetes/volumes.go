package kubernetes

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// volume is something in a pod that outlives it: a PersistentVolumeClaim of the cluster, which belongs to no control plane.
type volume struct {
	claim    string
	path     string
	readOnly bool
	shared   bool // by pods of several nodes
	size     int64
	about    string // to people
}

// stateClaim is the volume at /state of an agent. No name of an agent has a dot in it, so that no two have one.
func stateClaim(a jail.Agent) string { return "state-" + a.Key() }

// persistent says whether a jail has volumes.
func persistent(spec jail.Spec) bool {
	return spec.Agent != nil && spec.Agent.State > 0 || len(spec.Mounts) > 0
}

// volumes are those of a jail. A folder of the host is one here, of the same name for all jails of a tenant that name the folder.
func (d *Driver) volumes(spec jail.Spec) (out []volume) {
	if spec.Agent != nil && spec.Agent.State > 0 {
		out = append(out, volume{claim: stateClaim(*spec.Agent), path: jail.StateDir, size: spec.Agent.State, about: "what the agent " + spec.Agent.Key() + " keeps"})
	}
	for _, m := range spec.Mounts {
		sum := sha256.Sum256([]byte(spec.Tenant() + "\x00" + m.Source))
		out = append(out, volume{claim: "folder-" + hex.EncodeToString(sum[:8]), path: m.Target, readOnly: m.ReadOnly, shared: len(m.Make) > 0, size: d.o.Folder, about: m.Source})
	}
	return out
}

// claimVolumes makes the claims of volumes that are not there. One that is there stays as it is.
func (d *Driver) claimVolumes(ctx context.Context, spec jail.Spec) error {
	for _, v := range d.volumes(spec) {
		mode, class := "ReadWriteOnce", d.o.StorageClass
		if v.shared {
			mode, class = "ReadWriteMany", d.o.SharedStorageClass
		}
		want := map[string]any{"accessModes": []string{mode}, "resources": map[string]any{"requests": map[string]any{"storage": fmt.Sprint(v.size)}}}
		if class != "" {
			want["storageClassName"] = class
		}
		err := d.o.API.ask(ctx, http.MethodPost, resource("v1", d.o.Namespace, "persistentvolumeclaims"), map[string]any{"apiVersion": "v1", "kind": "PersistentVolumeClaim",
			"metadata": map[string]any{"name": v.claim, "labels": map[string]string{labelManaged: managed}, "annotations": map[string]string{annotationAbout: v.about}}, "spec": want}, &struct{}{})
		if err != nil && problem.CodeOf(err) != problem.Conflict {
			return fmt.Errorf("claim the volume at %s: %w", v.path, err)
		}
	}
	return nil
}

// RemoveState implements jail.Maker.
func (d *Driver) RemoveState(ctx context.Context, a jail.Agent) error {
	if err := errors.Join(jail.ValidAgentName(a.Tenant), jail.ValidAgentName(a.Name), d.Stateless(a)); err != nil {
		return err
	}
	err := d.o.API.ask(ctx, http.MethodDelete, object("v1", d.o.Namespace, "persistentvolumeclaims", stateClaim(a)), map[string]any{"apiVersion": "v1", "kind": "DeleteOptions"}, &struct{}{})
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// folders are those that are made in the volumes of a jail before its program begins.
func folders(spec jail.Spec) (out []string) {
	for _, m := range spec.Mounts {
		if m.ReadOnly {
			continue
		}
		for _, name := range m.Make {
			out = append(out, m.Target+"/"+name)
		}
	}
	return out
}
