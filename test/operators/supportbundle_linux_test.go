//go:build linux

package operators

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/secretscan"
	"github.com/clawjail/clawjail/internal/selftest/website"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/test/testkit"
)

// bundled are the files of a support bundle.
func bundled(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the bundle has mode %v, %v", info.Mode(), err)
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for all := tar.NewReader(z); ; {
		h, err := all.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		text, readErr := io.ReadAll(all)
		if err := errors.Join(err, readErr); err != nil {
			t.Fatal(err)
		}
		out[strings.TrimPrefix(h.Name, "clawjail-support/")] = string(text)
		if strings.HasSuffix(h.Name, ".json") && !json.Valid(text) {
			t.Errorf("%s is no JSON:\n%.2000s", h.Name, text)
		}
	}
}

// TestASupportBundleHasNoSecretOfARealInstance plants canaries wherever an instance keeps or is given secrets, finds each at its
// source, and none in a bundle; once while the instance runs, and once while nothing does.
func TestASupportBundleHasNoSecretOfARealInstance(t *testing.T) {
	const (
		inVault, inProvider = "canary-vault-7f3b19c2", "canary-provider-91aa03"
		inQuery, inText     = "canary-query-55d0e1", "canary-text-of-a-page-0be2"
		inDatabase          = "canary-database-77c1"
		person              = "quiet-lake"
	)
	var log testkit.Transcript
	v := visiting(t, instance.Options{Settings: "log: {level: debug}\n" + testkit.NoPool, Output: &log})
	needles := map[string]string{"vault secret": inVault, "provider key": inProvider, "query": inQuery, "text": inText}
	source := map[string][]byte{}

	// Everything that keeps a secret is given one.
	given := func(name, value string) {
		set := v.Command(t.Context(), "secret", "set", name)
		set.Stdin = strings.NewReader(value)
		if out, err := set.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		source[name] = []byte(value)
	}
	given("tracker", inVault)
	given("openai", inProvider)
	v.run("provider", "add", "openai", "--preset", "openai")
	v.run("cookies", "import", v.storageState("alice"), "--domain", website.Domain)
	for n, value := range v.site.Values() {
		needles[fmt.Sprintf("cookie %d", n)] = value
		source["cookies"] = append(source["cookies"], value+"\n"...)
	}
	admin, err := os.ReadFile(hostd.AdminKeyPath(v.Config))
	if err != nil {
		t.Fatal(err)
	}
	needles["admin key"] = strings.TrimSpace(string(admin))
	operator, err := client.Call(t.Context(), v.API, op.CreateOperator(), op.NewOperator{Body: op.With(op.OperatorRequest{Name: person, Tenant: "default", Role: "viewer"})})
	if err != nil {
		t.Fatal(err)
	}
	bot, err := client.Call(t.Context(), v.API, op.CreateAgent(), op.NewAgent{Body: op.With(op.AgentRequest{Name: person})})
	if err != nil {
		t.Fatal(err)
	}
	needles["operator key"], needles["agent token"] = operator.Key, bot.Key
	needles["grant"] = v.run("grant", "issue", "--domain", website.Domain)
	s := v.Open(session.OpenRequest{Record: session.RecordAudit})
	if _, err := v.API.Navigate(t.Context(), s, browser.Navigate{URL: v.site.URL("/welcome?user=bob&x=" + inQuery)}); err != nil {
		t.Fatal(err)
	}
	token, err := v.API.SessionToken(t.Context(), s, api.TokenRequest{Scope: "view"})
	if err != nil {
		t.Fatal(err)
	}
	needles["session token"] = token.Token
	var recording bytes.Buffer
	if err := v.API.Recording(t.Context(), &recording, s); err != nil {
		t.Fatal(err)
	}
	source["recording"] = recording.Bytes()

	// A log in which all of it was said, as a program with a fault would.
	said := log.Bytes()
	for name, value := range needles {
		said = fmt.Appendf(said, "time=2026-05-01T12:30:45.123Z level=WARN msg=\"a fault\" text=%q error=\"Get \\\"https://%s/%s?x=%s\\\": refused\"\n", value, website.Host, value, value)
		said = fmt.Appendf(said, "{\"time\":\"2026-05-01T12:30:45Z\",\"level\":\"WARN\",\"msg\":\"a fault\",\"page\":%q,\"error\":%q}\n", value, "password="+value)
		said = fmt.Appendf(said, "%s %s\n", name, value)
	}
	file := filepath.Join(t.TempDir(), "up.log")
	testkit.WriteFile(t, file, string(said))

	look := func(when, path string, set *secretscan.Set) map[string]string {
		t.Helper()
		files := bundled(t, path)
		size := 0
		for name, text := range files {
			size += len(text)
			for _, h := range set.In(name, []byte(text)) {
				t.Errorf("%s: %s", when, h)
			}
			for _, name2 := range []string{website.Domain, person} {
				if strings.Contains(text, name2) {
					at := strings.Index(text, name2)
					t.Errorf("%s: %s has the name %s: …%s…", when, name, name2, text[max(0, at-60):min(len(text), at+60)])
				}
			}
		}
		if size < 5000 {
			t.Errorf("%s: the bundle has %d bytes: a search of nothing finds nothing", when, size)
		}
		return files
	}
	search := func() *secretscan.Set {
		t.Helper()
		set := secretscan.New(t, needles)
		seen := map[string]bool{}
		hits, _, err := set.Files([]string{file, filepath.Dir(v.ConfigFile), hostd.ControlDir(v.Config)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for name, data := range source {
			hits = append(hits, set.In(name, data)...)
		}
		for _, h := range hits {
			seen[h.Name] = true
		}
		for name := range needles {
			if !seen[name] {
				t.Errorf("the %s is not found at its source: nothing is shown", name)
			}
		}
		return set
	}

	set := search()
	if len(set.In("recording", recording.Bytes())) == 0 {
		t.Error("the recording has no canary")
	}
	running := filepath.Join(t.TempDir(), "running.tar.gz")
	out := v.run("support-bundle", "--log", file, running)
	if !strings.Contains(out, "left out: keys, tokens") {
		t.Errorf("it says %s", out)
	}
	files := look("while it runs", running, set)
	for _, name := range []string{"manifest.json", "status.json", "doctor.json", "versions.json", "configuration.json", "templates.json", "things.json", "firewall.txt", "log-file-1.txt",
		"info.json", "agents.json", "audit.json", "metrics.txt", "jails.json", "reap.json"} {
		if len(files[name]) < 3 {
			t.Errorf("%s is missing or empty: %q\n%s", name, files[name], files["manifest.json"])
		}
	}
	for name, want := range map[string]string{"status.json": `"control_plane": true`, "audit.json": `"action": "session.open"`, "agents.json": `"phase": "no jail"`, "firewall.txt": "table", "log-file-1.txt": "hostd: time="} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s has no %s:\n%.1500s", name, want, files[name])
		}
	}
	if _, err := v.Run(t.Context(), "support-bundle", running); err == nil || !strings.Contains(err.Error(), "is there already") {
		t.Errorf("a second bundle in the place of the first: %v", err)
	}

	// The same while nothing runs, with a database that has a password.
	v.Close(s)
	if err := v.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	kept, err := os.ReadFile(v.ConfigFile)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { testkit.WriteFile(t, v.ConfigFile, string(kept)) }) // before the instance is taken away
	if err := os.Chmod(v.ConfigFile, 0o600); err != nil {                  // as one with a password has to be
		t.Fatal(err)
	}
	testkit.WriteFile(t, v.ConfigFile, string(kept)+"\ndatabase: postgres://clawjail:"+inDatabase+"@127.0.0.1:1/clawjail\n")
	needles["database password"] = inDatabase
	set = search()
	stopped := filepath.Join(t.TempDir(), "stopped.tar.gz")
	out = v.run("support-bundle", "--log", file, stopped)
	if !strings.Contains(out, "not in it, or not all: agents.json") {
		t.Errorf("it does not say what is missing: %s", out)
	}
	files = look("while nothing runs", stopped, set)
	if !strings.Contains(files["status.json"], `"control_plane": false`) || !strings.Contains(files["configuration.json"], `"Database": "[redacted]"`) || len(files["doctor.json"]) < 1000 {
		t.Errorf("of what does not run it has\n%.300s\n%.300s\n%s\n%.1000s", files["status.json"], files["configuration.json"], files["manifest.json"], files["doctor.json"])
	}
}
