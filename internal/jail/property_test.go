package jail_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest"
	"github.com/clawjail/clawjail/internal/testenv/property"
)

// TestWhateverHappensTheHostComesToHoldExactlyTheLivingJails drives a lifecycle through creations, endings,
// failures, crashes and restarts in any order.
func TestWhateverHappensTheHostComesToHoldExactlyTheLivingJails(t *testing.T) {
	property.Check(t, func(rt *rapid.T) {
		h := jailtest.NewHost()
		var m *jailtest.Memory
		var l *jail.Lifecycle
		var mu sync.Mutex
		clock := time.Now()
		fresh := func() {
			if l != nil {
				m.Crash()
				l.Close()
			}
			m = jailtest.NewMemory(h)
			o := m.Options()
			o.Now = func() time.Time { mu.Lock(); defer mu.Unlock(); return clock }
			var err error
			if l, err = jail.NewLifecycle(t.Context(), o); err != nil {
				rt.Fatal(err)
			}
		}
		fresh()
		defer func() {
			m.Before = nil
			for n := range living(l) {
				_ = l.Destroy(context.Background(), n)
			}
			l.Close()
		}()
		pipes := map[jail.Name]*jail.Stdio{}
		defer func() {
			for _, p := range pipes {
				p.Close()
			}
		}()
		long := spec()
		long.Limits.WallClock = 24 * time.Hour
		rt.Repeat(map[string]func(*rapid.T){
			"create": func(rt *rapid.T) {
				if len(pipes) > 6 {
					return
				}
				if j, err := l.Create(t.Context(), long); err == nil {
					pipes[j.Name] = j.Stdio
				}
			},
			"admit or destroy": func(rt *rapid.T) {
				for n := range living(l) {
					if rapid.Bool().Draw(rt, "admit") {
						_ = l.Admit(t.Context(), n)
					} else {
						_ = l.Destroy(t.Context(), n)
					}
					return
				}
			},
			"fail some operations": func(rt *rapid.T) {
				seed := rapid.Uint64().Draw(rt, "seed")
				dice := rand.New(rand.NewPCG(seed, seed))
				m.Before = func(op string) error {
					if dice.IntN(8) == 0 {
						return fmt.Errorf("%s: %w", op, errors.ErrUnsupported)
					}
					return nil
				}
				if j, err := l.Create(t.Context(), long); err == nil {
					pipes[j.Name] = j.Stdio
				}
				for n := range living(l) {
					_ = l.Destroy(t.Context(), n)
					break
				}
				m.Before = nil
			},
			"die in the middle": func(rt *rapid.T) {
				after, n := rapid.IntRange(1, 24).Draw(rt, "operations"), 0
				m.Before = func(string) error {
					if n++; n == after {
						m.Crash()
					}
					return nil
				}
				lived(l)
				fresh()
			},
			"restart": func(*rapid.T) { fresh() },
			"": func(rt *rapid.T) { // after every action
				for n, s := range living(l) { // what was torn down half-way has no process any more
					if s.PID != 0 && !h.Runs(n) {
						_, _ = l.Wait(t.Context(), n)
					}
				}
				mu.Lock()
				clock = clock.Add(time.Minute) // past the grace period of whatever ended
				mu.Unlock()
				if _, err := l.Reap(t.Context(), jail.ReapOptions{}); err != nil {
					rt.Fatalf("reap: %v", err)
				}
				alive := living(l)
				var addresses []int
				for n, s := range alive {
					if s.State != jail.StateStarted && s.State != jail.StateReady {
						rt.Fatalf("%s was left %s", n, s.State)
					}
					addresses = append(addresses, s.Lease.Index)
				}
				slices.Sort(addresses)
				if len(slices.Compact(slices.Clone(addresses))) != len(addresses) || m.Pool.InUse() != len(addresses) {
					rt.Fatalf("addresses %v of %d jails, %d leased", addresses, len(alive), m.Pool.InUse())
				}
				for _, thing := range h.Resources() {
					if thing.Name != "" && alive[thing.Name].Name == "" || thing.Name == "" && !slices.Contains(addresses, thing.Index) {
						rt.Fatalf("on the host and of no living jail: %+v", thing)
					}
				}
			},
		})
	})
}

func living(l *jail.Lifecycle) map[jail.Name]jail.Status {
	list, _ := l.List(context.Background())
	out := map[jail.Name]jail.Status{}
	for _, s := range list {
		out[s.Name] = s
	}
	return out
}
