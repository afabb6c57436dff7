package hostd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// fakeContainers notes what it is asked. It makes nothing.
type fakeContainers struct {
	jail.Maker // of which nothing else is asked
	o          ContainerOptions

	mu    sync.Mutex
	asked []string
	there []jail.Status
}

func (f *fakeContainers) note(format string, a ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, fmt.Sprintf(format, a...))
}

func (f *fakeContainers) was(what string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Contains(f.asked, what)
}

func (f *fakeContainers) CreateFor(ctx context.Context, _ string, s jail.Spec, _ func(context.Context, *jail.Jail) error) (*jail.Jail, error) {
	f.note("create %s", s.Image)
	err := f.o.Journal.Put(ctx, jail.Record{Version: 1, Name: "ctest00001", State: jail.StateReserved, Spec: s})
	return nil, errors.Join(err, errors.New("the fake makes nothing"))
}
func (f *fakeContainers) Admit(_ context.Context, n jail.Name) error {
	f.note("admit %s", n)
	return nil
}
func (f *fakeContainers) Destroy(_ context.Context, n jail.Name) error {
	f.note("destroy %s", n)
	return nil
}
func (f *fakeContainers) List(context.Context) ([]jail.Status, error) { return f.there, nil }
func (f *fakeContainers) Lost(string)                                 { f.note("lost") }
func (f *fakeContainers) Found(string)                                { f.note("found") }
func (f *fakeContainers) Run(ctx context.Context) error               { f.note("run"); <-ctx.Done(); return nil }
func (f *fakeContainers) Gateway() netip.Addr                         { return netip.MustParseAddr("10.1.2.1") }
func (f *fakeContainers) HostResources(context.Context) ([]jail.HostResource, error) {
	return []jail.HostResource{{Kind: jail.ResourceRuntimeState, Name: "ctest00001", Index: -1, ID: "x"}}, nil
}
func (f *fakeContainers) Composed(_ context.Context, after uint64) (uint64, []jail.Composed, error) {
	return after + 1, []jail.Composed{{ID: "0123", Tenant: "default", Agent: "bot", Addr: f.Gateway().Next()}}, nil
}
func (f *fakeContainers) RemoveNetwork(context.Context) error { f.note("network"); return nil }
func (f *fakeContainers) Uninstall(context.Context) error     { f.note("uninstall"); return nil }
func (f *fakeContainers) Close(context.Context) error         { f.note("close"); return nil }

// Names, specs and owners find their way to the driver of containers, and both drivers count against one bound.
func TestContainersAreTheOtherDrivers(t *testing.T) {
	fake := &fakeContainers{there: []jail.Status{{Name: "ctest00001", Spec: jail.Spec{Image: "busybox"}}}}
	socket := newSocket(t)
	journal, err := OpenJournal(strings.TrimSuffix(socket, "hostd.sock")+"records", "test", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := journal.Close(); err != nil {
			t.Error(err)
		}
	})
	f := newFixture(t, func(o *Options) {
		o.MaxJails, o.ContainerJournal = 1, journal
		o.Containers = func(co ContainerOptions) (Containers, error) { fake.o = co; return fake, nil }
	})
	c := f.client(t)
	if info, err := c.Info(t.Context()); err != nil || info.ContainerGateway != fake.Gateway() || info.Jails != 1 {
		t.Errorf("info: %+v, %v", info, err)
	}
	image := spec("exec cat")
	image.Kind, image.Template, image.Image = jail.KindAgent, "", "busybox"
	if _, err := c.Create(t.Context(), image); err == nil || !fake.was("create busybox") {
		t.Errorf("a container is made elsewhere: %v, %q", err, fake.asked)
	}
	if _, err := c.Create(t.Context(), spec("exec cat")); problem.CodeOf(err) != problem.PoolExhausted {
		t.Errorf("containers are not counted: %v", err)
	}
	if err := c.Admit(t.Context(), "ctest00001"); err != nil || !fake.was("admit ctest00001") {
		t.Errorf("admit: %v, %q", err, fake.asked)
	}
	if version, all, err := c.Composed(t.Context(), 7); err != nil || version != 8 || len(all) != 1 || all[0].Agent != "bot" || all[0].Addr != fake.Gateway().Next() {
		t.Errorf("the containers of docker-compose are %d, %+v, %v", version, all, err)
	}
	if resources, err := c.HostResources(t.Context()); err != nil || len(resources) != 1 || resources[0].Name != "ctest00001" {
		t.Errorf("the resources are %v, %v", resources, err)
	}
	w, err := fake.o.Output(jail.Agent{Tenant: "default", Name: "bot"}, jail.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(w, "hello")
	chunk, err := c.ReadLog(t.Context(), jail.LogRequest{Tenant: "default", Name: "bot", Stream: jail.Stderr})
	if string(chunk.Data) != "hello" || w.End() != 5 || err != nil {
		t.Errorf("the log is %q, %v", chunk.Data, err)
	}
	c.Close()
	testenv.Eventually(t, patience, func() bool { return fake.was("lost") }, "an owner is not lost: %q", fake.asked)
	if err := f.stop(); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"found", "run", "destroy ctest00001", "network", "close"} {
		if !fake.was(what) {
			t.Errorf("it was not asked to %s: %q", what, fake.asked)
		}
	}
}
