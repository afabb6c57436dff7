//go:build linux

package docs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/manual"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// The page, its section, and what stands in it.
const (
	gitHubPage    = "docs/github.md"
	gitHubSection = "How do I give an agent GitHub without giving it my token?"
	gitPort       = "9418"
	gitToken      = "ghp_4kQ7mX2vT9sW8nB3zR6c"
)

// shellBlocks are the shell commands of a section of a README, block by block.
func shellBlocks(t *testing.T, file, section string) []string {
	t.Helper()
	return blocksOf(t, file, section, "sh")
}

// blocksOf are the blocks of a section that are written in one language.
func blocksOf(t *testing.T, file, section, language string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testenv.Repository(t), file))
	if err != nil {
		t.Fatal(err)
	}
	all, err := manual.Page{Path: file, Text: string(text)}.Blocks()
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, b := range all {
		if b.Section == section && b.Language == language {
			blocks = append(blocks, b.Text)
		}
	}
	if len(blocks) == 0 {
		t.Fatalf("%s has no section %q with blocks of %s", file, section, language)
	}
	return blocks
}

// reader is somebody who does what the page says, on a machine where another clawjail may run: the port of the server is
// another one, clawjail is told where its configuration is, and sudo does nothing.
type reader struct {
	*testkit.Installation
	dir, home, port string
	blocks          []string
	said            testkit.Transcript // what every command printed
}

