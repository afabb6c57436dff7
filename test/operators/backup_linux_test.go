//go:build linux

package operators

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/secretscan"
	"github.com/clawjail/clawjail/internal/selftest/website"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// TestAnInstallationIsRestoredElsewhereWithAllThatItHas makes a backup under load, one with what agents keep when nothing
// runs, and an installation in other folders from that.
func TestAnInstallationIsRestoredElsewhereWithAllThatItHas(t *testing.T) {
	testenv.TemplateNamed(t, "clawbot")
	v := visiting(t, instance.Options{Settings: testkit.NoPool})
	v.run("cookies", "import", v.storageState("alice"), "--domain", website.Domain)
	const canary = "canary-7f3b19c2d4e86a50"
	set := v.Command(t.Context(), "secret", "set", "tracker")
	set.Stdin = strings.NewReader(canary)
	if out, err := set.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	e := &testkit.Deployment{Installation: v.Installation, Dir: t.TempDir()}
	const one = "clawbots:\n  - name: keeper\n    limits: {state: 64MiB}\n"
	e.Sync(one)
	e.Running("keeper")
	e.MustIn("keeper", "echo kept > /state/file")
	unused := v.run("grant", "issue", "--domain", website.Domain)

	// Writers go on all the time.
	ctx, stop := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	written := 0
	wait.Go(func() {
		for ctx.Err() == nil {
			if _, err := client.Call(ctx, v.API, op.IssueGrant(), op.NewGrant{Body: op.With(op.GrantRequest{Domains: []string{website.Domain}})}); err == nil {
				written++
			}
		}
	})
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	v.run("backup", "--key", at("live.key"), at("live.tar.gz"))
	v.run("backup", "--check", at("live.tar.gz"))
	_, err := v.Run(t.Context(), "backup", "--agent-state", at("refused.tar.gz"))
	if err == nil || !strings.Contains(err.Error(), "clawjail is running") {
		t.Errorf("what agents keep is taken while they use it: %v", err)
	}
	stop()
	wait.Wait()
	if written == 0 {
		t.Error("there was no load")
	}
	if left, _ := filepath.Glob(at("*refused*")); len(left) > 0 { // the pattern is good
		t.Errorf("left: %v", left)
	}

	admin, err := os.ReadFile(hostd.AdminKeyPath(v.Config))
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(at("live.tar.gz")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file has mode %v, %v", info.Mode(), err)
	}
	hits, _, err := secretscan.New(t, map[string]string{"secret": canary, "admin": string(bytes.TrimSpace(admin))}).Files([]string{at("live.tar.gz")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, h := range hits {
		seen[h.Name] = true
	}
	if seen["secret"] || !seen["admin"] { // the admin key is in it: the search sees what is
		t.Errorf("found in the backup: %v", hits)
	}

	if err := v.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	v.run("backup", "--agent-state", "--key", at("whole.key"), at("whole.tar.gz"))
	parent := v.Parent
	w := testkit.PrepareWith(t, instance.Options{Settings: v.Settings}, func(o *instance.Options, _ string) { o.Templates = v.Templates })
	if w.Parent == parent {
		t.Fatal("it is the same place")
	}
	if out, err := w.Run(t.Context(), "restore", "--key", at("whole.key"), at("whole.tar.gz")); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	w.Up()
	moved := &visited{Installation: w, site: v.site}
	if out := moved.run("audit", "verify"); !strings.Contains(out, "nothing is wrong") || !strings.Contains(out, "was restored from a backup") {
		t.Errorf("the audit log: %s", out)
	}
	s, err := moved.operator()
	if err != nil {
		t.Fatalf("the account does not work: %v", err)
	}
	moved.run("session", "close", s.ID)
	_, err = moved.Run(t.Context(), "session", "open", "--mode", "operator", "--domain", website.Domain, "--grant", unused)
	if err == nil {
		t.Error("a grant of before the backup is good")
	}
	e2 := &testkit.Deployment{Installation: w, Dir: t.TempDir()}
	e2.Running("keeper")
	if got := strings.TrimSpace(e2.MustIn("keeper", "cat /state/file")); got != "kept" {
		t.Errorf("the agent's file has %q", got)
	}
	if got := testkit.Verbs(e2.Sync(one, "--dry-run")); got != "" && !strings.HasPrefix(got, "none") && !strings.HasPrefix(got, "keep") {
		t.Logf("the plan is %q", got)
	}
	_, err = w.Run(t.Context(), "restore", "--replace", at("whole.tar.gz"))
	if err == nil || !strings.Contains(err.Error(), "clawjail is running") {
		t.Errorf("it is replaced while it runs: %v (%s)", err, problem.CodeOf(err))
	}
}
