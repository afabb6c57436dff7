package kubernetes

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"net/netip"
	"reflect"
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
		"an agent of an image": {func(s *jail.Spec) {
			s.Kind, s.Template, s.Image, s.Agent = jail.KindAgent, "", "image", &jail.Agent{Tenant: "default", Name: "x"}
		}, ""},
		"a browser of an image": {func(s *jail.Spec) { s.Template, s.Image = "", "image" }, problem.BadRequest},
		"an image without a command": {func(s *jail.Spec) {
			s.Kind, s.Template, s.Image, s.Agent, s.Program.Argv = jail.KindAgent, "", "image", &jail.Agent{Tenant: "default", Name: "x"}, nil
		}, problem.BadTemplate},
		"a folder": {func(s *jail.Spec) { s.Kind, s.Template, s.Root = jail.KindAgent, "", "/srv/root" }, problem.Unsupported},
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

// A pod of an image that is no template's has clawjail-shim of one that is, and runs it in place of what the image would.
func TestAPodOfAnImageHasTheShimOfATemplates(t *testing.T) {
	d := &Driver{o: Options{Images: map[string]string{"clawbot": "registry/clawbot", "browser": "registry/browser"}, Gateway: "10.0.0.1:7777"}}
	spec := browser()
	spec.Kind, spec.Agent = jail.KindAgent, &jail.Agent{Tenant: "default", Name: "x"}
	type container struct {
		Image           string
		Command         []string
		VolumeMounts    []struct{ Name, MountPath string }
		StartupProbe    struct{ Exec struct{ Command []string } }
		SecurityContext map[string]any
	}
	pod := func() (p struct{ InitContainers, Containers []container }) {
		t.Helper()
		text, err := json.Marshal(d.podTemplate(spec)["spec"])
		if err == nil {
			err = json.Unmarshal(text, &p)
		}
		if err != nil || len(p.Containers) != 1 {
			t.Fatalf("%v: %s", err, text)
		}
		return p
	}
	p := pod()
	if one := p.Containers[0]; len(p.InitContainers) > 0 || one.Image != "registry/browser" || one.Command[0] != "/clawjail-shim" || one.StartupProbe.Exec.Command[0] != "/clawjail-shim" {
		t.Errorf("the pod of a template is %+v", p)
	}
	spec.Template, spec.Image = "", "other/image:1"
	p = pod()
	if len(p.InitContainers) != 1 || p.InitContainers[0].Image != "registry/browser" {
		t.Fatalf("the pod of an image is %+v", p)
	}
	const there = "/run/clawjail-shim/clawjail-shim"
	before, one := p.InitContainers[0], p.Containers[0]
	if !slices.Equal(before.Command, []string{"/clawjail-shim", "install", there}) || one.Image != "other/image:1" || one.Command[0] != there || one.StartupProbe.Exec.Command[0] != there {
		t.Errorf("the pod of an image is %+v", p)
	}
	if !reflect.DeepEqual(before.SecurityContext, one.SecurityContext) || len(before.VolumeMounts) != 1 {
		t.Errorf("what runs before it is %+v", before)
	}
}
