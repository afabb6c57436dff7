package template

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// TestClawbotTemplate holds the template that this machine has been given to what agents count on.
func TestClawbotTemplate(t *testing.T) {
	testenv.Need(t, testenv.Root)
	dir := testenv.TemplateNamed(t, "clawbot")
	s := testStore(t, func(c *Config) { c.Dir = filepath.Dir(dir) })
	ctx := context.Background()
	got, err := s.Get(ctx, "clawbot")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Verify(ctx, "clawbot", VerifyOptions{Quick: true}); err != nil {
		t.Error(err)
	}
	if got.TaskLimit != 64 || got.Programs[ProgramMain].Path != clawbotPath || got.Programs[ProgramSh].Path != "/bin/sh" {
		t.Errorf("it is described as %+v", got.Programs)
	}
	wantFinished(t, got.RootFS())
	for _, folder := range []string{"state", "workspace", "run/hermit", "run/clawjail"} {
		if !isFolder(filepath.Join(got.RootFS(), folder)) {
			t.Errorf("there is no folder /%s", folder)
		}
	}
	for _, argv := range [][]string{
		{"/usr/bin/python3", "-c", "import json, ssl, urllib.request; print('python works')"},
		{"/bin/sh", "-c", "echo '{\"a\":1}' | jq -e .a >/dev/null && git --version >/dev/null && curl --version >/dev/null && ps >/dev/null && echo tools work"},
	} {
		lines, err := runIn(ctx, got.RootFS(), argv...)
		if err != nil || !slices.ContainsFunc(lines, func(line string) bool { return strings.HasSuffix(line, " works") || strings.HasSuffix(line, " work") }) {
			t.Errorf("%s: %v, %q", argv[0], err, lines)
		}
	}
}

func TestTheDefaultCommandIsInTheTemplate(t *testing.T) {
	if r := Recipes()["clawbot"]; clawbots.DefaultCommand != r.Main || len(r.Files) != 1 || r.Files[0].Path != r.Main || r.Files[0].Mode != 0o755 {
		t.Errorf("agents start %s, and the recipe is %+v", clawbots.DefaultCommand, r)
	}
}

// A recipe's promises hold for what is built from packages, and its first program also for folders and images.
func TestRecipesNamePlainPrograms(t *testing.T) {
	testenv.Need(t, testenv.Root)
	source := sourceTree(t)
	for _, test := range []struct {
		programs []string
		code     string
	}{
		{[]string{ProgramSh}, ""}, {[]string{"/opt/none", "/bin/sh"}, ""}, {[]string{"/opt/none"}, problem.BadTemplate}, {[]string{ProgramNode}, problem.BadTemplate},
		{nil, ""},
	} {
		s := testStore(t, func(c *Config) {
			c.Recipes = map[string]Recipe{"mine": {Programs: test.programs, Needs: []string{"/opt/of-packages-only"}, Main: "/opt/main", TaskLimit: 5,
				Files: []RecipeFile{{Path: "/opt/main", Mode: 0o755, Content: "#!/bin/sh\n"}, {Path: "/etc/of/recipe", Mode: 0o644, Content: "text"}}}}
		})
		built, err := s.Build(context.Background(), BuildOptions{Name: "mine", From: "dir:" + source})
		if test.code != "" {
			wantCode(t, err, test.code)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if built.Programs[ProgramMain].Path != "/opt/main" {
			t.Errorf("%v: it has %v", test.programs, built.Programs)
		}
		if data, err := os.ReadFile(filepath.Join(built.RootFS(), "etc/of/recipe")); err != nil || string(data) != "text" {
			t.Errorf("the recipe's file is %q, %v", data, err)
		}
	}
}

// A file that a folder has at the place of a recipe's program is the operator's, and stays.
func TestASourceKeepsItsOwnProgram(t *testing.T) {
	testenv.Need(t, testenv.Root)
	source := sourceTree(t)
	put(t, source, map[string]string{"usr/local/bin/clawbot": "#!/bin/sh\n# mine\n"})
	must(t, os.Chmod(filepath.Join(source, "usr/local/bin/clawbot"), 0o755))
	s := testStore(t)
	built, err := s.Build(context.Background(), BuildOptions{Name: "clawbot", From: "dir:" + source})
	if err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(built.RootFS(), "usr/local/bin/clawbot")); err != nil || !strings.Contains(string(data), "# mine") {
		t.Errorf("it is %q, %v", data, err)
	}
}

