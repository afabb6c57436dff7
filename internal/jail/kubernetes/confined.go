package kubernetes

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/kubernetes/shim"
	"github.com/clawjail/clawjail/internal/problem"
)

// enforceLimit is how long a network may take to enforce its policies for a new pod.
const enforceLimit = 10 * time.Second

// confined has a pod confine its programs and say how they are confined. A pod that says anything else than was declared never runs one.
func (d *Driver) confined(ctx context.Context, p *pod, spec jail.Spec) error {
	profile := ProfileFor(spec)
	how := shim.Prepare{Profile: profile, Probes: d.o.Probes, Sandbox: spec.Kind == jail.KindBrowser}
	report, err := p.Prepare(ctx, how)
	if err != nil {
		return err
	}
	// Many networks enforce policies a moment after a pod has begun. Nothing runs in it before.
	for end := time.Now().Add(enforceLimit); len(report.Reached) > 0 && time.Now().Before(end); {
		if !wake.Sleep(ctx, enforceLimit/20) {
			return ctx.Err()
		}
		if report, err = p.Prepare(ctx, how); err != nil {
			return err
		}
	}
	if report.Unsandboxed != "" {
		return problem.New(problem.JailUnconfined, "set kubernetes.seccomp to the profile for browsers, or kubernetes.runtime_class to a runtime whose programs may make user namespaces: see docs/kubernetes.md",
			"a browser cannot have its own sandbox in the pod: %s", report.Unsandboxed)
	}
	if diff := differences(profile, report, p.Address()); len(diff) > 0 {
		return problem.New(problem.JailUnconfined, "look at the admission and the runtime of the cluster: they change what pods ask for", "the pod is not confined as declared: %s", strings.Join(diff, "; "))
	}
	if len(report.Reached) > 0 {
		return problem.New(problem.NetworkNotEnforced, "use a network plugin that enforces policies, and look at the policies of the namespace "+d.o.Namespace,
			"the pod reaches what no jail may reach: %s", strings.Join(report.Reached, ", "))
	}
	return p.Ready(ctx)
}

// tokenRoom is how large the volume is in which an agent has its token.
const tokenRoom = 64 << 10

// ProfileFor is how a pod is confined. Kubernetes cannot forbid programs in a volume of memory, has a limit of tasks for all pods of a node alike, and
// gives pods of one user of the node's unless they have a user namespace.
func ProfileFor(spec jail.Spec) jail.Profile {
	p := jail.ProfileFor(spec, jail.Lease{UID: jail.AgentUID}).With(jail.Means{Seccomp: true, SharedMemoryFolder: true, UserNamespaces: true})
	p.UID, p.GID, p.Host = jail.AgentUID, jail.AgentUID, jail.AgentUID
	p.Limits.Tasks = jail.MaxTasks
	// The first process of the pod writes the token, and is of the same user as all others.
	if i := slices.IndexFunc(p.Binds, func(b jail.Bind) bool { return b.Path == jail.TokenDir }); i >= 0 {
		p.Binds = slices.Delete(slices.Clone(p.Binds), i, i+1)
		p.Tmpfs = append(p.Tmpfs, jail.Tmpfs{Path: jail.TokenDir, Size: tokenRoom})
	}
	mode := uint32(0o1777)
	if persistent(spec) {
		mode = 0o3777 // what is made there is of the group of the volumes
	}
	p.Tmpfs = slices.Clone(p.Tmpfs)
	for n := range p.Tmpfs {
		p.Tmpfs[n].NoExec, p.Tmpfs[n].Mode = false, mode
	}
	return p
}

// differences lists how a pod is not confined as declared.
func differences(p jail.Profile, r shim.Report, address netip.Addr) []string {
	o := r.Observed
	// Files of the node that a kubelet puts into each pod. The first is root's; the second takes the last words of a container.
	o.Writable = slices.DeleteFunc(slices.Clone(o.Writable), func(point string) bool {
		return slices.Contains([]string{"/etc/hostname", "/etc/resolv.conf", "/dev/termination-log", "/dev/mqueue"}, point)
	})
	// With version 1 of control groups there is one namespace of them for all.
	o.SharedNamespaces = slices.DeleteFunc(slices.Clone(o.SharedNamespaces), func(kind string) bool { return kind == "cgroup" })
	// The limit of a pod is of a group around it, which is not seen from within.
	if o.Tasks == 0 {
		o.Tasks = jail.MaxTasks
	}
	diff := p.Compare(o)
	for _, a := range r.Addresses {
		if a.Is4() == address.Is4() && a != address {
			diff = append(diff, fmt.Sprintf("it has the address %s, and has connected from %s", a, address))
		}
	}
	return diff
}
