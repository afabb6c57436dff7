//go:build linux

package containers

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// Whatever is killed in the middle of a sync, the engine too, the next one converges.
func TestSyncOfContainersConvergesAfterEveryKill(t *testing.T) {
	testenv.Time(t)
	d := newDock(t, "", "")
	want := []string{"alone", "first", "own", "second"}
	// The network is there before. An engine that is killed while it makes one can keep the bridge and forget the network, and
	// never makes it again.
	d.Sync(testkit.Family, "--driver", "docker")
	d.Sync("clawbots: []", "--prune")
	for i := range 4 {
		cmd := d.Command(t.Context(), "agent", "sync", "-f", d.File(testkit.Family), "--driver", "docker", "--yes")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// Each time a little later than the time before.
		time.Sleep(time.Duration(150+i*350) * time.Millisecond)
		kills := []func() error{engine.Kill, d.Kill}
		if i%2 == 1 {
			slices.Reverse(kills)
		}
		if err := errors.Join(kills[0](), kills[1]()); err != nil {
			t.Fatal(err)
		}
		var exit *exec.ExitError
		if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if err := errors.Join(engine.Start(), d.Start(t.Context())); err != nil {
			t.Fatal(err)
		}
		d.Sync(testkit.Family, "--driver", "docker")
		if plan := d.Sync(testkit.Family, "--driver", "docker"); plan.Changes() {
			t.Fatalf("after kill %d: two syncs later there is still something to do: %s", i, testkit.Verbs(plan))
		}
		if got := d.Names(); !slices.Equal(got, want) {
			t.Fatalf("after kill %d there are %v", i, got)
		}
		// Containers that the engine has ended as it started are found out about a moment later, and have others in their place.
		jails := func() (out []string) {
			for _, name := range want {
				if s := d.Show(name); s.Jail != nil && s.Jail.Phase == jail.PhaseRunning {
					out = append(out, s.Jail.Name)
				}
			}
			slices.Sort(out)
			return out
		}
		testenv.Eventually(t, 45*time.Second, func() bool {
			agents := jails()
			return len(agents) == len(want) && slices.Equal(d.containers(), agents)
		}, "after kill %d the engine has %v, and the agents are in %v", i, fmt.Stringer(lazily(d.containers)), fmt.Stringer(lazily(jails)))
		if i%2 == 1 {
			d.Sync("clawbots: []", "--prune")
		}
	}
}