// The user of a jail is named after its program: an agent is no browser.
func TestTheUserOfATemplateIsNamedByItsRecipe(t *testing.T) {
	testenv.Need(t, testenv.Root)
	source := sourceTree(t)
	for name, want := range map[string]string{"clawbot": "agent:x:1000:1000::/state:/bin/sh\n", "browser": "browser:x:1000:1000::/home/browser:/bin/sh\n"} {
		s := testStore(t, func(c *Config) {
			c.Recipes = map[string]Recipe{name: {User: Recipes()[name].User, Home: Recipes()[name].Home, Programs: []string{ProgramSh}}}
		})
		built, err := s.Build(context.Background(), BuildOptions{Name: name, From: "dir:" + source})
		if err != nil {
			t.Fatal(err)
		}
		wantFinished(t, built.RootFS())
		text, err := os.ReadFile(filepath.Join(built.RootFS(), "etc/passwd"))
		if err != nil || !strings.HasSuffix(string(text), want) || strings.Count(string(text), ":1000:") != 1 {
			t.Errorf("in %s: %q, %v, want one user 1000, %q", name, text, err, want)
		}
	}
}

// The program of agents that name none: it waits for its token, uses it where no list of processes shows it, follows its
// rotation, prints JSON, and ends when it is asked to.
func TestTheClawbotProgram(t *testing.T) {
	for _, tool := range []string{"curl", "sh"} {
		testenv.Tool(t, tool)
	}
	const first, second = "cjagt_the-first-token-of-this-test", "cjagt_the-second-token-of-this-test"
	asked := make(chan string, 100)
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, token := range []string{first, second} {
			for _, where := range shownToOthers(token) {
				t.Errorf("the token is in %s", where)
			}
		}
		select {
		case asked <- r.URL.Path + " " + r.Header.Get("Authorization"):
		default: // the test has seen enough
		}
	}))
	defer gateway.Close()
	dir := t.TempDir()
	script, token := filepath.Join(dir, "clawbot"), filepath.Join(dir, "token")
	must(t, os.WriteFile(script, []byte(clawbotScript), 0o755))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, script)
	cmd.Env = append(os.Environ(), "CLAWBOT_TOKEN_FILE="+token, "CLAWBOT_PAUSE=0.05", "AGENT_NAME=dev-bot", "SHELL_URL="+gateway.URL)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	out, err := cmd.StdoutPipe()
	must(t, err, cmd.Start())
	lines := bufio.NewScanner(out)
	next := func() string {
		t.Helper()
		if !lines.Scan() {
			t.Fatalf("there are no more lines: %v", lines.Err())
		}
		var event struct{ Type, Agent, At, Gateway string }
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		if at, err := time.Parse(time.RFC3339, event.At); event.Agent != "dev-bot" || err != nil || time.Since(at).Abs() > time.Hour {
			t.Errorf("got %s", lines.Text())
		}
		return strings.TrimSpace(event.Type + " " + event.Gateway)
	}
	waitFor := func(want string) {
		t.Helper()
		for got := ""; got != want; {
			select {
			case got = <-asked:
			case <-ctx.Done():
				t.Fatalf("%s was not asked", want)
			}
		}
	}
	if got := next(); got != "started" {
		t.Errorf("first it says %q", got)
	}
	if len(asked) > 0 {
		t.Error("it asked without a token")
	}
	must(t, os.WriteFile(token+".new", []byte(first), 0o600), os.Rename(token+".new", token))
	for _, want := range []string{"token", "alive 200"} {
		if got := next(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	waitFor("/v1/sessions Bearer " + first)
	must(t, os.WriteFile(token+".new", []byte(second), 0o600), os.Rename(token+".new", token))
	waitFor("/v1/sessions Bearer " + second)
	gateway.CloseClientConnections()
	must(t, syscall.Kill(cmd.Process.Pid, syscall.SIGTERM))
	last := ""
	for lines.Scan() {
		last = lines.Text()
	}
	if err := cmd.Wait(); err != nil || !strings.Contains(last, `"type":"stopped"`) {
		t.Errorf("it ended with %v, and said %q", err, last)
	}
}

// shownToOthers are the command lines and environments with a text in them.
func shownToOthers(text string) (where []string) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return []string{err.Error()}
	}
	for _, file := range files {
		for _, file := range []string{file, strings.TrimSuffix(file, "cmdline") + "environ"} {
			if data, err := os.ReadFile(file); err == nil && strings.Contains(string(data), text) { // processes end meanwhile
				where = append(where, file)
			}
		}
	}
	return where
}
