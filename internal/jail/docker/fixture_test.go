//go:build linux

package docker

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest/inside"
	"github.com/clawjail/clawjail/internal/jail/linux"
	"github.com/clawjail/clawjail/internal/testenv"
)

// shared is the engine of all tests but those that kill it, started by the first that needs it.
var shared struct {
	sync.Mutex
	engine *testenv.Docker
	root   string // of the image
}

const testImage = "clawjail-test"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "relay" { // in a container, in place of the program's own
		playRelay(os.Args[2:])
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if shared.engine != nil {
			if err := shared.engine.Stop(); err != nil {
				println("stop the engine of the tests:", err.Error())
				code = max(code, 1)
			}
		}
		if shared.root != "" {
			if err := os.RemoveAll(shared.root); err != nil {
				println("remove the image of the tests:", err.Error())
				code = max(code, 1)
			}
		}
		os.Exit(code)
	}))
}

// imageRoot is the file system of the image: a shell, the probe and the places of the wire contract.
func imageRoot(t testing.TB) string {
	if shared.root == "" {
		dir, err := os.MkdirTemp("", "clawjail-image-")
		if err != nil {
			t.Fatal(err)
		}
		shared.root = dir
		inside.Template(t, dir)
	}
	return shared.root
}

func sharedEngine(t testing.TB) *testenv.Docker {
	t.Helper()
	testenv.Need(t, testenv.Root)
	testenv.Tool(t, "dockerd")
	shared.Lock()
	defer shared.Unlock()
	if shared.engine == nil {
		root := imageRoot(t)
		shared.engine = testenv.StartDocker(t)
		importImages(t, shared.engine, root)
	}
	return shared.engine
}

func importImages(t testing.TB, e *testenv.Docker, root string) {
	t.Helper()
	if err := e.Import(testImage, root, `CMD ["/bin/sh","-c","while read -r l; do echo $l; done"]`); err != nil {
		t.Fatal(err)
	}
	if err := e.Import(testImage+"-volume", root, `CMD ["/bin/sh"]`, `VOLUME /data`); err != nil {
		t.Fatal(err)
	}
	if err := e.Import(testImage+"-empty", root); err != nil {
		t.Fatal(err)
	}
}

// memoryJournal is a journal that forgets nothing while the test runs.
type memoryJournal struct {
	mu   sync.Mutex
	recs map[jail.Name]jail.Record
}

func (j *memoryJournal) Put(_ context.Context, r jail.Record) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.recs[r.Name] = r
	return nil
}

func (j *memoryJournal) Delete(_ context.Context, n jail.Name) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.recs, n)
	return nil
}

func (j *memoryJournal) Load(context.Context) (out []jail.Record, damaged []jail.Name, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, r := range j.recs {
		out = append(out, r)
	}
	return out, nil, nil
}

// memoryLog is an agent's log.
type memoryLog struct {
	mu   sync.Mutex
	data []byte
}

func (l *memoryLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.data = append(l.data, p...)
	return len(p), nil
}

func (l *memoryLog) End() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int64(len(l.data))
}

func (l *memoryLog) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.data)
}

// host is an installation of its own.
type host struct {
	*Driver
	o    Options
	work string // a workspace root
	logs map[string]*memoryLog
	mu   sync.Mutex
}

var installations atomic.Uint32

// newHost makes an installation that leaves nothing: what is left at the end fails the test.
func newHost(t testing.TB, change ...func(*Options)) *host {
	return newHostOn(t, sharedEngine(t), change...)
}

func newHostOn(t testing.TB, engine *testenv.Docker, change ...func(*Options)) *host {
	t.Helper()
	dir := t.TempDir()
	h := &host{work: filepath.Join(dir, "work"), logs: map[string]*memoryLog{}}
	if err := os.Mkdir(h.work, 0o755); err != nil {
		t.Fatal(err)
	}
	number := installations.Add(1)
	id := "d" + testenv.Tag(number)
	h.o = Options{
		Installation: jail.Installation(id),
		Socket:       engine.Socket,
		Subnet:       freeSubnet(t, byte(number)),
		Network:      "sand_bed_test_" + id,
		Port:         3000,
		RunDir:       filepath.Join(dir, "run"), DataDir: filepath.Join(dir, "data"),
		WorkspaceRoots: []string{h.work},
		Journal:        &memoryJournal{recs: map[jail.Name]jail.Record{}},
		Output:         h.log,
		Grace:          time.Hour,
		Log:            slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	for _, c := range change {
		c(&h.o)
	}
	h.open(t)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if resources, err := h.HostResources(ctx); err != nil || len(resources) > 0 {
			t.Errorf("left: %+v, %v", resources, err)
		}
		if err := h.Uninstall(ctx); err != nil {
			t.Errorf("uninstall: %v", err)
		}
		if err := h.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return h
}

// freeSubnet is a network that nothing on the host uses now.
func freeSubnet(t testing.TB, first byte) netip.Prefix {
	t.Helper()
	var err error
	for n := range 256 {
		subnet := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 201, first + byte(n), 0}), 24)
		if err = linux.CheckSubnet(t.Context(), "dnone", subnet); err == nil {
			return subnet
		}
	}
	t.Fatalf("no network is free: %v", err)
	return netip.Prefix{}
}

// open makes the driver, as a process that starts does.
func (h *host) open(t testing.TB) {
	t.Helper()
	var err error
	if h.Driver, err = New(h.o); err != nil {
		t.Fatal(err)
	}
}

func (h *host) log(a jail.Agent, s jail.Stream) (Output, error) {
	return h.logOf(a.Key(), s), nil
}

func (h *host) logOf(key string, s jail.Stream) *memoryLog {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := key + "/" + string(s)
	if h.logs[at] == nil {
		h.logs[at] = &memoryLog{}
	}
	return h.logs[at]
}

func testLimits() jail.Limits {
	return jail.Limits{Memory: 64 << 20, MilliCPU: 2000, Tasks: 64, Disk: 4 << 20, SharedMemory: 2 << 20, Files: 128, WallClock: time.Minute}
}

// spec is an agent's container that runs a program.
func spec(lifetime jail.Lifetime, argv ...string) jail.Spec {
	return jail.Spec{Kind: jail.KindAgent, Lifetime: lifetime, Image: testImage, Limits: testLimits(),
		Program: jail.Program{Argv: argv, Wire: jail.WireStdio},
		Agent:   &jail.Agent{Tenant: "default", Name: "bot", State: 16 << 20, Token: true}}
}

func shell(lifetime jail.Lifetime, script string) jail.Spec {
	return spec(lifetime, "/bin/sh", "-c", script)
}

// start makes a container and destroys it when the test ends.
func (h *host) start(t testing.TB, s jail.Spec) *jail.Jail {
	t.Helper()
	j, err := h.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.destroy(t, j.Name) })
	return j
}

func (h *host) destroy(t testing.TB, name jail.Name) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := h.Destroy(ctx, name); err != nil {
		t.Errorf("destroy %s: %v", name, err)
	}
}

// probe makes a container with the probe in it, and speaks with it.
func (h *host) probe(t testing.TB, change ...func(*jail.Spec)) (*jail.Jail, *inside.Probe) {
	t.Helper()
	s := spec(jail.LifetimeOwner, inside.Argv()...)
	for _, c := range change {
		c(&s)
	}
	j := h.start(t, s)
	t.Cleanup(j.Stdio.Close)
	return j, inside.Connect(t, j.Stdio.In, j.Stdio.Out)
}

func named(name string) func(*jail.Spec) {
	return func(s *jail.Spec) {
		a := *s.Agent
		a.Name = name
		s.Agent = &a
	}
}
