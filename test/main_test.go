//go:build linux

// Package test tries the whole program: its real binary as real processes, on the real kernel, with the real browser.
package test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/inventory"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// build makes the program once, with the barriers in it.
var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "clawjail-test-")
	if err != nil {
		return "", err
	}
	binary = dir
	// The folder stays closed to others, as a home is: the control plane's user runs the program all the same.
	path := filepath.Join(dir, "clawjail")
	cmd := exec.Command("go", "build", "-tags", "barriers", "-o", path, "github.com/clawjail/clawjail/cmd/clawjail")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the program: %w\n%s", err, out)
	}
	return path, nil
})

var binary string // folder of the program, removed at the end

func TestMain(m *testing.M) {
	status := m.Run()
	if binary != "" {
		_ = os.RemoveAll(binary) // a folder in the temporary one
	}
	os.Exit(status)
}

// uidBases keeps the uids of instances apart: those of one test, and those of test binaries beside each other.
var uidBases = func() func() uint32 {
	var mu sync.Mutex
	next := 1_879_500_000 + uint32(testenv.Slot())*4_000_000
	return func() uint32 { mu.Lock(); defer mu.Unlock(); next += 10_000; return next }
}()

const noPool = "warm_pool:\n  size: 0\n"

// box is a running instance and how the host looked when it was idle.
type box struct {
	*instance.Instance
	t    *testing.T
	api  *client.Client
	idle []inventory.Thing
}

// start runs an instance, and checks at the end of the test that nothing of it is left.
func start(t *testing.T, o instance.Options) *box {
	t.Helper()
	b := prepare(t, o)
	b.up()
	return b
}

// prepare makes an instance that does not run yet, with the template browser.
func prepare(t *testing.T, o instance.Options) *box {
	t.Helper()
	testenv.Root(t)
	templates := filepath.Dir(testenv.Template(t))
	return prepareWith(t, o, func(o *instance.Options, _ string) { o.Templates = templates })
}

// prepareWith makes an instance that does not run yet. choose says where its templates are; it may use the folder that
// the instance's own is made in.
func prepareWith(t *testing.T, o instance.Options, choose func(o *instance.Options, parent string)) *box {
	t.Helper()
	testenv.Root(t)
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	o.Binary = path
	o.UIDBase = uidBases()
	if o.Parent == "" {
		o.Parent = "/var/lib/clawjail"
	}
	if err := os.MkdirAll(o.Parent, 0o755); err != nil {
		t.Fatal(err)
	}
	own, err := os.MkdirTemp(o.Parent, "test-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(own, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeTrees(t, own) })
	o.Parent = own
	choose(&o, own)
	i, err := instance.New(o)
	if err != nil {
		t.Fatal(err)
	}
	b := &box{Instance: i, t: t}
	t.Cleanup(b.down)
	return b
}

// up starts the processes and notes how the host looks when no session is open.
func (b *box) up() {
	b.t.Helper()
	if err := b.Start(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
	var err error
	if b.api, err = b.Client(); err != nil {
		b.t.Fatal(err)
	}
	b.idle = b.settled()
}

func (b *box) scope() inventory.Scope {
	b.t.Helper()
	s, err := b.Scope()
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

func (b *box) settled() []inventory.Thing {
	b.t.Helper()
	things, err := inventory.Settled(b.t.Context(), b.scope())
	if err != nil {
		b.t.Fatal(err)
	}
	return inventory.CountSlots(things)
}

// clean waits until the host holds nothing but what it held when the instance was idle.
func (b *box) clean(within time.Duration) {
	b.t.Helper()
	var left []inventory.Thing
	for deadline := time.Now().Add(within); ; {
		now, err := inventory.Take(b.t.Context(), b.scope())
		if err != nil {
			b.t.Fatal(err)
		}
		// The group that all jails' groups are in is made with the first one, and stays.
		left = slices.DeleteFunc(inventory.Added(b.idle, inventory.CountSlots(now)), func(t inventory.Thing) bool {
			return t.Kind == "cgroup" && filepath.Base(t.ID) == "clawjail-"+string(b.scope().Installation)
		})
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("left on the host after %v: %v\nall of it: %v\nlog of the instance:\n%s", within, left, now, b.Log())
		}
		time.Sleep(50 * time.Millisecond) // between two looks at the host
	}
}

// down takes everything away and fails the test when something stays.
func (b *box) down() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if b.api != nil {
		b.api.CloseIdle()
	}
	errs := []error{b.Stop(ctx)}
	_, err := b.Run(ctx, "reap")
	errs = append(errs, err, b.Uninstall(ctx))
	s, err := b.Scope()
	errs = append(errs, err)
	var left []inventory.Thing
	if s.Installation != "" { // one that never started has made nothing, and what there is belongs to others
		left, err = inventory.Settled(ctx, s)
		errs = append(errs, err)
	}
	if len(left) > 0 {
		errs = append(errs, fmt.Errorf("left on the host: %v", left))
	} else {
		errs = append(errs, b.Remove(ctx))
	}
	if err := errors.Join(errs...); err != nil {
		b.t.Errorf("take the instance away: %v\nits log:\n%s", err, b.Log())
	}
}

// open opens a session.
func (b *box) open(r api.OpenRequest) string {
	b.t.Helper()
	s, err := b.api.Open(b.t.Context(), r)
	if err != nil {
		b.t.Fatalf("open: %v\nlog of the instance:\n%s", err, b.Log())
	}
	return s.ID
}

func (b *box) close(id string) {
	b.t.Helper()
	if err := b.api.Close(b.t.Context(), id, true); err != nil {
		b.t.Fatalf("close: %v", err)
	}
}

func expectCode(t *testing.T, err error, code string) *problem.Error {
	t.Helper()
	p, ok := problem.As(err)
	if !ok || p.Code != code {
		t.Fatalf("error is %v, want the code %s", err, code)
	}
	if p.Message == "" || p.Hint == "" {
		t.Errorf("%s has no sentence or no hint: %+v", code, p)
	}
	if strings.Contains(p.Message, "\n") {
		t.Errorf("the sentence has several lines: %q", p.Message)
	}
	return p
}

// removeTrees removes the folder of a test. Templates may be subvolumes, which a plain removal does not take.
func removeTrees(t *testing.T, dir string) {
	t.Helper()
	roots, err := filepath.Glob(filepath.Join(dir, "templates", "*", "rootfs"))
	if err != nil {
		t.Error(err)
	}
	trees, err := hostd.Trees(config.Config{DataDir: dir})
	if err != nil {
		t.Error(err)
		return
	}
	for _, r := range roots {
		if err := trees.Remove(r); err != nil {
			t.Error(err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
}

// transcript keeps all that is written to it.
type transcript struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *transcript) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// Bytes is a copy of what was written.
func (l *transcript) Bytes() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Clone(l.text.Bytes())
}
