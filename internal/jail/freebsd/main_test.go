//go:build linux

package freebsd

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/freebsd/hosttest"
	"github.com/clawjail/clawjail/internal/jail/jailtest"
	"github.com/clawjail/clawjail/internal/jail/jailtest/inside"
)

// tiny is the root file system of the tests' template. It is made by the first test that needs it.
var tiny struct {
	sync.Mutex
	dir string
}

// atOnce is how many tests run side by side: each has a host of its own, and most of their time is spent waiting.
const atOnce = "4"

func TestMain(m *testing.M) {
	hosttest.Main()
	flag.Parse()
	if err := flag.Set("test.parallel", atOnce); err != nil {
		panic(err) // the flag is the testing package's
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if tiny.dir != "" {
			if err := os.RemoveAll(tiny.dir); err != nil {
				println("remove the template of the tests:", err.Error())
				code = max(code, 1)
			}
		}
		os.Exit(code)
	}))
}

func tinyTemplate(t testing.TB) string {
	t.Helper()
	tiny.Lock()
	defer tiny.Unlock()
	if tiny.dir == "" {
		dir, err := os.MkdirTemp("", "clawjail-tiny-")
		must(t, err)
		tiny.dir = dir
		inside.Template(t, dir)
		for _, name := range []string{"cat", "sleep"} { // they need no library that the shell does not
			text, err := os.ReadFile("/bin/" + name)
			must(t, err, os.WriteFile(filepath.Join(dir, "bin", name), text, 0o755))
		}
	}
	return tiny.dir
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

const testInstallation = jail.Installation("k3x9")

// pfRules is the least that the driver takes for rules.
const pfRules = `table <browser_tasks> persist
table <agent_jails> persist
pass in quick on cjk3x9 inet proto tcp from <browser_tasks> to 10.99.0.1 port 3000
pass in quick on cjk3x9 inet proto tcp from <agent_jails> to 10.99.0.1 port 3000
block return in quick on cjk3x9 all
`

// fixture is a simulated host with an installation on it.
type fixture struct {
	t    testing.TB
	host *hosttest.Host
	// disk holds the journal, which outlives a process.
	disk *jailtest.Host
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	w := &fixture{t: t, host: hosttest.New(t), disk: jailtest.NewHost()}
	w.host.Rules("clawjail/"+string(testInstallation), pfRules)
	from := tinyTemplate(t)
	w.host.Fill("zroot/clawjail/templates/tiny/rootfs", "data/templates/tiny/rootfs", func(dir string) {
		if out, err := exec.Command("cp", "-a", from+"/.", dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	})
	// The first clone would make it, and it stays with the template.
	w.host.Must("zfs", "snapshot", "zroot/clawjail/templates/tiny/rootfs@clawjail")
	must(t, os.MkdirAll(filepath.Join(w.host.Root(), "ws"), 0o755))
	return w
}

func (w *fixture) options() Options {
	pool, err := jail.NewPool(netip.MustParsePrefix("10.99.0.0/24"), 210_000)
	must(w.t, err)
	root := w.host.Root()
	return Options{Installation: testInstallation, Pool: pool, RunDir: filepath.Join(root, "run"), DataDir: filepath.Join(root, "data"),
		Dataset: "zroot/clawjail", WorkspaceRoots: []string{filepath.Join(root, "ws")},
		Commands: hostcmd.Runner{Dir: w.host.Commands()}, Log: slog.New(slog.NewTextHandler(w.t.Output(), nil))}
}

// open makes the driver, as a fresh process does.
func (w *fixture) open(change ...func(*Options)) *Host {
	w.t.Helper()
	o := w.options()
	for _, c := range change {
		c(&o)
	}
	h, err := Open(context.Background(), o)
	must(w.t, err)
	w.t.Cleanup(func() { must(w.t, h.Close()) })
	return h
}

// life makes a driver with a Lifecycle on the host's journal.
func (w *fixture) life(h *Host, change ...func(*jail.Options)) *jail.Lifecycle {
	w.t.Helper()
	o := jail.Options{Installation: testInstallation, Parts: h.Parts(), Pool: h.Network.o.Pool, Log: h.Network.o.Log, Grace: time.Hour,
		Journal: jailtest.NewMemory(w.disk).Options().Journal}
	for _, c := range change {
		c(&o)
	}
	l, err := jail.NewLifecycle(context.Background(), o)
	must(w.t, err)
	w.t.Cleanup(l.Close)
	return l
}

// running also enforces wall clocks.
func running(t testing.TB, l *jail.Lifecycle) {
	ctx, stop := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { l.Run(ctx) })
	t.Cleanup(func() { stop(); done.Wait() })
}

func (w *fixture) spec(script string) jail.Spec {
	return jailtest.Subject{Template: "tiny"}.Spec(script)
}

// same fails the test unless the host holds what it held before, and no record is left.
func (w *fixture) same(before []string) {
	w.t.Helper()
	after := w.host.Resources()
	for _, thing := range after {
		if !slices.Contains(before, thing) {
			w.t.Errorf("left on the host: %s", thing)
		}
	}
	for _, thing := range before {
		if !slices.Contains(after, thing) {
			w.t.Errorf("taken from the host: %s", thing)
		}
	}
	if left := w.disk.Resources(); len(left) > 0 {
		w.t.Errorf("left in the journal: %v", left)
	}
}
