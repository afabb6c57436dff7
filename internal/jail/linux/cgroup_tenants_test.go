//go:build linux

package linux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// shares are what a tenant may take of memory and of tasks: the larger whole is the host's memory.
func shares(memory, tasks int64) func(int64) int64 {
	return func(whole int64) int64 {
		if whole >= 256<<20 {
			return memory
		}
		return tasks
	}
}

func everything(whole int64) int64 { return whole }

func TestTenantsOfVersion2(t *testing.T) {
	tree, l, o := newTreeV2(t, "cpu memory pids")
	ctx := t.Context()
	must(t, l.Divide(ctx, shares(64<<20, 100)))
	base := filepath.Join(l.memory.dir, l.base())
	for name, tenant := range map[jail.Name]string{"btest00001": "a", "atest00002": "a", "btest00003": "btest00004", "btest00004": ""} {
		must(t, l.Apply(ctx, name, tenant, testLimits()))
		want := filepath.Join(base, string(name))
		if tenant != "" {
			want = filepath.Join(base, "tenant-"+tenant, string(name))
		}
		if dir := l.group(l.memory, string(name)); dir != want || tree.get(dir, "memory.max") != "134217728" || tree.get(dir, "filter") != "on" {
			t.Errorf("%s of %q is in %s, want %s", name, tenant, dir, want)
		}
	}
	group := filepath.Join(base, "tenant-a")
	said := func(memory, tasks string) {
		t.Helper()
		if m, p := tree.get(group, "memory.max"), tree.get(group, "pids.max"); m != memory || p != tasks {
			t.Errorf("a tenant may have memory %s and tasks %s, want %s and %s", m, p, memory, tasks)
		}
		if high, cpu := tree.get(group, "memory.high"), tree.get(group, "cpu.max"); high != "max" || cpu != "max 100000" {
			t.Errorf("a tenant is slowed down: memory.high %s, cpu.max %s", high, cpu)
		}
	}
	said("67108864", "100")
	if text := tree.get(base, "memory.max"); text != "max" {
		t.Errorf("all tenants together may have %s", text)
	}
	must(t, l.Divide(ctx, everything))
	said("max", "max")
	// A tenant that has more keeps it, and gets no more.
	tree.put(group, "memory.current", "100000000")
	must(t, l.Divide(ctx, shares(64<<20, 50)))
	said(fmt.Sprint(100000000+memorySlack), "50")
	tree.put(group, "memory.current", "1000000")
	must(t, l.Divide(ctx, shares(64<<20, 50)))
	said("67108864", "50")
	// A share of what the groups above leave, not of the host.
	tree.put(filepath.Dir(base), "memory.max", "1073741824")
	tree.put(filepath.Dir(base), "pids.max", "1000")
	must(t, l.Divide(ctx, func(whole int64) int64 { return whole / 4 }))
	said("268435456", "250")

	if err := l.Apply(ctx, "btest00009", "../x", testLimits()); problem.CodeOf(err) != problem.BadName {
		t.Errorf("a tenant that is a path: %v", err)
	}

	// The next host daemon finds them, and jails that were made before there were groups of tenants.
	tree.put(filepath.Join(group, "btest00001"), "cgroup.procs", "4711\n")
	next, err := newLimiter(o, []mount{{Point: "/sys/fs/cgroup", FSType: "cgroup2"}}, tree.root)
	must(t, err)
	next.mkdir, next.attach, next.attached = l.mkdir, l.attach, l.attached
	if m, _, _, err := next.enforced("btest00001", 4711); m != testLimits().Memory || err != nil {
		t.Errorf("after a restart it may have %d (%v)", m, err)
	}
	names, err := next.names(next.memory)
	slices.Sort(names)
	if want := []jail.Name{"atest00002", "btest00001", "btest00003", "btest00004"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("after a restart there are %v (%v), want %v", names, err, want)
	}
	if dir := next.group(next.memory, "btest00004/exec1"); dir != filepath.Join(base, "btest00004/exec1") {
		t.Errorf("one from before is looked for in %s", dir)
	}
	// A name that is in use in the group of one tenant is not used in that of another.
	if err := next.Apply(ctx, "btest00001", "b", testLimits()); !errors.Is(err, jail.ErrBusy) {
		t.Errorf("a name that is in use: %v", err)
	}
}

