//go:build linux

package operators

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/health"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// nodesOf are the states of the control planes that one of them lists.
func nodesOf(b *testkit.Installation) map[string]health.NodeState {
	b.T.Helper()
	out, err := b.Run(b.T.Context(), "node", "ls", "--json")
	if err != nil {
		b.T.Logf("list the nodes: %v: %s", err, out)
		return nil
	}
	var all []health.Node
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		b.T.Fatalf("%v: %s", err, out)
	}
	states := map[string]health.NodeState{}
	for _, n := range all {
		states[n.Name] = n.State
	}
	return states
}

func TestControlPlanesOfOneDatabaseKnowOfEachOther(t *testing.T) {
	database := onPostgreSQL(t)
	named := func(node string) instance.Options {
		return instance.Options{Settings: testkit.NoPool + database + "node: " + node + "\n"}
	}
	first, second := testkit.Start(t, named("first")), testkit.Start(t, named("second"))
	are := func(b *testkit.Installation, within time.Duration, name string, want health.NodeState) {
		t.Helper()
		testenv.Eventually(t, within, func() bool { return nodesOf(b)[name] == want }, name+" is "+string(want))
	}
	for _, b := range []*testkit.Installation{first, second} {
		are(b, 5*time.Second, "first", health.NodeAlive)
		are(b, 5*time.Second, "second", health.NodeAlive)
	}

	// The name of one that is there is nobody else's.
	twin := testkit.Prepare(t, named("second"))
	if err := twin.Start(t.Context()); err == nil || !strings.Contains(err.Error()+twin.Log(), "another control plane is the node second") {
		t.Fatalf("a second one of the name starts: %v\n%s", err, twin.Log())
	}

	// One that was killed has its own name again at once, before it would be given up.
	serve := second.Victims("serve")[0]
	if err := syscall.Kill(serve, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 10*time.Second, func() bool { return nodesOf(second)["second"] == health.NodeAlive }, "the second one answers again")

	// Nothing is heard of one that stands still.
	serve = second.Victims("serve")[0]
	if err := syscall.Kill(serve, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	are(first, 30*time.Second, "second", health.NodeLost)
	if err := syscall.Kill(serve, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	are(first, 30*time.Second, "second", health.NodeAlive)

	if err := second.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	are(first, 5*time.Second, "second", health.NodeStopped)
	twin.Up()
	are(first, 5*time.Second, "second", health.NodeAlive)
}
