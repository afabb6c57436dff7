package clawbots

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

const testDir = "/srv/agents"

func mustParse(t testing.TB, text string) File {
	t.Helper()
	f, err := Parse("clawbots.yml", []byte(text), testDir)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func one(t testing.TB, text string) Agent {
	t.Helper()
	f := mustParse(t, "clawbots:\n  - name: dev\n"+text)
	if len(f.Agents) != 1 {
		t.Fatalf("got %d agents", len(f.Agents))
	}
	return f.Agents[0]
}

// refused parses an agent that must not pass, and returns the message.
func refused(t testing.TB, text string) string {
	t.Helper()
	_, err := Parse("clawbots.yml", []byte("clawbots:\n  - name: dev\n"+text), testDir)
	if err == nil {
		t.Fatalf("it was accepted:\n%s", text)
	}
	return err.Error()
}

func TestTheOriginsFileParsesAsItIs(t *testing.T) {
	text, err := os.ReadFile("testdata/origin.yml")
	if err != nil {
		t.Fatal(err)
	}
	got := mustParse(t, string(text))
	want := File{Source: "clawbots.yml", Agents: []Agent{
		{Name: "dev-bot", Sharing: Isolated, Line: 3},
		{Name: "archive-bot", Workspace: "/srv/agents/workspaces/archive", WorkspaceMode: ReadOnly, Sharing: Dedicated, Line: 6},
		{Name: "researcher-bot", Workspace: "/srv/agents/workspaces/project-x", WorkspaceMode: ReadWrite, Sharing: Shared, Line: 11,
			Siblings: []string{"reviewer-bot", "writer-bot"}},
		{Name: "writer-bot", Workspace: "/srv/agents/workspaces/project-x", WorkspaceMode: ReadWrite, Sharing: Shared, Line: 14,
			Siblings: []string{"researcher-bot", "reviewer-bot"}},
		{Name: "reviewer-bot", Workspace: "/srv/agents/workspaces/project-x", WorkspaceMode: ReadOnly, Sharing: Shared, Line: 17,
			Siblings: []string{"researcher-bot", "writer-bot"}},
	}}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(File{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestEveryKeyIsRead(t *testing.T) {
	const text = `
clawbots:
  - name: dev
    template: mine
    command: /usr/bin/agent --name "a b"
    workspace: /srv/w
    workspace_mode: ro
    limits: {memory: 1GiB, cpu: 1.5, tasks: 99, tmp: 20MiB, state: 2GiB, files: 500}
    restart: on-failure
    ttl: 8h
    env: {A: "1", B: text, NUMBER: 007, EMPTY: ""}
    webhook: true
    browser: open
    allow:
      - example.com
      - "*.example.org:8443"
      - GET,head http://docs.example/**
      - "deny: bad.example"
      - deny: worse.example
      - {host: other.example}
      - {url: "http://plain.example/x", methods: [post, GET, GET]}
      - {host: third.example, deny: true}
    services: [github, git.lab]
    tools:
      - {url: "https://api.example.com/**", methods: [GET, post], services: [github]}
    rate: {proxy: 1, execute: 2, services: 3, llm: 4}
    mcp: [files, time]
    llm: {tokens_per_day: 1000, cost_per_day: 0.5}
  - name: other
    image: registry.example.com/x:1@sha256:abc
`
	want := []Agent{{
		Name: "dev", Template: "mine", Command: []string{"/usr/bin/agent", "--name", "a b"},
		Workspace: "/srv/w", WorkspaceMode: ReadOnly, Sharing: Dedicated,
		Limits:  Limits{Memory: config.GiB, CPU: 1.5, Tasks: 99, Tmp: 20 * config.MiB, State: 2 * config.GiB, Files: 500},
		Restart: jail.RestartOnFailure, TTL: 8 * time.Hour,
		Env: map[string]string{"A": "1", "B": "text", "NUMBER": "007", "EMPTY": ""}, Webhook: true, Browser: "open",
		Allow: []Rule{
			{Target: "example.com"}, {Target: "*.example.org:8443"}, {Target: "http://docs.example/**", Methods: []string{"GET", "HEAD"}},
			{Target: "bad.example", Deny: true}, {Target: "worse.example", Deny: true}, {Target: "other.example"},
			{Target: "http://plain.example/x", Methods: []string{"GET", "POST"}}, {Target: "third.example", Deny: true},
		},
		Services: []string{"github", "git.lab"},
		Tools:    []Tool{{URL: "https://api.example.com/**", Methods: []string{"GET", "POST"}, Services: []string{"github"}}},
		Rate:     Rate{Proxy: 1, Execute: 2, Service: 3, LLM: 4}, MCP: []string{"files", "time"}, LLM: LLM{TokensPerDay: 1000, CostPerDay: 0.5},
		Line: 3,
	}, {Name: "other", Image: "registry.example.com/x:1@sha256:abc", Sharing: Isolated, Line: 29}}
	got := mustParse(t, text).Agents
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(File{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNothingAndAnEmptyListAreNotTheSame(t *testing.T) {
	a := one(t, "")
	if a.Services != nil || a.Tools != nil {
		t.Errorf("nothing was said, and it is %v and %v", a.Services, a.Tools)
	}
	a = one(t, "    services: []\n    tools: []\n")
	if a.Services == nil || a.Tools == nil || len(a.Services)+len(a.Tools) > 0 {
		t.Errorf("an empty list is %#v and %#v", a.Services, a.Tools)
	}
	if f := mustParse(t, "clawbots: []"); len(f.Agents) != 0 {
		t.Errorf("an empty file has %v", f.Agents)
	}
}

// Each file of testdata/invalid has its mistakes, all of them, in the golden file beside it, as they are shown.
func TestEveryMistakeIsReportedAtItsPlace(t *testing.T) {
	files, err := filepath.Glob("testdata/invalid/*.yml")
	if err != nil || len(files) < 12 {
		t.Fatalf("found %d files: %v", len(files), err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".yml"), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			_, err = Parse(filepath.Base(name), text, testDir)
			if err == nil {
				t.Fatal("it was accepted")
			}
			if code := problem.CodeOf(err); code != problem.BadRequest {
				t.Errorf("the code is %s", code)
			}
			got := Explain(err, text) + "\n"
			testenv.Golden(t, strings.TrimSuffix(name, ".yml")+".golden", got)
			for _, secret := range secretsOfTests() {
				if strings.Contains(got, secret) {
					t.Errorf("a secret is in the message: %s", secret)
				}
			}
		})
	}
}

// secretsOfTests are the values in testdata/invalid/secrets.yml that must not get anywhere.
func secretsOfTests() []string {
	return []string{
		"abcdefghijklmnop", "9vX2kq8LmZ4tR7wQ", "hunter2", "cjagt_0", "AKIAIOSFODNN7EXAMPLE", "eyJhbGci", "verysecretpassword",
	}
}

func TestSecretsAreInTheFileOfTests(t *testing.T) {
	text, err := os.ReadFile("testdata/invalid/secrets.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range secretsOfTests() {
		if !strings.Contains(string(text), secret) {
			t.Errorf("%s is not looked for in anything", secret)
		}
	}
}

func TestWhatIsTooMuchIsRefused(t *testing.T) {
	many := func(n int, line func(i int) string) string {
		var b strings.Builder
		b.WriteString("clawbots:\n")
		for i := range n {
			b.WriteString(line(i))
		}
		return b.String()
	}
	agents := func(i int) string { return fmt.Sprintf("  - name: a%d\n", i) }
	if f := mustParse(t, many(MaxAgents, agents)); len(f.Agents) != MaxAgents {
		t.Errorf("got %d agents", len(f.Agents))
	}
	for what, text := range map[string]string{
		"agents":   many(MaxAgents+1, agents),
		"bytes":    "clawbots: []\n#" + strings.Repeat("x", MaxText),
		"env":      "clawbots:\n  - name: a\n    env:\n" + many(maxEnv+1, func(i int) string { return fmt.Sprintf("      A%d: x\n", i) })[len("clawbots:\n"):],
		"rules":    "clawbots:\n  - name: a\n    allow:\n" + many(maxRules+1, func(i int) string { return fmt.Sprintf("      - a%d.example\n", i) })[len("clawbots:\n"):],
		"tools":    "clawbots:\n  - name: a\n    tools: [" + strings.Repeat("{url: 'https://a.example', methods: [GET]}, ", 200+1) + "]",
		"words":    "clawbots:\n  - name: a\n    command: [/bin/sh" + strings.Repeat(", x", maxWords) + "]",
		"text":     "clawbots:\n  - name: a\n    command: /bin/sh" + strings.Repeat(" x", maxWords),
		"services": "clawbots:\n  - name: a\n    services: [x" + strings.Repeat(", x", 64) + "]",
		"value":    "clawbots:\n  - name: a\n    env: {A: '" + strings.Repeat("x", maxEnvValue+1) + "'}",
		"path":     "clawbots:\n  - name: a\n    workspace: /" + strings.Repeat("x", maxPath),
	} {
		_, err := Parse("f", []byte(text), testDir)
		var list *problem.ValidationError
		if !errors.As(err, &list) {
			t.Errorf("%s: got %v", what, err)
			continue
		}
		if len(list.Flaws) != 1 || len(err.Error()) > 300 || !strings.Contains(err.Error(), "more than") && !strings.Contains(err.Error(), "longer than") {
			t.Errorf("%s: got %d flaws: %.500s", what, len(list.Flaws), err)
		}
	}
}

func TestManyMistakesAreBounded(t *testing.T) {
	_, err := Parse("f", []byte("clawbots:\n"+strings.Repeat("  - nam: x\n", 400)), testDir)
	var many *problem.ValidationError
	if !errors.As(err, &many) || len(many.Flaws) != maxFlaws+1 {
		t.Fatalf("got %v", err)
	}
	if last := many.Flaws[maxFlaws].Message; last != "there are 300 more mistakes" {
		t.Errorf("the last is %q", last)
	}
}

// A value of a byte takes hundreds of bytes of memory when it is read. No file that people write has nearly as many.
func TestAFileOfAMegabyteIsNotHundredsInMemory(t *testing.T) {
	for what, text := range map[string]string{
		"a list of agents that are none": "clawbots: [" + strings.Repeat("a,", MaxText/2-10) + "]",
		"a list within brackets":         "clawbots: [{name: x, mcp: [" + strings.Repeat("1,", MaxText/2-20) + "]}]",
		"lines":                          "clawbots:\n" + strings.Repeat("-\n", MaxText/2-10),
		"mistakes":                       "clawbots: [" + strings.Repeat("a,", 49_000) + "]",
	} {
		var err error
		took := testenv.Allocated(func() { _, err = Parse("f", []byte(text), testDir) }) >> 20
		if err == nil {
			t.Errorf("%s was accepted", what)
		}
		if took > 160 { // five times as much without the bounds
			t.Errorf("%s takes %d MiB", what, took)
		}
	}
	honest, hosts := "clawbots: [", ""
	for n := range 80 {
		hosts += fmt.Sprintf("x%d.example, ", n)
	}
	for n := range MaxAgents {
		honest += fmt.Sprintf("{name: a%d, allow: [%s]}, ", n, hosts)
	}
	if f := mustParse(t, honest+"]"); len(f.Agents) != MaxAgents {
		t.Errorf("got %d agents", len(f.Agents))
	}
}

// The author of the file decides neither how long the messages are nor how long they take: one line with everything wrong is
// made presentable once.
func TestMessagesOfHostileFilesAreShort(t *testing.T) {
	for what, text := range map[string]string{
		"a key as long as the file": strings.Repeat(":", MaxText/2),
		"a line full of mistakes":   "clawbots: [" + strings.Repeat("x,", 40_000) + "]",
		"many agents on a line":     "clawbots: [" + strings.Repeat("{},", 20_000) + "]",
		"deep nesting":              strings.Repeat("{", MaxText),
		"text that is not one":      strings.Repeat("\xff", MaxText/4),
	} {
		_, err := Parse("f", []byte(text), testDir)
		if err == nil {
			t.Errorf("%s was accepted", what)
			continue
		}
		if out := Explain(err, []byte(text)); len(out) > 64<<10 {
			t.Errorf("%s makes %d bytes", what, len(out))
		}
	}
}

// A mistake of YAML has no field: a value is left out because of where it stands.
func TestExplainLeavesValuesOfVariablesOut(t *testing.T) {
	const text = "clawbots:\n  - name: a\n    env:\n      PIN: hunter2\n      OTHER: \"hunter3\n    command: [visible]\n  - env:\n      PIN: hunter4\n    image: seen\n"
	for n := range 9 {
		got := Explain(&problem.ValidationError{Flaws: []problem.Flaw{{Line: n + 1, Column: 1, Message: "m"}}}, []byte(text))
		if strings.Contains(got, "hunter") {
			t.Errorf("line %d is shown as\n%s", n+1, got)
		}
		for line, word := range map[int]string{2: "name: a", 4: "PIN: …", 6: "[visible]", 9: "image: seen"} {
			if line == n+1 && !strings.Contains(got, word) {
				t.Errorf("line %d is shown as\n%s", line, got)
			}
		}
	}
}

// The page of clawbots.yml shows a mistake as it is shown.
func TestPageShowsAMistakeAsItIs(t *testing.T) {
	text := []byte("clawbots:\n  - name: dev\n    limits:\n      memroy: 512MiB\n")
	_, err := Parse("clawbots.yml", text, testDir)
	page, readErr := os.ReadFile("../../docs/clawbots.md")
	if got := Explain(err, text); readErr != nil || !strings.Contains(string(page), "```\n"+got+"\n```\n") {
		t.Errorf("%v; the page does not have\n%s", readErr, got)
	}
}

func TestExplain(t *testing.T) {
	const text = "clawbots:\n  - name: dev\n    memroy: 1\n    \x1b[31mkey: 5\n"
	_, err := Parse("c.yml", []byte("clawbots:\n  - name: dev\n    memroy: 1\n"), testDir)
	want := "c.yml:3:5: clawbots[0].memroy: unknown key\n    3 |     memroy: 1\n      |     ^"
	if got := Explain(err, []byte(text)); got != want {
		t.Errorf("got\n%s", got)
	}
	// As it comes over the API: the list in the details, decoded from JSON.
	data, jsonErr := json.Marshal([]problem.Flaw{{Field: "clawbots[0].memroy", Line: 3, Column: 5, Message: "unknown key"}})
	var details any
	if jsonErr != nil || json.Unmarshal(data, &details) != nil {
		t.Fatal(jsonErr)
	}
	remote := problem.New(problem.BadRequest, "", "all of it").With("errors", details)
	if got := Explain(remote, []byte(text)); got != strings.Replace(want, "c.yml:3:5", "line 3:5", 1) {
		t.Errorf("got\n%s", got)
	}
	escape := &problem.ValidationError{Flaws: []problem.Flaw{{Line: 4, Column: 5, Message: "a \x1b[31m message"}, {Line: 99, Column: 1, Message: "far"}}}
	if got := Explain(escape, []byte(text)); strings.ContainsRune(got, '\x1b') || !strings.Contains(got, "far") {
		t.Errorf("got %q", got)
	}
	if got := Explain(errors.New("other"), nil); got != "other" {
		t.Errorf("got %q", got)
	}
	if got := Explain(nil, nil); got != "" {
		t.Errorf("got %q", got)
	}
	long := strings.Repeat("ü", 500) + "x"
	got := Explain(&problem.ValidationError{Flaws: []problem.Flaw{{Line: 1, Column: 501, Message: "m"}}}, []byte(long))
	lines := strings.Split(got, "\n")
	if len(lines) != 3 || !strings.HasSuffix(lines[1], "üx") || len([]rune(lines[1])) != len([]rune(lines[2])) || len([]rune(lines[1])) > 2*shownWidth {
		t.Errorf("got\n%s", got)
	}
}

func TestAFolderIsNeededForRelativePaths(t *testing.T) {
	for _, dir := range []string{"", "relative", "./x"} {
		if _, err := Parse("f", []byte("clawbots: []"), dir); err == nil {
			t.Errorf("%q was accepted", dir)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/*.yml", "testdata/invalid/*.yml", "../../examples/clawbots.yml", "../../clawbots.yml.example"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(text)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := Parse("f", text, testDir)
		if err != nil {
			var many *problem.ValidationError
			if !errors.As(err, &many) || len(many.Flaws) == 0 || len(many.Flaws) > maxFlaws+1 {
				t.Fatalf("not a list of mistakes: %v", err)
			}
			for line := range strings.SplitSeq(Explain(err, text), "\n") {
				if strings.ContainsRune(line, '\x1b') {
					t.Fatal("an escape reaches the terminal")
				}
			}
			return
		}
		if _, err := Together(file.Agents...); err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, a := range file.Agents {
			if jail.ValidAgentName(a.Name) != nil || seen[a.Name] {
				t.Fatalf("an agent is called %q", a.Name)
			}
			seen[a.Name] = true
			if (a.Workspace == "") != (a.Sharing == Isolated) || a.Workspace != "" && (!filepath.IsAbs(a.Workspace) || filepath.Clean(a.Workspace) != a.Workspace) {
				t.Fatalf("the workspace is %q, %s", a.Workspace, a.Sharing)
			}
			// A declaration that was read can be kept and read again.
			again := decoded(t, Canonical(a))
			if d := Differences(a, again); len(d) > 0 {
				t.Fatalf("differs from itself: %v", d)
			}
			for _, r := range a.Allow {
				if err := r.check(); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}
