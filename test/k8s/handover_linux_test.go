//go:build k8s

package k8s

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// While a control plane drains its agents go to another one, with what they keep, and come back when that one drains.
func TestAgentsGoToAnotherControlPlaneWhileTheirsDrains(t *testing.T) {
	c := theCluster(t)
	c.furnish("moving")
	c.store()
	c.enforce(podPort(1), proxyPort(1), podPort(2), proxyPort(2))
	database := testkit.OnPostgreSQL(t)
	settings := func(n int) string {
		return fmt.Sprintf("gateway: {port: %d}\n", proxyPort(n)) + database +
			strings.Replace(settingsOf(t, n, c.settings("moving")), "images: {}", `images: {clawbot: "clawjail.test/shim:1"}`, 1)
	}
	e := testkit.NewEstate(t, settings(1))
	second := testkit.Start(t, instance.Options{Settings: testkit.NoPool + settings(2)})
	second.Join(e.Installation)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s\n%s\n%s", c.kubectl("", "-n", "moving", "get", "events"), e.Log(), second.Log())
		}
	})
	run := func(at *testkit.Installation, argv ...string) string {
		t.Helper()
		out, err := at.Run(t.Context(), argv...)
		if err != nil {
			t.Fatalf("%s: %v: %s", strings.Join(argv, " "), err, out)
		}
		return out
	}
	const program = `[/bin/sh, -c, "echo line >> /state/file; exec /bin/busybox sleep 1000000"]`
	names := []string{"one", "two", "three"}
	file := "clawbots:\n"
	for _, name := range names {
		file += fmt.Sprintf("  - {name: %s, command: %s}\n", name, program)
	}
	e.Sync(file)
	// at waits until all agents run where they should, and nowhere else, and have been started so many times.
	at := func(node string, starts int) {
		t.Helper()
		testenv.Eventually(t, 30*time.Second, func() bool {
			all := strings.Fields(c.kubectl("", "-n", "moving", "get", "sandboxclaims", "-o", `jsonpath={.items[*].metadata.labels.clawjail\.io/node}`))
			return len(all) == len(names) && !slices.ContainsFunc(all, func(of string) bool { return of != node })
		}, "the agents are not those of %s", node)
		for _, name := range names {
			want := strings.Repeat("line\n", starts)
			testenv.Eventually(t, 20*time.Second, func() bool {
				out, err := second.Run(t.Context(), "agent", "exec", name, "--", "/bin/sh", "-c", "busybox cat /state/file")
				return err == nil && out == want
			}, "%s does not run with what it keeps", name)
		}
	}
	at("node-1", 1)

	began := time.Now()
	run(second, "node", "drain", "node-1", "--wait", "2m")
	at("node-2", 2)
	t.Logf("the agents are at the other one %s after it was said", time.Since(began).Round(100*time.Millisecond))
	// A person syncs them where they are now, and nothing changes.
	if out, err := e.Run(t.Context(), "agent", "sync", "-f", e.File(file), "--yes"); err == nil || !strings.Contains(err.Error(), "on the machine of the control plane node-2") {
		t.Errorf("the first syncs what is elsewhere: %v: %s", err, out)
	}
	if out := run(second, "agent", "sync", "-f", e.File(file), "--yes"); strings.Contains(out, "restart") {
		t.Errorf("they are started again: %s", out)
	}
	run(second, "node", "resume", "node-1")
	run(second, "node", "drain", "node-2", "--wait", "2m")
	at("node-1", 3)
	// Of one that has nobody to give them to they stay.
	run(second, "node", "drain", "node-1", "--wait", "2m")
	at("node-1", 3)
	for _, b := range []*testkit.Installation{e.Installation, second} {
		run(b, "audit", "verify")
	}
	// Those of one that is not there any more are taken by who is told to, with what they keep.
	run(second, "node", "resume", "node-2")
	if err := e.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	run(second, "agent", "sync", "-f", e.File(file), "--adopt", "--yes")
	at("node-2", 4)
}
