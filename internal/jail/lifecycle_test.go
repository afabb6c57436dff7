package jail_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newLifecycle takes over a host, as a fresh process does.
func newLifecycle(t testing.TB, m *jailtest.Memory, change ...func(*jail.Options)) *jail.Lifecycle {
	t.Helper()
	o := m.Options()
	o.Grace = time.Hour
	for _, c := range change {
		c(&o)
	}
	l, err := jail.NewLifecycle(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// running also enforces wall clocks.
func running(t *testing.T, l *jail.Lifecycle) {
	ctx, stop := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { l.Run(ctx) })
	t.Cleanup(func() { stop(); done.Wait() })
}

func subject(t *testing.T) jailtest.Subject {
	h := jailtest.NewHost()
	l := newLifecycle(t, jailtest.NewMemory(h))
	running(t, l)
	return jailtest.Subject{Driver: l, Template: "tiny", Missing: "btest99999",
		Resources: func(context.Context) ([]jail.HostResource, error) { return h.Resources(), nil }}
}

func TestMemoryDriverConforms(t *testing.T) { jailtest.Run(t, subject) }

func spec() jail.Spec { return jailtest.Subject{Template: "tiny"}.Spec("exec cat") }

func delivered(context.Context, *jail.Jail) error { return nil }

// lived makes, admits and destroys one jail, and ignores errors: it is there to pass every step.
func lived(l *jail.Lifecycle) {
	ctx := context.Background()
	j, err := l.CreateFor(ctx, "owner", spec(), delivered)
	if err != nil {
		return
	}
	_ = l.Admit(ctx, j.Name)
	_ = l.Destroy(ctx, j.Name)
	j.Stdio.Close()
}

// operations lists every change of the host that the life of one jail consists of.
func operations(t *testing.T) []string {
	var ops []string
	m := jailtest.NewMemory(jailtest.NewHost())
	m.Before = func(op string) error { ops = append(ops, op); return nil }
	lived(newLifecycle(t, m))
	if len(ops) < 20 {
		t.Fatalf("the life of a jail has only these operations: %v", ops)
	}
	return ops
}

func TestNothingIsLeftWhenAnyOperationFails(t *testing.T) {
	for i, op := range operations(t) {
		t.Run(fmt.Sprintf("%02d %s", i, op), func(t *testing.T) {
			h := jailtest.NewHost()
			m := jailtest.NewMemory(h)
			n, planned := 0, errors.New("planned")
			m.Before = func(string) error {
				if n++; n == i+1 {
					return planned
				}
				return nil
			}
			l := newLifecycle(t, m)
			lived(l)
			if n <= i {
				t.Fatalf("operation %d was never reached", i)
			}
			if _, err := l.Reap(t.Context(), jail.ReapOptions{}); err != nil {
				t.Fatalf("reap: %v", err)
			}
			expectEmpty(t, h, m)
		})
	}
}

func TestNothingIsLeftWhenTheProcessDiesAtAnyStep(t *testing.T) {
	for _, step := range jail.Steps() {
		t.Run(string(step), func(t *testing.T) {
			h := jailtest.NewHost()
			first := jailtest.NewMemory(h)
			reached := false
			lived(newLifecycle(t, first, func(o *jail.Options) {
				o.Barrier = func(s jail.Step) {
					if s == step {
						reached = true
						first.Crash()
					}
				}
			}))
			if !reached {
				t.Fatal("the step was never reached")
			}
			recover_(t, h)
		})
	}
}

func TestNothingIsLeftWhenTheProcessDiesAfterAnyOperation(t *testing.T) {
	for i, op := range operations(t) {
		t.Run(fmt.Sprintf("%02d %s", i, op), func(t *testing.T) {
			h := jailtest.NewHost()
			first := jailtest.NewMemory(h)
			n := 0
			first.Before = func(string) error {
				if n++; n == i+2 {
					first.Crash()
				}
				return nil
			}
			lived(newLifecycle(t, first))
			recover_(t, h)
		})
	}
}

// recover_ is a fresh process on a host where one died.
func recover_(t *testing.T, h *jailtest.Host) {
	t.Helper()
	m := jailtest.NewMemory(h)
	l := newLifecycle(t, m, func(o *jail.Options) {
		o.Now = func() time.Time { return time.Now().Add(2 * time.Hour) } // the owner's grace is over
	})
	// A caller that waits for one of them is told of its end, also of one whose program was not seen yet.
	there, err := l.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	told := make([]chan error, len(there))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for n, status := range there {
		told[n] = make(chan error, 1)
		go func() { // until ctx ends
			_, err := l.Wait(ctx, status.Name)
			told[n] <- err
		}()
	}
	if _, err := l.Reap(t.Context(), jail.ReapOptions{}); err != nil {
		t.Fatalf("reap: %v", err)
	}
	for n, status := range there {
		if err := <-told[n]; err != nil && !errors.Is(err, jail.ErrNotFound) {
			t.Errorf("who waits for %s, %s, is not told of its end: %v", status.Name, status.State, err)
		}
	}
	again := newLifecycle(t, m, func(o *jail.Options) {
		o.Now = func() time.Time { return time.Now().Add(4 * time.Hour) }
	})
	if r, err := again.Reap(t.Context(), jail.ReapOptions{}); err != nil || len(r.Findings) > 0 && len(h.Resources()) > 0 {
		t.Fatalf("second reap: %+v, %v", r, err)
	}
	expectEmpty(t, h, m)
}

func expectEmpty(t *testing.T, h *jailtest.Host, m *jailtest.Memory) {
	t.Helper()
	if left := h.Resources(); len(left) > 0 {
		t.Errorf("left on the host: %v", left)
	}
	if n := m.Pool.InUse(); n > 0 {
		t.Errorf("%d addresses are still leased", n)
	}
}

// An address is reused as late as possible, also when the remains of an earlier jail are removed from it.
func TestReapingBringsNoAddressForward(t *testing.T) {
	h := jailtest.NewHost()
	m := jailtest.NewMemory(h)
	l := newLifecycle(t, m)
	next := func(want int) {
		t.Helper()
		lease, err := m.Pool.Take()
		if err != nil || lease.Index != want {
			t.Errorf("the next lease is %d, want %d: %v", lease.Index, want, err)
		}
		m.Pool.Release(lease.Index)
	}
	next(0)
	next(1)
	h.Plant(jail.HostResource{Kind: jail.ResourceTableMember, Index: 0, ID: "10.99.0.150"})
	if r, err := l.Reap(t.Context(), jail.ReapOptions{}); err != nil || len(r.Findings) != 1 || !r.Findings[0].Removed {
		t.Fatalf("reaped is %+v, %v", r, err)
	}
	next(2)
	m.Pool.Claim(40) // as for a jail that a process finds when it starts
	next(41)
	m.Pool.Release(40)
	expectEmpty(t, h, m)
}

func TestReaperRemovesAPlantedLeakOfEachKind(t *testing.T) {
	for _, kind := range jail.ResourceKinds() {
		t.Run(string(kind), func(t *testing.T) {
			h := jailtest.NewHost()
			m := jailtest.NewMemory(h)
			l := newLifecycle(t, m)
			good, err := l.Create(t.Context(), spec())
			if err != nil {
				t.Fatal(err)
			}
			defer good.Stdio.Close()
			before := h.Resources()

			if kind == jail.ResourceRecord { // a record is a leak when its process is gone
				other := jailtest.NewMemory(h)
				lived(newLifecycle(t, other, func(o *jail.Options) {
					o.Barrier = func(s jail.Step) {
						if s == jail.StepClone {
							other.Crash()
						}
					}
				}))
				m = jailtest.NewMemory(h)
				l = newLifecycle(t, m)
			} else {
				resource := jail.HostResource{Kind: kind, Index: -1, Name: "btest77777", ID: "planted"}
				if kind == jail.ResourceInterface || kind == jail.ResourceNamespace || kind == jail.ResourceTableMember {
					resource.Name, resource.Index = "", 77
					resource.ID = "10.99.0.227"
				} else {
					resource.ID = string(resource.Name)
				}
				h.Plant(resource)
			}
			if len(jailtest.Difference(before, h.Resources())) != 1 {
				t.Fatal("the comparison does not see the planted leak")
			}
			dry, err := l.Reap(t.Context(), jail.ReapOptions{DryRun: true})
			if err != nil || len(dry.Findings) != 1 || dry.Findings[0].Removed {
				t.Fatalf("dry run: %+v, %v", dry, err)
			}
			if len(jailtest.Difference(before, h.Resources())) != 1 {
				t.Fatal("a dry run changed the host")
			}
			for range 2 {
				if _, err := l.Reap(t.Context(), jail.ReapOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			if left := jailtest.Difference(before, h.Resources()); len(left) > 0 {
				t.Fatalf("still there: %v", left)
			}
			if gone := jailtest.Difference(h.Resources(), before); len(gone) > 0 {
				t.Fatalf("the reaper took from a living jail: %v", gone)
			}
			if err := l.Destroy(t.Context(), good.Name); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestReaperLeavesOtherInstallationsAlone(t *testing.T) {
	h := jailtest.NewHost()
	l := newLifecycle(t, jailtest.NewMemory(h))
	foreign := jail.HostResource{Kind: jail.ResourceClone, Name: "bothr00001", Index: -1, ID: "bothr00001"}
	h.Plant(foreign)
	r, err := l.Reap(t.Context(), jail.ReapOptions{})
	if err != nil || len(r.Findings) > 0 || !slices.Contains(h.Resources(), foreign) {
		t.Fatalf("reap touched another installation: %+v, %v", r, err)
	}
	own := jail.HostResource{Kind: jail.ResourceClone, Name: "btest00001", Index: -1, ID: "btest00001"}
	h.Plant(own)
	if r, err := l.Reap(t.Context(), jail.ReapOptions{}); err != nil || len(r.Findings) != 1 || slices.Contains(h.Resources(), own) {
		t.Errorf("the same thing of its own installation stays: %+v, %v", r, err)
	}
}

func TestAJailThatIsNotConfinedAsDeclaredNeverStarts(t *testing.T) {
	for what, loosen := range map[string]func(*jail.Observed){
		"uid":            func(o *jail.Observed) { o.UIDs[1] = 0 },
		"gid":            func(o *jail.Observed) { o.GIDs = nil },
		"group":          func(o *jail.Observed) { o.Groups = []uint32{27} },
		"capability":     func(o *jail.Observed) { o.Capabilities = []string{"CAP_NET_RAW"} },
		"no_new_privs":   func(o *jail.Observed) { o.NoNewPrivileges = false },
		"seccomp":        func(o *jail.Observed) { o.SeccompFilter = false },
		"AppArmor":       func(o *jail.Observed) { o.AppArmor = "unconfined" },
		"root":           func(o *jail.Observed) { o.ReadOnlyRoot = false },
		"namespaces":     func(o *jail.Observed) { o.SharedNamespaces = []string{"net"} },
		"pivot_root":     func(o *jail.Observed) { o.NotPivoted = true },
		"/etc":           func(o *jail.Observed) { o.Writable = []string{"/etc"} },
		"tmpfs /tmp":     func(o *jail.Observed) { o.Tmpfs = o.Tmpfs[1:] },
		"has":            func(o *jail.Observed) { o.Tmpfs[0].Size *= 2 },
		"mode":           func(o *jail.Observed) { o.Tmpfs[2].Mode = 0o777 },
		"programs":       func(o *jail.Observed) { o.Tmpfs[0].NoExec = false },
		"limit memory":   func(o *jail.Observed) { o.Memory = 0 },
		"limit cpu":      func(o *jail.Observed) { o.MilliCPU++ },
		"limit tasks":    func(o *jail.Observed) { o.Tasks = -1 },
		"limit files is": func(o *jail.Observed) { o.Files = 1 << 20 },
	} {
		t.Run(what, func(t *testing.T) {
			h := jailtest.NewHost()
			m := jailtest.NewMemory(h)
			m.Seen = loosen
			_, err := newLifecycle(t, m).Create(t.Context(), spec())
			if problem.CodeOf(err) != problem.JailUnconfined || !strings.Contains(err.Error(), what) {
				t.Fatalf("error is %v, want %s that names %q", err, problem.JailUnconfined, what)
			}
			expectEmpty(t, h, m)
		})
	}
}

func TestBusyIsRetriedAndDependentsAreFinal(t *testing.T) {
	h := jailtest.NewHost()
	m := jailtest.NewMemory(h)
	l := newLifecycle(t, m)
	j, err := l.Create(t.Context(), spec())
	if err != nil {
		t.Fatal(err)
	}
	j.Stdio.Close()
	h.MakeBusy(j.Name, 4)
	tries := 0
	m.Before = func(op string) error {
		if op == "storage.unmount" {
			tries++
		}
		return nil
	}
	if err := l.Destroy(t.Context(), j.Name); err != nil {
		t.Fatalf("a clone that is busy for a while: %v", err)
	}
	if tries != 5 { // the plain one, then one by force for each time it was busy
		t.Errorf("%d unmounts, want 5", tries)
	}
	expectEmpty(t, h, m)

	if j, err = l.Create(t.Context(), spec()); err != nil {
		t.Fatal(err)
	}
	j.Stdio.Close()
	tries = 0
	m.Before = func(op string) error {
		if op == "storage.destroy" {
			tries++
			return errors.Join(jail.ErrBusy, jail.ErrHasDependents)
		}
		return nil
	}
	if err := l.Destroy(t.Context(), j.Name); !errors.Is(err, jail.ErrHasDependents) || tries != 1 {
		t.Fatalf("%v after %d tries, want has-dependents after one", err, tries)
	}
	if s, err := l.Inspect(t.Context(), j.Name); err != nil || s.State != jail.StateStopping {
		t.Fatalf("what could not be removed is %+v, %v; want it listed as stopping", s, err)
	}
	m.Before = nil
	if err := l.Destroy(t.Context(), j.Name); err != nil {
		t.Fatal(err)
	}
	expectEmpty(t, h, m)
}

// nowhere is a console that keeps nothing.
type nowhere struct{}

func (nowhere) Open(context.Context, jail.Name, jail.Agent) (ends [3]*os.File, err error) {
	for i := range ends {
		if ends[i], err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err != nil {
			return ends, err
		}
	}
	return ends, nil
}

func (nowhere) Resume(context.Context, jail.Name, jail.Agent) error { return nil }
func (nowhere) Finish(context.Context, jail.Name) error             { return nil }
func (nowhere) List(context.Context) ([]jail.HostResource, error)   { return nil, nil }

func TestOwnerJailsEndWhenTheirOwnerIsGoneAndKeepJailsDoNot(t *testing.T) {
	h := jailtest.NewHost()
	m := jailtest.NewMemory(h)
	now := time.Now()
	var mu sync.Mutex
	clock := func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	pass := func(d time.Duration) { mu.Lock(); defer mu.Unlock(); now = now.Add(d) }
	l := newLifecycle(t, m, func(o *jail.Options) { o.Now, o.Grace, o.Console = clock, 30*time.Second, nowhere{} })
	long := spec()
	long.Limits.WallClock = time.Hour
	keep := long
	keep.Kind, keep.Lifetime, keep.Agent = jail.KindAgent, jail.LifetimeKeep, &jail.Agent{Tenant: "default", Name: "bot"}
	if _, err := newLifecycle(t, jailtest.NewMemory(jailtest.NewHost())).CreateFor(t.Context(), "", keep, delivered); err == nil {
		t.Error("a jail is kept without a console")
	}
	owned, err1 := l.CreateFor(t.Context(), "me", long, delivered)
	kept, err2 := l.CreateFor(t.Context(), "me", keep, delivered)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	defer owned.Stdio.Close()
	names := func() (out []jail.Name) {
		if _, err := l.Reap(t.Context(), jail.ReapOptions{}); err != nil {
			t.Fatal(err)
		}
		list, _ := l.List(t.Context())
		for _, s := range list {
			out = append(out, s.Name)
		}
		return out
	}
	l.Lost("me")
	pass(29 * time.Second)
	if len(names()) != 2 {
		t.Fatal("reaped within the grace period")
	}
	l.Found("me")
	pass(2 * time.Minute)
	if len(names()) != 2 {
		t.Fatal("reaped although the owner came back")
	}
	l.Lost("me")
	pass(31 * time.Second)
	if got := names(); !slices.Equal(got, []jail.Name{kept.Name}) {
		t.Fatalf("left: %v, want only the jail that is kept", got)
	}
	if err := l.Destroy(t.Context(), kept.Name); err != nil {
		t.Fatal(err)
	}
	expectEmpty(t, h, m)
}

func TestARestartTakesOverRunningJails(t *testing.T) {
	h := jailtest.NewHost()
	first := newLifecycle(t, jailtest.NewMemory(h))
	j, err := first.Create(t.Context(), spec())
	if err != nil {
		t.Fatal(err)
	}
	first.Close()
	m := jailtest.NewMemory(h)
	second := newLifecycle(t, m)
	if r, err := second.Reap(t.Context(), jail.ReapOptions{}); err != nil || len(r.Findings) > 0 {
		t.Fatalf("a running jail was reaped: %+v, %v", r, err)
	}
	if !m.Pool.Has(j.Lease.Index) {
		t.Fatal("its address is free for others")
	}
	j.Stdio.Close()
	if _, err := second.Wait(t.Context(), j.Name); err != nil {
		t.Fatal(err)
	}
	if err := second.Destroy(t.Context(), j.Name); err != nil {
		t.Fatal(err)
	}
	expectEmpty(t, h, m)
}

func TestAFullDiskStopsNewJailsAndNoEnding(t *testing.T) {
	h := jailtest.NewHost()
	m := jailtest.NewMemory(h)
	l := newLifecycle(t, m)
	j, err := l.Create(t.Context(), spec())
	if err != nil {
		t.Fatal(err)
	}
	j.Stdio.Close()
	full := problem.New(problem.DiskFull, "free some space", "the disk is full")
	m.Before = func(op string) error {
		if op == "journal.put" {
			return full
		}
		return nil
	}
	if err := l.Destroy(t.Context(), j.Name); err != nil {
		t.Fatalf("destroy on a full disk: %v", err)
	}
	if _, err := l.Create(t.Context(), spec()); problem.CodeOf(err) != problem.DiskFull {
		t.Fatalf("create on a full disk: %v", err)
	}
	expectEmpty(t, h, m)
}

func TestWhatSomebodyElseTakesFromTheFirewallIsPutBack(t *testing.T) {
	h := jailtest.NewHost()
	m := jailtest.NewMemory(h)
	l := newLifecycle(t, m)
	j, err := l.Create(t.Context(), spec())
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Admit(t.Context(), j.Name); err != nil {
		t.Fatal(err)
	}
	member := jail.HostResource{Kind: jail.ResourceTableMember, Index: j.Lease.Index, ID: j.Lease.Addr.String()}
	h.Take(member)
	running(t, l)
	testenv.Eventually(t, 10*time.Second, func() bool { return slices.Contains(h.Resources(), member) }, "the jail is not in its table again")
	j.Stdio.Close()
	if err := l.Destroy(t.Context(), j.Name); err != nil {
		t.Fatal(err)
	}
	expectEmpty(t, h, m)
}

func TestAJailThatIsNotDeliveredIsUndone(t *testing.T) {
	h := jailtest.NewHost()
	m := jailtest.NewMemory(h)
	began := false
	m.Before = func(op string) error { began = began || op == "runtime.begin"; return nil }
	gone := errors.New("the owner is gone")
	_, err := newLifecycle(t, m).CreateFor(t.Context(), "owner", spec(), func(context.Context, *jail.Jail) error { return gone })
	if !errors.Is(err, gone) || began {
		t.Fatalf("error is %v, and the program began: %v", err, began)
	}
	expectEmpty(t, h, m)
}
