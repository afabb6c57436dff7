package agents

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest"
	"github.com/clawjail/clawjail/internal/testenv"
)

// BenchmarkTwentyAgents declares twenty agents at once, on a host whose jails cost one process each, and drops them: what the
// keeper itself costs, its files included.
func BenchmarkTwentyAgents(b *testing.B) {
	f := &fixture{t: b, dir: b.TempDir(), host: jailtest.NewHost(), boot: "first", log: &testenv.Buffer{}}
	f.start()
	defer f.finish()
	each := func(do func(i int) error) {
		var working sync.WaitGroup
		for i := range 20 {
			working.Go(func() {
				if err := do(i); err != nil {
					b.Error(err)
				}
			})
		}
		working.Wait()
	}
	for b.Loop() {
		each(func(i int) error {
			k := kept(fmt.Sprintf("n%d", i), "")
			k.Spec.Program.Argv = []string{"/bin/sleep", "1000"}
			return f.k.Keep(context.Background(), k, token)
		})
		b.StopTimer()
		each(func(i int) error {
			return f.k.Drop(context.Background(), "default", fmt.Sprintf("n%d", i), jail.DropOptions{})
		})
		b.StartTimer()
	}
}
