package kubernetes

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// The labels of what a control plane has made.
const (
	labelInstallation = "clawjail.io/installation"
	labelNode         = "clawjail.io/node"
)

// annotationPolicies is what a pod's browser is told by its administrator.
const annotationPolicies = "clawjail.io/policies"

// claim makes the claim of a jail, and before that the template and the pool that all jails alike share.
func (d *Driver) claim(ctx context.Context, _ *jail.Entry, m *making) error {
	pool, err := d.pool(ctx, m.spec)
	if err != nil {
		return err
	}
	deadline := map[string]any{}
	if m.spec.Limits.WallClock < jail.MaxWallClock {
		// This control plane ends it; this is for when there is none.
		deadline["shutdownTime"] = d.o.Now().Add(m.spec.Limits.WallClock + d.o.Grace).UTC().Format(time.RFC3339)
	}
	deadline["shutdownPolicy"] = "Delete"
	// What was sent is not taken back by who does not wait any more: the claim would be made after it was looked for.
	ctx = context.WithoutCancel(ctx)
	return d.o.API.ask(ctx, http.MethodPost, resource(extensionsGroup, d.o.Namespace, "sandboxclaims"), map[string]any{
		"apiVersion": extensionsGroup, "kind": "SandboxClaim", "metadata": Meta{Name: string(m.name), Labels: d.labels()},
		"spec": map[string]any{"warmPoolRef": map[string]any{"name": pool}, "lifecycle": deadline},
	}, &struct{}{})
}

