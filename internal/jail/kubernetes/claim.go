package kubernetes

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// The labels of what a control plane has made.
const (
	labelInstallation = "clawjail.io/installation"
	labelNode         = "clawjail.io/node"
)

// annotationAbout says to people what a volume is for.
const annotationAbout = "clawjail.io/about"

// Check says what would keep Create from working.
func (d *Driver) Check(_ context.Context, spec jail.Spec) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	switch {
	case spec.Root != "":
		return problem.New(problem.Unsupported, "name a template, whose image is in kubernetes.images, or an image", "a jail of a folder cannot be made on Kubernetes")
	case spec.Lifetime == jail.LifetimeKeep && d.o.Console == nil:
		return problem.New(problem.BadRequest, "", "this host daemon keeps no jails of agents")
	case spec.Image != "" && spec.Kind != jail.KindAgent:
		return problem.New(problem.BadRequest, "name a template", "only agents are made of an image")
	case spec.Image != "" && len(spec.Program.Argv) == 0:
		return problem.New(problem.BadTemplate, "name a command", "Kubernetes does not say which program the image %s has, and the agent names none", spec.Image)
	case spec.Image != "" && len(d.o.Images) == 0:
		return problem.New(problem.TemplateMissing, "make one: clawjail template image --shim, and name it in kubernetes.images", "there is no image that clawjail-shim could be taken from")
	case spec.Image == "" && d.o.Images[spec.Template] == "":
		return problem.New(problem.TemplateMissing, "make its image: clawjail template image, and name it in the configuration", "there is no image of the template %s", spec.Template)
	}
	return nil
}

// claim makes the claim of a jail, and before that the template and the pool that all jails alike share.
func (d *Driver) claim(ctx context.Context, _ *jail.Entry, m *making) error {
	if err := d.claimVolumes(ctx, m.spec); err != nil {
		return err
	}
	owners, err := d.owners(ctx)
	if err != nil {
		return err
	}
	pool, err := d.poolFor(ctx, m.spec, owners)
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.uses[m.name] = pool
	d.mu.Unlock()
	deadline := map[string]any{}
	if m.spec.Limits.WallClock < jail.MaxWallClock {
		// This control plane ends it; this is for when there is none.
		deadline["shutdownTime"] = d.o.Now().Add(m.spec.Limits.WallClock + d.o.Grace).UTC().Format(time.RFC3339)
	}
	deadline["shutdownPolicy"] = "Delete"
	// The request does not end with its caller: the claim could be made all the same, after the driver has looked for it.
	ctx = context.WithoutCancel(ctx)
	d.followed.expect(string(m.name))
	var made struct {
		Meta Meta `json:"metadata"`
	}
	err = d.o.API.ask(ctx, http.MethodPost, resource(extensionsGroup, d.o.Namespace, "sandboxclaims"), map[string]any{
		"apiVersion": extensionsGroup, "kind": "SandboxClaim", "metadata": Meta{Name: string(m.name), Labels: d.labels(), Owners: owners},
		"spec": map[string]any{"warmPoolRef": map[string]any{"name": pool}, "lifecycle": deadline},
	}, &made)
	d.mu.Lock()
	defer d.mu.Unlock()
	m.warm = d.pools[pool].warm
	if err == nil {
		d.claims[m.name] = made.Meta.UID
	}
	return err
}

// identityDir is where a pod has its token.
const identityDir = "/run/clawjail"

// shimDir is where a pod of an image that has no clawjail-shim has it, and shimRoom how large that may be.
const (
	shimDir  = "/run/clawjail-shim"
	shimRoom = 64 << 20
)

// shimImage is one that has clawjail-shim: that of a template, the same one each time.
func (d *Driver) shimImage() string {
	names := slices.Sorted(maps.Keys(d.o.Images))
	return d.o.Images[names[0]]
}

// tokenLife is how long a token of a pod is good. Kubernetes makes a new one after most of it.
const tokenLife = 10 * time.Minute

// readyLimit is how long a pod may be there before it is ready. It ends by itself long before that.
const readyLimit = time.Hour

