//go:build linux

package testkit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/testenv"
)

// ScriptLimit bounds one script of a stock client.
const ScriptLimit = 4 * time.Minute

// Clients is where the packages of stock clients are.
func Clients(t *testing.T) (dir, node string) {
	t.Helper()
	dir = filepath.Join(testenv.Repository(t), "test", "clients")
	node = filepath.Join(dir, "node_modules", ".node")
	if _, err := os.Stat(node); err != nil {
		testenv.Missing(t, "the packages of stock clients", "run `make setup`, or scripts/clients.sh")
	}
	return dir, node
}

// Report is one line of a script.
type Report struct {
	Step, Attempt, Error, Answer string
	OK, Answered                 bool
	Note                         any
	MS                           int
}

// Script runs a script of a stock client, and returns what it reports.
func Script(t *testing.T, name string, env map[string]string) []Report {
	t.Helper()
	return ScriptWithin(t, ScriptLimit, name, env)
}

// ScriptWithin is [Script] for one that has more to do.
func ScriptWithin(t *testing.T, limit time.Duration, name string, env map[string]string) []Report {
	t.Helper()
	dir, node := Clients(t)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, node, filepath.Join(dir, name))
	cmd.Dir = dir
	cmd.WaitDelay = 5 * time.Second
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	for key, value := range env {
		cmd.Env = append(cmd.Env, key+"="+value)
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var out []Report
	lines := bufio.NewScanner(&stdout)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r Report
		if json.Unmarshal(lines.Bytes(), &r) != nil {
			t.Logf("%s: %s", name, lines.Text())
			continue
		}
		out = append(out, r)
		if r.Step != "" && !r.OK {
			t.Errorf("%s: %s: %s", name, r.Step, r.Error)
		}
	}
	if err != nil && !slices.ContainsFunc(out, func(r Report) bool { return r.Step != "" && !r.OK }) {
		t.Errorf("%s: %v\n%.4000s", name, err, stderr.String())
	}
	if len(out) == 0 {
		t.Fatalf("%s reported nothing: %.4000s", name, stderr.String())
	}
	return out
}

// Bearer sends a key.
type Bearer struct {
	*http.Transport
	Key string
}

// RoundTrip sends a request with the key.
func (k Bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+k.Key)
	return k.Transport.RoundTrip(r)
}

// OrEmpty is for tools without arguments: some servers take no null for an object.
func OrEmpty(arguments map[string]any) map[string]any {
	if arguments == nil {
		return map[string]any{}
	}
	return arguments
}