// pool makes the template and the pool of jails that are like this one, where they are missing.
func (d *Driver) pool(ctx context.Context, spec jail.Spec) (string, error) {
	template := d.podTemplate(spec)
	text, err := json.Marshal(template, json.Deterministic(true))
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	name := "jail-" + hex.EncodeToString(sum[:8])
	d.mu.Lock()
	made := d.made[name]
	if _, known := d.pools[name]; !known {
		spec.Program, spec.HomeFiles = jail.Program{}, nil // these are of one jail
		// Before the first of its pods can connect. Those of an earlier process may have done so.
		d.pools[name] = spec
		for _, p := range d.pods {
			if p.Pool == name && !p.verified {
				d.watchers.Go(func() { d.warm(p, spec) })
			}
		}
	}
	d.mu.Unlock()
	if made {
		return name, nil
	}
	labels := map[string]string{labelInstallation: string(d.o.Installation)}
	for _, one := range []struct {
		kind, kinds string
		spec        any
	}{
		{"SandboxTemplate", "sandboxtemplates", map[string]any{"networkPolicyManagement": "Unmanaged", "podTemplate": template}},
		{"SandboxWarmPool", "sandboxwarmpools", map[string]any{"replicas": d.o.Warm, "sandboxTemplateRef": map[string]any{"name": name}}},
	} {
		err := d.o.API.ask(ctx, http.MethodPost, resource(extensionsGroup, d.o.Namespace, one.kinds), map[string]any{
			"apiVersion": extensionsGroup, "kind": one.kind, "metadata": Meta{Name: name, Labels: labels}, "spec": one.spec}, &struct{}{})
		if errors.Is(err, ErrNotFound) {
			return "", problem.Wrap(err, problem.RuntimeMissing, "install agent-sandbox 1.0 with its extensions, and make the namespace", "the cluster has no %s of %s, or no namespace %s", one.kind, extensionsGroup, d.o.Namespace)
		}
		if coded := new(problem.Error); err != nil && (!errors.As(err, &coded) || coded.Code != problem.Conflict) { // another one has made it
			return "", fmt.Errorf("make the %s %s: %w", one.kind, name, err)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.made[name] = true
	return name, nil
}

// identityDir is where a pod has its token.
const identityDir = "/run/clawjail"

// tokenLife is how long a token of a pod is good. Kubernetes makes a new one after most of it.
const tokenLife = 10 * time.Minute

// podTemplate is the pod of a jail. What is in it is the same for all jails alike: pods are made before anybody wants them.
func (d *Driver) podTemplate(spec jail.Spec) map[string]any {
	profile := ProfileFor(spec)
	type object = map[string]any
	mounts := []object{{"name": "identity", "mountPath": identityDir, "readOnly": true}}
	volumes := []object{{"name": "identity", "projected": object{"sources": []object{
		{"serviceAccountToken": object{"audience": Audience, "expirationSeconds": int(tokenLife.Seconds()), "path": "token"}},
	}}}}
	annotations := object{}
	if spec.Kind == jail.KindBrowser {
		// Over the image's own, which may have none or others.
		annotations[annotationPolicies] = string(jail.Policies())
		mounts = append(mounts, object{"name": "policies", "mountPath": jail.PoliciesDir, "readOnly": true})
		volumes = append(volumes, object{"name": "policies", "downwardAPI": object{"items": []object{
			{"path": jail.PoliciesManaged + "/" + jail.PoliciesFile, "fieldRef": object{"fieldPath": "metadata.annotations['" + annotationPolicies + "']"}}}}})
	}
	for n, t := range profile.Tmpfs {
		name := fmt.Sprintf("memory-%d", n)
		mounts = append(mounts, object{"name": name, "mountPath": t.Path})
		volumes = append(volumes, object{"name": name, "emptyDir": object{"medium": "Memory", "sizeLimit": fmt.Sprint(t.Size)}})
	}
	seccomp := object{"type": "RuntimeDefault"}
	if spec.Kind == jail.KindBrowser && d.o.Seccomp != "" {
		seccomp = object{"type": "Localhost", "localhostProfile": d.o.Seccomp}
	}
	limits := object{"memory": fmt.Sprint(spec.Limits.Memory), "cpu": fmt.Sprintf("%dm", spec.Limits.MilliCPU)}
	pod := object{
		"serviceAccountName": d.o.Account, "automountServiceAccountToken": false, "enableServiceLinks": false, "restartPolicy": "Never",
		"terminationGracePeriodSeconds": 15, "dnsPolicy": "None", "dnsConfig": object{"nameservers": []string{"127.0.0.1"}},
		"securityContext": object{"runAsNonRoot": true, "runAsUser": jail.AgentUID, "runAsGroup": jail.AgentUID, "seccompProfile": seccomp},
		"containers": []object{{
			"name": "jail", "image": d.o.Images[spec.Template],
			"command":         []string{"/clawjail-shim", "--gateway", d.o.Gateway, "--pin", d.pin, "--token", identityDir + "/token"},
			"securityContext": object{"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": object{"drop": []string{"ALL"}}},
			"resources":       object{"limits": limits, "requests": object{"memory": fmt.Sprint(spec.Limits.Memory / 4), "cpu": "10m"}},
			"readinessProbe":  object{"exec": object{"command": []string{"/clawjail-shim", "ready"}}, "periodSeconds": 1},
			"volumeMounts":    mounts,
		}},
		"volumes": volumes,
	}
	if d.o.RuntimeClass != "" {
		pod["runtimeClassName"] = d.o.RuntimeClass
	}
	return object{"metadata": object{"annotations": annotations}, "spec": pod}
}

// claimed waits until a claim has its Sandbox, and returns the name of that.
func (a *API) claimed(ctx context.Context, namespace, name string) (string, error) {
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		var claim struct {
			Status struct {
				Sandbox struct {
					Name string `json:"name"`
				} `json:"sandbox"`
			} `json:"status"`
		}
		if err := a.ask(ctx, http.MethodGet, object(extensionsGroup, namespace, "sandboxclaims", name), nil, &claim); err != nil {
			return "", fmt.Errorf("look at the claim %s: %w", name, err)
		}
		if claim.Status.Sandbox.Name != "" {
			return claim.Status.Sandbox.Name, nil
		}
		if !wake.Sleep(ctx, pause) {
			return "", fmt.Errorf("wait for the Sandbox of the claim %s: %w", name, ctx.Err())
		}
	}
}

// goneLimit is how long a claim and its pod may take to go.
const goneLimit = 30 * time.Second

// unclaim deletes a claim with some labels, its Sandbox and its pod, and returns when they are gone. A claim of that name without the labels is
// somebody else's, and stays.
func (a *API) unclaim(ctx context.Context, namespace, name string, labels map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, goneLimit)
	defer cancel()
	err := a.ask(ctx, http.MethodDelete, selected(namespace, labels, name), map[string]any{"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground"}, &struct{}{})
	for pause := 20 * time.Millisecond; err == nil; pause = min(2*pause, 500*time.Millisecond) {
		var left []string
		if left, err = a.claims(ctx, namespace, labels, name); err == nil && len(left) == 0 {
			return nil
		}
		if !wake.Sleep(ctx, pause) {
			err = ctx.Err()
		}
	}
	if errors.Is(err, ErrNotFound) {
		return nil // there are no claims at all
	}
	return fmt.Errorf("delete the claim %s: %w", name, err)
}

// selected is the path of the claims with some labels, or of the one among them that has a name.
func selected(namespace string, labels map[string]string, name string) string {
	var selector []string
	for _, label := range slices.Sorted(maps.Keys(labels)) {
		selector = append(selector, label+"="+labels[label])
	}
	query := url.Values{"labelSelector": {strings.Join(selector, ",")}}
	if name != "" {
		query.Set("fieldSelector", "metadata.name="+name)
	}
	return resource(extensionsGroup, namespace, "sandboxclaims") + "?" + query.Encode()
}

// claims are the names of those.
func (a *API) claims(ctx context.Context, namespace string, labels map[string]string, name string) ([]string, error) {
	var list struct {
		Items []struct {
			Meta Meta `json:"metadata"`
		} `json:"items"`
	}
	err := a.ask(ctx, http.MethodGet, selected(namespace, labels, name), nil, &list)
	var names []string
	for _, one := range list.Items {
		names = append(names, one.Meta.Name)
	}
	return names, err
}
