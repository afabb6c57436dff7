//go:build linux

package linux

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest/inside"
	"github.com/clawjail/clawjail/internal/testenv"
)

// testHost is an installation of its own, with the three parts that this half of the package supplies.
type testHost struct {
	o       Options
	storage *Storage
	limiter *Limiter
	runtime *Runtime
	number  int
}

var installations atomic.Uint32

// newTestHost makes an installation that leaves nothing: what is left at the end fails the test.
func newTestHost(t testing.TB, change ...func(*Options)) *testHost {
	t.Helper()
	testenv.Need(t, testenv.Root)
	if err := BecomeSubreaper(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	o := Options{
		Installation: jail.Installation("t" + testenv.Tag(installations.Add(1))),
		RunDir:       filepath.Join(dir, "run"),
		DataDir:      filepath.Join(dir, "data"),
		Templates:    templates(t),
		Gateway:      netip.MustParseAddr("10.213.0.1"),
		Log:          slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	for _, c := range change {
		c(&o)
	}
	h := &testHost{o: o}
	var err error
	if h.storage, err = NewStorage(o); err != nil {
		t.Fatal(err)
	}
	if h.limiter, err = NewLimiter(o); err != nil {
		t.Fatal(err)
	}
	if h.runtime, err = NewRuntime(o, h.limiter); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.noTraces(t)
		if err := h.limiter.Uninstall(context.Background()); err != nil {
			t.Error(err)
		}
		if err := h.runtime.Close(); err != nil {
			t.Error(err)
		}
		if err := h.storage.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// resources is everything that the parts see of this installation.
func (h *testHost) resources(t testing.TB) []jail.HostResource {
	t.Helper()
	var all []jail.HostResource
	for _, list := range []func(context.Context) ([]jail.HostResource, error){h.runtime.List, h.limiter.List, h.storage.List} {
		resources, err := list(context.Background())
		if err != nil {
			t.Error(err)
		}
		all = append(all, resources...)
	}
	return all
}

func (h *testHost) noTraces(t testing.TB) {
	t.Helper()
	if left := h.resources(t); len(left) > 0 {
		t.Errorf("left on the host: %+v", left)
	}
}

func testLimits() jail.Limits {
	return jail.Limits{Memory: 128 << 20, MilliCPU: 2000, Tasks: 64, Disk: 4 << 20, SharedMemory: 2 << 20, Files: 128, WallClock: time.Minute}
}

// place makes the clone and the limits of the next jail, which are gone when the test ends.
func (h *testHost) place(t testing.TB, spec jail.Spec) jail.Placement {
	t.Helper()
	ctx := context.Background()
	h.number++
	name, err := jail.NewName(spec.Kind, h.o.Installation, h.number)
	if err != nil {
		t.Fatal(err)
	}
	p := jail.Placement{Name: name, Spec: spec, Lease: jail.Lease{Index: h.number, UID: 210_000 + uint32(h.number)}}
	p.Profile = jail.ProfileFor(spec, p.Lease).With(h.runtime.Means())
	t.Cleanup(func() { h.end(t, p.Name, jail.Process{}) })
	if p.Root, err = h.storage.Clone(ctx, name, spec); err != nil {
		t.Fatal(err)
	}
	if err := h.limiter.Apply(ctx, name, spec.Tenant(), spec.Limits); err != nil {
		t.Fatal(err)
	}
	return p
}

// end tears a jail down in the order of the lifecycle.
func (h *testHost) end(t testing.TB, name jail.Name, proc jail.Process) {
	t.Helper()
	ctx := context.Background()
	for _, s := range []struct {
		step string
		do   func() error
	}{
		{"kill", func() error { return h.runtime.Kill(ctx, name, proc) }}, {"unmount", func() error { return h.storage.Unmount(ctx, name, false) }},
		{"stop", func() error { return h.runtime.Stop(ctx, name) }}, {"unlimit", func() error { return h.limiter.Remove(ctx, name) }},
		{"destroy", func() error { return h.storage.Destroy(ctx, name) }},
	} {
		var err error
		testenv.Eventually(t, 10*time.Second, func() bool { // again while it is busy, as the teardown does
			err = s.do()
			return !errors.Is(err, jail.ErrBusy)
		}, "%s: busy", s.step)
		if err != nil {
			t.Errorf("%s: %v", s.step, err)
		}
	}
}

func probeSpec(kind jail.Kind) jail.Spec {
	return jail.Spec{Kind: kind, Lifetime: jail.LifetimeOwner, Template: "tiny", Limits: testLimits(),
		Program: jail.Program{Argv: inside.Argv(), Wire: jail.WireStdio, Env: map[string]string{"GREETING": "it's $HOME `here`"}}}
}

// testJail is a started jail with the probe in it.
type testJail struct {
	*inside.Probe
	host  *testHost
	place jail.Placement
	proc  jail.Process
	stdin *os.File
}

// start starts a jail with the probe. amend may take controls away.
func (h *testHost) start(t testing.TB, spec jail.Spec, amend func(*specs.Spec)) *testJail {
	t.Helper()
	p := h.place(t, spec)
	j, err := h.launch(t, p, amend)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// launch starts a jail and lets its program begin.
func (h *testHost) launch(t testing.TB, p jail.Placement, amend func(*specs.Spec)) (*testJail, error) {
	t.Helper()
	j, err := h.hold(t, p, amend)
	if err == nil {
		err = h.runtime.Begin(context.Background(), p, j.proc)
	}
	return j, err
}

// hold starts a jail whose program waits.
func (h *testHost) hold(t testing.TB, p jail.Placement, amend func(*specs.Spec)) (*testJail, error) {
	t.Helper()
	inRead, inWrite, err1 := os.Pipe()
	outRead, outWrite, err2 := os.Pipe()
	errRead, errWrite, err3 := os.Pipe()
	if err1 != nil || err2 != nil || err3 != nil {
		t.Fatal(err1, err2, err3)
	}
	for _, f := range []*os.File{inWrite, outRead, errRead} {
		t.Cleanup(func() { _ = f.Close() }) // some tests have closed it
	}
	h.runtime.amend = amend
	proc, err := h.runtime.Start(context.Background(), p, [3]*os.File{inRead, outWrite, errWrite})
	h.runtime.amend = nil
	for _, f := range []*os.File{inRead, outWrite, errWrite} {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	return &testJail{Probe: inside.Connect(t, inWrite, outRead), host: h, place: p, proc: proc, stdin: inWrite}, err
}