// podTemplate is the pod of a jail. It depends only on what jails of one pool share: pods are made before there is a jail.
func (d *Driver) podTemplate(spec jail.Spec) map[string]any {
	profile := ProfileFor(spec)
	type object = map[string]any
	mounts := []object{{"name": "identity", "mountPath": identityDir, "readOnly": true}}
	volumes := []object{{"name": "identity", "projected": object{"sources": []object{
		{"serviceAccountToken": object{"audience": Audience, "expirationSeconds": int(tokenLife.Seconds()), "path": "token"}},
	}}}}
	// Files of an operator's are annotations of the pod, which no volume has to be made for.
	annotations := object{}
	file := func(name, path, text string) {
		annotations["clawjail.io/"+name] = text
		volumes = append(volumes, object{"name": name, "downwardAPI": object{"items": []object{
			{"path": path, "fieldRef": object{"fieldPath": "metadata.annotations['clawjail.io/" + name + "']"}}}}})
	}
	gateway, _, _ := net.SplitHostPort(d.o.Gateway) // it has been looked at
	file("hosts", "hosts", jail.Hosts(gateway))
	mounts = append(mounts, object{"name": "hosts", "mountPath": "/etc/hosts", "subPath": "hosts", "readOnly": true})
	if spec.Kind == jail.KindBrowser {
		// Over the image's own, which may have none or others.
		file("policies", jail.PoliciesManaged+"/"+jail.PoliciesFile, string(jail.Policies()))
		mounts = append(mounts, object{"name": "policies", "mountPath": jail.PoliciesDir, "readOnly": true})
	}
	for n, t := range profile.Tmpfs {
		name := fmt.Sprintf("memory-%d", n)
		mounts = append(mounts, object{"name": name, "mountPath": t.Path})
		volumes = append(volumes, object{"name": name, "emptyDir": object{"medium": "Memory", "sizeLimit": fmt.Sprint(t.Size)}})
	}
	for n, v := range d.volumes(spec) {
		name := fmt.Sprintf("volume-%d", n)
		mounts = append(mounts, object{"name": name, "mountPath": v.path, "readOnly": v.readOnly})
		volumes = append(volumes, object{"name": name, "persistentVolumeClaim": object{"claimName": v.claim, "readOnly": v.readOnly}})
	}
	seccomp := object{"type": "RuntimeDefault"}
	if spec.Kind == jail.KindBrowser && d.o.Seccomp != "" {
		seccomp = object{"type": "Localhost", "localhostProfile": d.o.Seccomp}
	}
	image, program := d.o.Images[spec.Template], jail.ShimPath
	confined := object{"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": object{"drop": []string{"ALL"}}}
	limits := object{"memory": fmt.Sprint(spec.Limits.Memory), "cpu": fmt.Sprintf("%dm", spec.Limits.MilliCPU)}
	resources := object{"limits": limits, "requests": object{"memory": fmt.Sprint(spec.Limits.Memory / 4), "cpu": "10m"}}
	var before []object
	if spec.Image != "" {
		// It has no clawjail-shim: that of a template's is put beside it first.
		image, program = spec.Image, path.Join(shimDir, path.Base(jail.ShimPath))
		volumes = append(volumes, object{"name": "shim", "emptyDir": object{"sizeLimit": fmt.Sprint(shimRoom)}})
		before = []object{{"name": "shim", "image": d.shimImage(), "command": []string{jail.ShimPath, "install", program}, "securityContext": confined, "resources": resources,
			"volumeMounts": []object{{"name": "shim", "mountPath": shimDir}}}}
		mounts = append(mounts, object{"name": "shim", "mountPath": shimDir, "readOnly": true})
	}
	pod := object{
		"serviceAccountName": d.o.Account, "automountServiceAccountToken": false, "enableServiceLinks": false, "restartPolicy": "Never",
		"terminationGracePeriodSeconds": 15, "dnsPolicy": "None", "dnsConfig": object{"nameservers": []string{"127.0.0.1"}},
		"securityContext": object{"runAsNonRoot": true, "runAsUser": jail.AgentUID, "runAsGroup": jail.AgentUID, "seccompProfile": seccomp},
		"containers": []object{{
			"name": "jail", "image": image,
			"command":         []string{program, "--gateway", d.o.Gateway, "--pin", d.pin, "--token", identityDir + "/token"},
			"securityContext": confined,
			"resources":       resources,
			// A node starts a process for each look: there are no more of them once a pod is ready.
			"startupProbe": object{"exec": object{"command": []string{program, "ready"}}, "periodSeconds": 1, "failureThreshold": int(readyLimit.Seconds())},
			"volumeMounts": mounts,
		}},
		"volumes": volumes,
	}
	if before != nil {
		pod["initContainers"] = before
	}
	if persistent(spec) {
		// Files of a new volume belong to root. With this the pod's group can write to them.
		context := pod["securityContext"].(object)
		context["fsGroup"], context["fsGroupChangePolicy"] = jail.AgentUID, "OnRootMismatch"
	}
	if d.o.RuntimeClass != "" {
		pod["runtimeClassName"] = d.o.RuntimeClass
	}
	return object{"metadata": object{"annotations": annotations}, "spec": pod}
}

// selected is the path of the objects of a kind with some labels, or of the one among them that has a name.
func selected(namespace, kinds string, labels map[string]string, name string) string {
	var selector []string
	for _, label := range slices.Sorted(maps.Keys(labels)) {
		selector = append(selector, label+"="+labels[label])
	}
	query := url.Values{"labelSelector": {strings.Join(selector, ",")}}
	if name != "" {
		query.Set("fieldSelector", "metadata.name="+name)
	}
	return resource(extensionsGroup, namespace, kinds) + "?" + query.Encode()
}

// listPage is how many objects the API server lists at once.
const listPage = 1000

// list shows each object of a list, and returns the version of the whole.
func (a *API) list(ctx context.Context, path string, each func(object jsontext.Value) error) (version string, err error) {
	for after := ""; ; {
		var page struct {
			Meta struct {
				Version string `json:"resourceVersion"`
				After   string `json:"continue"`
			} `json:"metadata"`
			Items []jsontext.Value `json:"items"`
		}
		if err := a.ask(ctx, http.MethodGet, fmt.Sprintf("%s&limit=%d&continue=%s", path, listPage, url.QueryEscape(after)), nil, &page); err != nil {
			return "", err
		}
		for _, one := range page.Items {
			if err := each(one); err != nil {
				return "", err
			}
		}
		if after = page.Meta.After; after == "" {
			return page.Meta.Version, nil
		}
	}
}

// named are the names of the objects of a list.
func (a *API) named(ctx context.Context, path string) (names []string, err error) {
	_, err = a.list(ctx, path, func(object jsontext.Value) error {
		var one struct {
			Meta Meta `json:"metadata"`
		}
		err := json.Unmarshal(object, &one)
		names = append(names, one.Meta.Name)
		return err
	})
	return names, err
}
