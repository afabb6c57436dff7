//go:build linux

package jails

import (
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// want checks the steps of a script: all went well, but for those that must not.
func want(t *testing.T, got map[string]string, fails ...string) {
	t.Helper()
	for _, step := range fails {
		if err, done := got[step]; !done || err == "" {
			t.Errorf("%s went well without its piece (%v)", step, done)
		}
		delete(got, step)
	}
	for step, err := range got {
		if err != "" {
			t.Errorf("%s: %s", step, err)
		}
	}
}

func TestCurlWorksByItsEnvironment(t *testing.T) {
	curl := testenv.Tool(t, "curl")
	x := newExit(t)
	get := func(a *outfit, url string) (string, error) {
		return a.run(a.home, nil, curl, "--silent", "--show-error", "--fail", "--max-time", "20", url)
	}
	a := x.newAgent()
	for _, url := range []string{a.plain() + "/hello", a.secure() + "/hello", a.env["API_URL"] + "/hello"} {
		if out, err := get(a, url); err != nil || out != "hello" {
			t.Errorf("%s: %q %v", url, out, err)
		}
	}
	for _, c := range []struct {
		without []string
		url     string
	}{
		{[]string{"http_proxy", "HTTP_PROXY"}, a.plain()}, {[]string{"https_proxy", "HTTPS_PROXY"}, a.secure()},
		{[]string{"SSL_CERT_FILE", "CURL_CA_BUNDLE"}, a.secure()},
	} {
		if out, err := get(x.newAgent(c.without...), c.url+"/hello"); err == nil {
			t.Errorf("without %s, %s answers %q", c.without, c.url, out)
		}
	}
	if out, err := get(a, "http://other.example/"); err == nil || !strings.Contains(out, "403") {
		t.Errorf("a host that no rule allows answers %q, %v", out, err)
	}
}

func TestPythonWorksByItsEnvironment(t *testing.T) {
	python := testenv.Tool(t, "python3")
	x := newExit(t)
	want(t, x.newAgent().steps(python, "web.py"))
	want(t, x.newAgent("http_proxy", "HTTP_PROXY").steps(python, "web.py"), "urllib http")
	want(t, x.newAgent("https_proxy", "HTTPS_PROXY").steps(python, "web.py"), "urllib https", "urllib post")
	want(t, x.newAgent("SSL_CERT_FILE").steps(python, "web.py"), "urllib https", "urllib post")
}

func TestEveryNodeWorksByItsEnvironment(t *testing.T) {
	dir, _ := testkit.Clients(t)
	x := newExit(t)
	all := []string{"fetch http", "fetch https", "http.get", "https.get", "post", "events http", "events https"}
	for _, c := range []struct{ node, piece string }{
		{".node20", "NODE_OPTIONS"}, {".node22", "NODE_USE_ENV_PROXY"}, {".node", "NODE_USE_ENV_PROXY"},
	} {
		node := filepath.Join(dir, "node_modules", c.node)
		t.Run(c.node, func(t *testing.T) {
			if _, err := os.Stat(node); err != nil {
				testenv.Missing(t, "Node of test/clients ("+c.node+")", "run `make setup`, or scripts/clients.sh")
			}
			want(t, x.newAgent().steps(node, "web.mjs"))
			want(t, x.newAgent(c.piece).steps(node, "web.mjs"), all...)
			want(t, x.newAgent("NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE").steps(node, "web.mjs"), "fetch https", "https.get", "post", "events https")
		})
	}
}

func TestModelsWorkWithStockPackages(t *testing.T) {
	dir, newest := testkit.Clients(t)
	x := newExit(t)
	openai := []string{"openai chat", "openai chat stream", "openai responses", "openai embeddings"}
	anthropic := []string{"anthropic messages", "anthropic stream"}
	for _, node := range []string{filepath.Join(dir, "node_modules", ".node22"), newest} {
		t.Run(filepath.Base(node), func(t *testing.T) {
			want(t, x.newAgent().steps(node, "models.mjs"))
			want(t, x.newAgent("OPENAI_BASE_URL").steps(node, "models.mjs"), openai...)
			want(t, x.newAgent("ANTHROPIC_BASE_URL").steps(node, "models.mjs"), anthropic...)
		})
	}
}

func TestGitWorksWithATokenThatTheAgentNeverHas(t *testing.T) {
	git := testenv.Tool(t, "git")
	x := newExit(t)
	bare := filepath.Join(x.repo, "acme", "tool.git")
	for _, args := range [][]string{
		{"init", "--quiet", "--bare", "--initial-branch=main", bare}, {"-C", bare, "config", "http.receivepack", "true"},
	} {
		if out, err := exec.CommandContext(t.Context(), git, args...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v %s", args, err, out)
		}
	}
	const url = "https://git.example/acme/tool.git"
	a := x.newAgent()
	trace := []string{"GIT_TRACE=1", "GIT_TRACE_CURL=1", "GIT_TRACE_PACKET=1", "GIT_TRACE_REDACT=0", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example"}
	work := filepath.Join(a.home, "work")
	do := func(args ...string) string {
		t.Helper()
		out, err := a.run(a.home, trace, git, args...)
		if err != nil {
			t.Fatalf("git %v: %v\n%.6000s", args, err, out)
		}
		return out
	}
	do("clone", url, work)
	// More than git sends in one piece.
	large := make([]byte, 2<<20)
	if _, err := rand.Read(large); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(work, "large"), large, 0o600); err != nil {
		t.Fatal(err)
	}
	do("-C", work, "checkout", "-b", "main")
	do("-C", work, "add", "large")
	do("-C", work, "commit", "--quiet", "-m", "a file")
	if out := do("-C", work, "push", "origin", "main"); !strings.Contains(out, "127.0.0.1:3000") {
		t.Errorf("the push did not ask the gateway:\n%.4000s", out)
	}
	again := filepath.Join(a.home, "again")
	do("clone", "ssh://git@git.example/acme/tool.git", again)
	if got, err := os.ReadFile(filepath.Join(again, "large")); err != nil || string(got) != string(large) {
		t.Errorf("what was pushed comes back as %d bytes, %v", len(got), err)
	}
	if out := do("-C", work, "remote", "get-url", "--push", "origin"); !strings.Contains(out, "/svc/forge/") {
		t.Errorf("origin is %s", out)
	}
	filesWithout(t, a.home)

	// The token is what let git in, and the environment is what led it there.
	if out, err := x.newAgent("GIT_CONFIG_COUNT").run(a.home, nil, git, "ls-remote", url); err == nil {
		t.Errorf("without its settings git is answered %s", out)
	}
	resp, err := x.plain.Client().Get(x.plain.URL + "/git/acme/tool.git/info/refs?service=git-upload-pack")
	if err != nil {
		t.Fatal(err)
	}
	if resp.Body.Close(); resp.StatusCode != 401 {
		t.Errorf("without the token the server answers %s", resp.Status)
	}
}
