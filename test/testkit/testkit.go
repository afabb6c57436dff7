//go:build linux

// Package testkit has what tests of the whole program share: its real binary as real processes, agents, sites and stock
// clients. Only the packages of tests beside it import it.
package testkit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/inventory"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/testenv"
)

// uidBases keeps the uids of instances apart: those of one test, and those of test binaries beside each other.
var uidBases = func() func() uint32 {
	var mu sync.Mutex
	next := 1_879_500_000 + uint32(testenv.Slot())*4_000_000
	return func() uint32 { mu.Lock(); defer mu.Unlock(); next += 10_000; return next }
}()

// NoPool are settings without a pool of warm browsers.
const NoPool = "warm_pool:\n  size: 0\n"

// Installation is a running instance and how the host looked when it was idle.
type Installation struct {
	*instance.Instance
	T    *testing.T
	API  *client.Client
	Idle []inventory.HostResource
}

// Start runs an instance, and checks at the end of the test that nothing of it is left.
func Start(t *testing.T, o instance.Options) *Installation {
	t.Helper()
	b := Prepare(t, o)
	b.Up()
	return b
}

// Prepare makes an instance that does not run yet, with the template browser.
func Prepare(t *testing.T, o instance.Options) *Installation {
	t.Helper()
	testenv.Root(t)
	templates := filepath.Dir(testenv.Template(t))
	return PrepareWith(t, o, func(o *instance.Options, _ string) { o.Templates = templates })
}

// PrepareWith makes an instance that does not run yet. choose says where its templates are; it may use the folder that
// the instance's own is made in.
func PrepareWith(t *testing.T, o instance.Options, choose func(o *instance.Options, parent string)) *Installation {
	t.Helper()
	testenv.Root(t)
	path, err := Program()
	if err != nil {
		t.Fatal(err)
	}
	o.Binary = path
	o.UIDBase = uidBases()
	o.Port = testenv.FreePort(t)
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
	t.Cleanup(func() { RemoveTrees(t, own) })
	o.Parent = own
	choose(&o, own)
	i, err := instance.New(o)
	if err != nil {
		t.Fatal(err)
	}
	b := &Installation{Instance: i, T: t}
	t.Cleanup(b.down)
	return b
}

// Up starts the processes and notes how the host looks when no session is open.
func (b *Installation) Up() {
	b.T.Helper()
	if err := b.Start(b.T.Context()); err != nil {
		b.T.Fatal(err)
	}
	var err error
	if b.API, err = b.Client(); err != nil {
		b.T.Fatal(err)
	}
	b.Idle = b.Settled()
}

// HostScope is what on the host belongs to the installation.
func (b *Installation) HostScope() inventory.Scope {
	b.T.Helper()
	s, err := b.Scope()
	if err != nil {
		b.T.Fatal(err)
	}
	return s
}

// Settled is what the installation has on the host, once that no longer changes.
func (b *Installation) Settled() []inventory.HostResource {
	b.T.Helper()
	things, err := inventory.Settled(b.T.Context(), b.HostScope())
	if err != nil {
		b.T.Fatal(err)
	}
	return inventory.CountSlots(things)
}

// Clean waits until the host holds nothing but what it held when the instance was idle.
func (b *Installation) Clean(within time.Duration) {
	b.T.Helper()
	var left []inventory.HostResource
	for deadline := time.Now().Add(within); ; {
		now, err := inventory.Take(b.T.Context(), b.HostScope())
		if err != nil {
			b.T.Fatal(err)
		}
		// The group that all jails' groups are in is made with the first one, and stays.
		left = slices.DeleteFunc(inventory.Added(b.Idle, inventory.CountSlots(now)), func(t inventory.HostResource) bool {
			return t.Kind == "cgroup" && filepath.Base(t.ID) == "clawjail-"+string(b.HostScope().Installation)
		})
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			b.T.Fatalf("left on the host after %v: %v\nall of it: %v\nlog of the instance:\n%s", within, left, now, b.Log())
		}
		time.Sleep(50 * time.Millisecond) // between two looks at the host
	}
}

// down takes everything away and fails the test when something stays.
func (b *Installation) down() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if b.API != nil {
		b.API.CloseIdle()
	}
	errs := []error{b.Stop(ctx)}
	_, err := b.Run(ctx, "reap")
	errs = append(errs, err, b.Uninstall(ctx))
	s, err := b.Scope()
	errs = append(errs, err)
	var left []inventory.HostResource
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
		b.T.Errorf("take the instance away: %v\nits log:\n%s", err, b.Log())
	}
}

// Open opens a session.
func (b *Installation) Open(r session.OpenRequest) string {
	b.T.Helper()
	s, err := b.API.Open(b.T.Context(), r)
	if err != nil {
		b.T.Fatalf("open: %v\nlog of the instance:\n%s", err, b.Log())
	}
	return s.ID
}

// Close closes a session.
func (b *Installation) Close(id string) {
	b.T.Helper()
	if err := b.API.Close(b.T.Context(), id, true); err != nil {
		b.T.Fatalf("close: %v", err)
	}
}

// URL is the address of the API.
func (b *Installation) URL() string { return "http://" + b.Config.Listen.String() }

// Key is the key that the instance has made for its own user.
func (b *Installation) Key() string {
	b.T.Helper()
	key, err := os.ReadFile(hostd.AdminKeyPath(b.Config))
	if err != nil {
		b.T.Fatal(err)
	}
	return strings.TrimSpace(string(key))
}

// Rows asks for rows of the audit log.
func (b *Installation) Rows(args ...string) []op.AuditRow {
	b.T.Helper()
	var list []op.AuditRow
	if out, err := b.Run(b.T.Context(), append([]string{"audit", "ls", "--json"}, args...)...); err != nil {
		b.T.Fatal(err)
	} else if err := json.Unmarshal([]byte(out), &list); err != nil {
		b.T.Fatalf("%v: %s", err, out)
	}
	return list
}

// ExpectCode ends the test unless an error has a code, a sentence and a hint.
func ExpectCode(t *testing.T, err error, code string) *problem.Error {
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

// OnANewMachine is an instance without templates, on a machine that reaches no mirror: its proxy is nobody.
func OnANewMachine(t *testing.T) *Installation {
	t.Helper()
	for _, name := range []string{"http_proxy", "https_proxy"} {
		t.Setenv(name, "http://127.0.0.1:1")
	}
	return PrepareWith(t, instance.Options{Settings: NoPool}, func(o *instance.Options, dir string) {
		o.Templates = filepath.Join(dir, "templates")
	})
}