func TestHitsOfATenantOfVersion2(t *testing.T) {
	tree, l, _ := newTreeV2(t, "cpu memory pids")
	ctx, name := t.Context(), jail.Name("btest00001")
	must(t, l.Apply(ctx, name, "a", testLimits()))
	dir := l.group(l.memory, string(name))
	group := filepath.Dir(dir)
	for _, test := range []struct {
		what                        string
		own, tenants, tasks, tenant string
		peak                        string
		want                        []jail.LimitName
	}{
		{"nothing", "oom 0\noom_kill 0", "oom 0", "max 0", "max 0", "9", nil},
		{"the tenant's", "oom 0\noom_kill 1", "oom 1", "max 0", "max 2", "9", []jail.LimitName{jail.LimitTenantMemory, jail.LimitTenantTasks}},
		{"its own", "oom 1\noom_kill 1", "oom 0", "max 1", "max 0", "64", []jail.LimitName{jail.LimitMemory, jail.LimitTasks}},
		{"both", "oom 1\noom_kill 1", "oom 3", "max 1", "max 1", "64", []jail.LimitName{jail.LimitMemory, jail.LimitTasks}},
		{"the tenant's, counted where it was refused", "oom 0\noom_kill 0", "oom 0", "max 1", "max 0", "9", []jail.LimitName{jail.LimitTenantTasks}},
		{"another jail's of the tenant", "oom 0\noom_kill 0", "oom 1", "max 0", "max 0", "9", nil},
	} {
		tree.put(dir, "memory.events", test.own+"\n")
		tree.put(group, "memory.events.local", test.tenants+"\n")
		tree.put(dir, "pids.events", test.tasks+"\n")
		tree.put(group, "pids.events", test.tenant+"\n")
		tree.put(dir, "pids.peak", test.peak+"\n")
		if u, err := l.Usage(ctx, name, jail.Process{}); err != nil || !slices.Equal(u.Hit, test.want) {
			t.Errorf("%s: %v (%v), want %v", test.what, u.Hit, err, test.want)
		}
	}
}

// One tenant takes all that it may, with the kernel's own limits, while another works.
func TestJailsOfATenantAreBoundTogether(t *testing.T) {
	h := newTestHost(t)
	ctx := context.Background()
	of := func(tenant string, kind jail.Kind) *testJail {
		t.Helper()
		spec := probeSpec(kind)
		spec.Limits.Disk = 1 << 30
		if spec.For = tenant; kind == jail.KindAgent {
			spec.For, spec.Agent = "", &jail.Agent{Tenant: tenant, Name: "bot"}
		}
		return h.start(t, spec, nil)
	}
	hits := func(j *testJail) []jail.LimitName {
		t.Helper()
		u, err := h.limiter.Usage(ctx, j.place.Name, j.proc)
		must(t, err)
		return u.Hit
	}
	const tasks = 40 // of 64 of a jail
	if a := of("solo", jail.KindAgent).Ask("fork", "500"); a.OK || a.Number <= tasks {
		t.Fatalf("alone, a tenant has %d tasks, which shows nothing", a.Number)
	}
	must(t, h.limiter.Divide(ctx, shares(96<<20, tasks)))

	one, two, other := of("greedy", jail.KindBrowser), of("greedy", jail.KindAgent), of("other", jail.KindBrowser)
	if a := other.Ask("fill", "/tmp/f", num(60<<20)); !a.OK {
		t.Errorf("a tenant within its share: %+v", a)
	}
	for _, j := range []*testJail{one, two} {
		_, _ = j.Try("fill", "/tmp/f", num(60<<20)) // the kernel ends one of the two, and may end both
	}
	all := append(hits(one), hits(two)...)
	if !slices.Contains(all, jail.LimitTenantMemory) || slices.Contains(all, jail.LimitMemory) {
		t.Errorf("two jails with 60 MiB each of 128, and 96 together, have run into %v", all)
	}
	group := h.limiter.above(h.limiter.memory, "tenant-greedy")
	if h.limiter.Version() == 1 {
		if limit, err := readGroupNumber(group, "memory.max_usage_in_bytes"); err != nil || limit > 96<<20 {
			t.Errorf("a tenant has had %d bytes (%v)", limit, err)
		}
	}
	for _, j := range []*testJail{one, two} {
		h.end(t, j.place.Name, j.proc)
	}
	if _, err := os.Stat(group); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the group of a tenant without jails is left: %v", err)
	}

	full := of("greedy", jail.KindAgent)
	if a := full.Ask("fork", "500"); a.OK || a.Errno != "EAGAIN" || a.Number >= tasks {
		t.Errorf("500 children: %+v", a)
	}
	if hit := hits(full); !slices.Equal(hit, []jail.LimitName{jail.LimitTenantTasks}) {
		t.Errorf("a jail whose tenant has no task left has run into %v", hit)
	}
	if a := other.Ask("fork", "4"); !a.OK {
		t.Errorf("another tenant starts processes: %+v", a)
	}
	if hit := hits(other); len(hit) > 0 {
		t.Errorf("another tenant has run into %v", hit)
	}
	must(t, h.limiter.Divide(ctx, everything))
	if n, err := readGroupText(h.limiter.above(h.limiter.pids, "tenant-greedy"), "pids.max"); n != "max" || err != nil {
		t.Errorf("a tenant that is alone may have %s tasks (%v)", n, err)
	}
	file := "cpu.shares"
	if h.limiter.cpu.unified {
		file = "cpu.weight"
	}
	weights := map[string]bool{}
	for _, tenant := range []string{"tenant-greedy", "tenant-other"} {
		weight, err := readGroupText(h.limiter.above(h.limiter.cpu, tenant), file)
		must(t, err)
		weights[weight] = true
	}
	if len(weights) != 1 {
		t.Errorf("tenants have different weights: %v", weights)
	}
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", full.proc.PID))
	if err != nil || strings.Count(string(groups), "/tenant-greedy/") < len(h.limiter.used()) {
		t.Errorf("a jail of a tenant is in %s (%v)", groups, err)
	}
}