func newReader(t *testing.T) *reader {
	t.Helper()
	testenv.Tool(t, "git")
	b := testkit.PrepareWith(t, instance.Options{Settings: testkit.NoPool + "log:\n  level: debug\n"}, func(o *instance.Options, dir string) {
		o.Templates = filepath.Join(dir, "templates")
	})
	b.Up()
	blocks := shellBlocks(t, gitHubPage, gitHubSection)
	if len(blocks) != 4 {
		t.Fatalf("the section has %d blocks; this knows server, operator, agent and end", len(blocks))
	}
	r := &reader{Installation: b, dir: t.TempDir(), home: t.TempDir(), port: strconv.Itoa(int(testenv.FreePort(t))), blocks: blocks}
	if err := os.WriteFile(filepath.Join(r.home, "greeting"), []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.furnish()
	return r
}

// furnish puts into the reader's folder what the commands of READMEs find in a checkout.
func (r *reader) furnish() {
	t := r.T
	t.Helper()
	goTool := testenv.Tool(t, "go")
	for _, f := range []struct{ name, text string }{
		{"sudo", "#!/bin/sh\nexec \"$@\"\n"},
		{"go", "#!/bin/sh\ncd '" + testenv.Repository(t) + "' && exec '" + goTool + "' \"$@\"\n"},
	} {
		if err := os.MkdirAll(filepath.Join(r.dir, "tools"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(r.dir, "tools", f.name), []byte(f.text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Mkdir(filepath.Join(r.dir, "bin"), 0o755), os.Symlink(r.Binary, filepath.Join(r.dir, "bin", "clawjail"))); err != nil {
		t.Fatal(err)
	}
}

// shell is a shell that is about to run commands of the page.
func (r *reader) shell(commands string, env []string) *exec.Cmd {
	cmd := exec.CommandContext(r.T.Context(), testenv.Tool(r.T, "bash"), "-euo", "pipefail", "-c", strings.ReplaceAll(commands, ":"+gitPort, ":"+r.port))
	cmd.Dir, cmd.WaitDelay = r.dir, 10*time.Second
	cmd.Env = slices.Concat(env, []string{"CLAWJAIL_CONFIG=" + r.ConfigFile})
	return cmd
}

// surroundings are what a shell has before it is told anything. Its proxy is nobody: what does not go to the gateway goes nowhere.
func (r *reader) surroundings() []string {
	return []string{"PATH=" + filepath.Join(r.dir, "tools") + ":" + os.Getenv("PATH"), "HOME=" + r.home, "GIT_CONFIG_NOSYSTEM=1",
		"http_proxy=http://127.0.0.1:1", "https_proxy=http://127.0.0.1:1"}
}

// tracing makes git say all that it sends and gets.
func tracing() []string {
	return []string{"GIT_TRACE=1", "GIT_TRACE_CURL=1", "GIT_TRACE_PACKET=1", "GIT_TRACE_REDACT=0"}
}

// does runs commands, and returns what they printed.
func (r *reader) does(commands string, env []string) (string, error) {
	r.T.Helper()
	cmd := r.shell(commands, env)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	_, _ = r.said.Write(out.Bytes()) // it never fails
	return out.String(), err
}

func (r *reader) must(commands string, env []string) string {
	r.T.Helper()
	out, err := r.does(commands, env)
	if err != nil {
		r.T.Fatalf("%s\n%v\n%.6000s\nlog of the instance:\n%.6000s", commands, err, out, r.Log())
	}
	return out
}

// server starts the git server in a terminal of its own.
func (r *reader) server() *testkit.Transcript {
	r.T.Helper()
	said := r.terminal(r.blocks[0])
	testenv.Eventually(r.T, 2*time.Minute, func() bool { return bytes.Contains(said.Bytes(), []byte("serving http://")) }, "the git server does not begin")
	return said
}

// terminal runs commands in a terminal of their own until the test ends.
func (r *reader) terminal(commands string) *testkit.Transcript {
	r.T.Helper()
	said := &testkit.Transcript{}
	// The tools that a server is built with are the test's own.
	cmd := r.shell(commands, append(os.Environ(), "PATH="+filepath.Join(r.dir, "tools")+":"+os.Getenv("PATH")))
	cmd.Stdout, cmd.Stderr = said, said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	group := func(s syscall.Signal) error {
		if err := syscall.Kill(-cmd.Process.Pid, s); !errors.Is(err, syscall.ESRCH) {
			return err
		}
		return nil
	}
	cmd.Cancel = func() error { return group(syscall.SIGINT) }
	if err := cmd.Start(); err != nil {
		r.T.Fatal(err)
	}
	r.T.Cleanup(func() {
		if err := group(syscall.SIGINT); err != nil {
			r.T.Error(err)
		}
		_ = cmd.Wait() // it says that it was interrupted
	})
	return said
}

// agent does what the agent of the page does, and returns the environment of its shell.
func (r *reader) agent() []string {
	r.T.Helper()
	file := filepath.Join(r.T.TempDir(), "env")
	r.must(r.blocks[2]+"\nenv -0 > '"+file+"'\n", slices.Concat(r.surroundings(), tracing()))
	text, err := os.ReadFile(file)
	if err != nil {
		r.T.Fatal(err)
	}
	return strings.Split(strings.TrimRight(string(text), "\x00"), "\x00")
}

// requests are what the audit log has of the service, an intent or a refusal each.
func (r *reader) requests() (out []string) {
	r.T.Helper()
	for _, row := range r.Rows("--action", "gateway.service") {
		if row.Phase == "outcome" {
			continue
		}
		var d struct {
			Method, Path, Service string
			Injected              bool
		}
		if err := json.Unmarshal(row.Detail, &d); err != nil {
			r.T.Fatal(err)
		}
		out = append(out, fmt.Sprintf("%s %s %s injected=%v", d.Method, d.Path, d.Service, d.Injected))
	}
	return out
}

// answered is the text of what git was answered: its trace has it in pieces. Git itself shows its user the status alone.
func answered(trace string) string {
	var out strings.Builder
	for line := range strings.Lines(trace) {
		if _, data, found := strings.Cut(line, "<= Recv data: "); found {
			out.WriteString(strings.TrimSuffix(data, "\n"))
		}
	}
	return out.String()
}

// push makes one more commit and pushes it.
const push = "echo more >> demo/hello.txt\n" +
	"git -C demo -c user.name=writer -c user.email=writer@example.com commit -q -a -m more\n" +
	"git -C demo push origin HEAD\n"

func TestGiveAnAgentGitHubWithoutGivingItTheToken(t *testing.T) {
	r := newReader(t)
	server := r.server()
	r.must(r.blocks[1], r.surroundings())
	env := r.agent()

	want := []string{
		"GET /demo.git/info/refs github injected=true", "POST /demo.git/git-upload-pack github injected=true",
		"GET /demo.git/info/refs github injected=true", "POST /demo.git/git-receive-pack github injected=true",
	}
	if got := r.requests(); !slices.Equal(got, want) {
		t.Errorf("the audit log has %q, want %q", got, want)
	}
	if n := strings.Count(string(server.Bytes()), "with the token"); n != len(want) {
		t.Errorf("the server saw the token %d times:\n%s", n, server.Bytes())
	}
	if strings.Contains(string(server.Bytes()), "no token") {
		t.Errorf("the server was asked without the token:\n%s", server.Bytes())
	}
	again := r.must("git clone -q https://github.com/you/demo.git again && cat again/hello.txt", env)
	if !strings.HasSuffix(again, "hello\n") {
		t.Errorf("what was pushed comes back as %q", again)
	}
	if _, err := r.Run(t.Context(), "audit", "verify"); err != nil {
		t.Error(err)
	}
	r.searches(env)

	// The end of the section: the agent is revoked.
	r.must(r.blocks[3], r.surroundings())
	before := string(server.Bytes())
	out, err := r.does(push, env)
	if said := answered(out); err == nil || !strings.Contains(said, "invalid or expired key") {
		t.Errorf("a revoked agent pushes, or is told something else: %v, %q\n%.3000s", err, said, out)
	}
	if string(server.Bytes()) != before {
		t.Errorf("the server was asked for a revoked agent:\n%s", server.Bytes())
	}
}

// searches looks for the token of the server in everything that the agent has, and that an operator reads. Each place is
// searched for something that is known to be there too: a search that finds nothing anywhere is none.
func (r *reader) searches(env []string) {
	t := r.T
	t.Helper()
	agentToken, err := os.ReadFile(filepath.Join(r.dir, "writer.token"))
	if err != nil {
		t.Fatal(err)
	}
	answers := func(args ...string) []byte {
		t.Helper()
		out, err := r.Run(t.Context(), args...)
		if err != nil {
			t.Fatal(err)
		}
		return []byte(out)
	}
	agentID := ""
	for _, row := range r.Rows("--action", "gateway.service") {
		agentID = row.Actor
	}
	for _, place := range []struct {
		name  string
		text  []byte
		known string // that is there
	}{
		{"the agent's environment", []byte(strings.Join(env, "\n")), strings.TrimSpace(string(agentToken))},
		{"what the agent's programs and the operator's printed", r.said.Bytes(), "Authorization: Bearer " + strings.TrimSpace(string(agentToken))},
		{"the log of the instance", []byte(r.Log()), "service=github"},
		{"audit rows", answers("audit", "ls", "--json", "--limit", "1000"), agentID},
		{"the export of the audit log", answers("audit", "export", "--jsonl"), agentID},
		{"services", answers("service", "ls", "--json"), "git.test"},
		{"secrets", answers("secret", "ls", "--json"), `"github"`},
		{"what tools in a jail are given", answers("agent", "env", "writer", "--json"), "insteadOf"},
		{"metrics", r.metrics(), "clawjail_gateway_requests_total"},
	} {
		if !bytes.Contains(place.text, []byte(place.known)) {
			t.Errorf("%s: the search does not find %q, which is there:\n%.2000s", place.name, place.known, place.text)
		}
		if form := tokenIn(place.text); form != "" {
			t.Errorf("%s: has the token as %s", place.name, form)
		}
	}
	for _, folder := range []struct{ name, path, known string }{
		{"the agent's folder", r.dir, "hello"}, {"the agent's home", r.home, "hello"}, {"the data of the instance", r.Config.DataDir, "git.test"},
	} {
		files := filesBelow(t, folder.path)
		for path, text := range files {
			if form := tokenIn(text); form != "" {
				t.Errorf("%s: %s has the token as %s", folder.name, path, form)
			}
		}
		if !slices.ContainsFunc(slices.Collect(maps.Values(files)), func(text []byte) bool { return bytes.Contains(text, []byte(folder.known)) }) {
			t.Errorf("%s: the search of %d files does not find %q, which is there", folder.name, len(files), folder.known)
		}
	}
}

// metrics is a scrape.
func (r *reader) metrics() []byte {
	r.T.Helper()
	key, err := os.ReadFile(hostd.AdminKeyPath(r.Config))
	if err != nil {
		r.T.Fatal(err)
	}
	req, err := http.NewRequestWithContext(r.T.Context(), http.MethodGet, "http://"+r.Config.Listen.String()+"/metrics", nil)
	if err != nil {
		r.T.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(key)))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.T.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		r.T.Fatalf("%s %v: %.500s", resp.Status, err, text)
	}
	return text
}

// TestPushesEndWithTheirPermission takes away what an agent needs for a push, one thing after the other.
func TestPushesEndWithTheirPermission(t *testing.T) {
	r := newReader(t)
	server := r.server()
	r.must(r.blocks[1], r.surroundings())
	env := r.agent()
	r.must(push, env)
	token, err := os.ReadFile(filepath.Join(r.dir, "writer.token"))
	if err != nil {
		t.Fatal(err)
	}
	own := strings.TrimSpace(string(token))
	wrong := own[:len(own)-8] + "AAAAAAAA"
	r.must("sudo bin/clawjail agent create other > other.token", r.surroundings())
	otherToken, err := os.ReadFile(filepath.Join(r.dir, "other.token"))
	if err != nil {
		t.Fatal(err)
	}
	with := func(token string) []string {
		out := slices.Clone(env)
		for i := range out {
			out[i] = strings.ReplaceAll(out[i], own, token)
		}
		return out
	}
	for _, step := range []struct {
		name, before string
		env          []string
		says         string // the answer does
		after        string
	}{
		{"a token that is none", "", with(wrong), "invalid or expired key", ""},
		{"another agent's token", "", with(strings.TrimSpace(string(otherToken))), "this agent has no service of the name github", ""},
		{"the service is gone", "sudo bin/clawjail service rm github --agent writer", env, "this agent has no service of the name github", r.blocks[1][strings.Index(r.blocks[1], "sudo bin/clawjail service add"):]},
		{"the secret is gone", "sudo bin/clawjail secret rm github", env, "there is no credential for the service github", "echo " + gitToken + " | sudo bin/clawjail secret set github"},
		{"pushing is not allowed", "sudo bin/clawjail service add github --agent writer --url http://git.test:9418 --address 127.0.0.1 " +
			"--inject basic --user x-access-token --git https://github.com/you/ --allow 'GET /**'", env, "the service github does not allow POST /svc/github/demo.git/git-receive-pack", ""},
	} {
		if step.before != "" {
			r.must(step.before, r.surroundings())
		}
		before := strings.Count(string(server.Bytes()), "git-receive-pack")
		out, err := r.does(push, step.env)
		if said := answered(out); err == nil || !strings.Contains(said, step.says) {
			t.Errorf("%s: %v, and it is told %q\n%.3000s", step.name, err, said, out)
		}
		if n := strings.Count(string(server.Bytes()), "git-receive-pack"); n != before {
			t.Errorf("%s: the server was asked:\n%s", step.name, server.Bytes())
		}
		if step.after != "" {
			r.must(step.after, r.surroundings())
			r.must(push, env)
		}
	}
	if _, err := r.Run(t.Context(), "audit", "verify"); err != nil {
		t.Error(err)
	}
}
