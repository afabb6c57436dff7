package kubernetes

import (
	"crypto/ed25519"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/kubernetes/shim"
	"github.com/clawjail/clawjail/internal/problem"
)

func browser() jail.Spec {
	return jail.Spec{Kind: jail.KindBrowser, Lifetime: jail.LifetimeOwner, Template: "browser", Program: jail.Program{Argv: []string{"/bin/true"}, Wire: jail.WireStdio},
		Limits: jail.Limits{Memory: 1 << 30, MilliCPU: 1000, Tasks: 100, Disk: 8 << 20, SharedMemory: 1 << 20, Files: 256, WallClock: time.Hour}}
}

// confined is what a pod of a browser says that is confined as it should be.
func confined() shim.Report {
	o := jail.Observed{UIDs: []uint32{1000, 1000}, GIDs: []uint32{1000, 1000}, InsideUID: 1000, InsideGID: 1000, NoNewPrivileges: true, SeccompFilter: true, ReadOnlyRoot: true,
		Memory: 1 << 30, MilliCPU: 1000, Tasks: 500, Files: 256, SharedNamespaces: []string{"cgroup"}, Writable: []string{"/etc/hostname", "/dev/termination-log", "/dev/mqueue"}}
	for _, t := range ProfileFor(browser()).Tmpfs {
		o.Tmpfs = append(o.Tmpfs, jail.Tmpfs{Path: t.Path, Size: t.Size, Mode: 0o1777})
	}
	return shim.Report{Observed: o, Host: 1000, Addresses: []netip.Addr{netip.MustParseAddr("10.88.0.7"), netip.MustParseAddr("fe80::1")}}
}

func TestAPodThatIsNotConfinedAsDeclaredIsFound(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*shim.Report)
		want   string
	}{
		"confined":                 {func(*shim.Report) {}, ""},
		"root":                     {func(r *shim.Report) { r.Observed.UIDs[1] = 0 }, "uid is 0, declared 1000"},
		"a capability":             {func(r *shim.Report) { r.Observed.Capabilities = []string{"CAP_NET_RAW"} }, "capability CAP_NET_RAW was not declared"},
		"new privileges":           {func(r *shim.Report) { r.Observed.NoNewPrivileges = false }, "no_new_privs is not set"},
		"no filter":                {func(r *shim.Report) { r.Observed.SeccompFilter = false }, "no seccomp filter is active"},
		"a writable root":          {func(r *shim.Report) { r.Observed.ReadOnlyRoot = false }, "the root file system is writable"},
		"the node's processes":     {func(r *shim.Report) { r.Observed.SharedNamespaces = []string{"pid"} }, "namespaces shared with the host: pid"},
		"another volume":           {func(r *shim.Report) { r.Observed.Writable = append(r.Observed.Writable, "/host") }, "/host is writable and was not declared"},
		"no memory limit":          {func(r *shim.Report) { r.Observed.Memory = 0 }, "limit memory is 0, declared 1073741824"},
		"no processor limit":       {func(r *shim.Report) { r.Observed.MilliCPU = 0 }, "limit cpu is 0, declared 1000"},
		"a limit that is not seen": {func(r *shim.Report) { r.Observed.Tasks = 0 }, ""},
		"a volume that is large":   {func(r *shim.Report) { r.Observed.Tmpfs[0].Size *= 2 }, "tmpfs /tmp has 16777216 bytes, declared 8388608"},
		"core files":               {func(r *shim.Report) { r.Observed.CoreFiles = true }, "the memory of a program that crashes leaves the jail"},
		"a second network":         {func(r *shim.Report) { r.Addresses = append(r.Addresses, netip.MustParseAddr("192.168.1.9")) }, "it has the address 192.168.1.9, and has connected from 10.88.0.7"},
	} {
		t.Run(name, func(t *testing.T) {
			r := confined()
			c.change(&r)
			diff := differences(ProfileFor(browser()), r, netip.MustParseAddr("10.88.0.7"))
			if c.want == "" && len(diff) > 0 || c.want != "" && !slices.Equal(diff, []string{c.want}) {
				t.Errorf("the differences are %q", diff)
			}
		})
	}
}

func TestWhatCannotBeMadeOnKubernetesIsRefusedBeforeAnythingIsMade(t *testing.T) {
	c := newCluster() // which has no claims, so that one that is made fails
	api := c.api(t)
	d, err := New(t.Context(), Options{API: api, Installation: "test", Node: "one", Namespace: "jails", Images: map[string]string{"browser": "image"}, Account: "jail",
		Gateway: "10.0.0.1:7777", Key: ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for name, c := range map[string]struct {
		change func(*jail.Spec)
		want   string
	}{
		"a browser": {func(*jail.Spec) {}, ""},
		"an agent with a folder": {func(s *jail.Spec) {
			s.Kind, s.Agent, s.Mounts = jail.KindAgent, &jail.Agent{Tenant: "default", Name: "x", State: 1 << 30, Token: true}, []jail.Mount{{Source: "/x", Target: "/workspace"}}
		}, ""},
		"an image of Docker": {func(s *jail.Spec) {
			s.Kind, s.Template, s.Image, s.Agent = jail.KindAgent, "", "image", &jail.Agent{Tenant: "default", Name: "x"}
		}, problem.Unsupported},
		"a jail that is kept, and nobody who keeps it": {func(s *jail.Spec) {
			s.Kind, s.Lifetime, s.Agent = jail.KindAgent, jail.LifetimeKeep, &jail.Agent{Tenant: "default", Name: "x"}
		}, problem.BadRequest},
		"an unknown template": {func(s *jail.Spec) { s.Template = "other" }, problem.TemplateMissing},
	} {
		spec := browser()
		c.change(&spec)
		err := d.Check(t.Context(), spec)
		if p := new(problem.Error); (err == nil) != (c.want == "") || err != nil && (!errors.As(err, &p) || p.Code != c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := d.Create(t.Context(), browser()); problem.CodeOf(err) != problem.RuntimeMissing || !strings.Contains(err.Error(), "no namespace jails") {
		t.Errorf("a cluster without the namespace: %v", err)
	}
	c.objects["/apis/coordination.k8s.io/v1/namespaces/jails/leases/clawjail-one"] = `{"metadata":{"name":"clawjail-one","uid":"u-lease"}}`
	if _, err := d.Create(t.Context(), browser()); problem.CodeOf(err) != problem.RuntimeMissing || !strings.Contains(err.Error(), "SandboxTemplate") {
		t.Errorf("a cluster without agent-sandbox: %v", err)
	}
	if all, err := d.List(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("there are %v, %v", all, err)
	}
	if _, err := New(t.Context(), Options{Installation: "x", Node: "A B", Gateway: "nowhere"}); problem.CodeOf(err) != problem.BadConfig {
		t.Errorf("options that are none: %v", err)
	}
}
