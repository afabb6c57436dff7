//go:build linux

package docs

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// These stand in the README of the example.
const (
	piReadme = "examples/pi/README.md"
	piPort   = "8090"
	piKey    = "sk-example-key"
	piBuilt  = "sudo bin/clawjail template build browser\nsudo bin/clawjail template build clawbot\nsudo examples/pi/build.sh\n"
	piSaid   = `Done: hello.txt is written, and a browser of its own has read the page \"A page for pi\".` // in JSON
	piWrote  = "written by pi in its jail\n"
)

// piReader is somebody who does what the README of examples/pi says.
type piReader struct {
	*reader
	estate                    *testkit.Deployment
	before, model, agent, end []string // blocks of the README
}

func newPiReader(t *testing.T) *piReader {
	t.Helper()
	testenv.Time(t)
	testenv.Root(t)
	program, err := testkit.Program()
	if err != nil {
		t.Fatal(err)
	}
	templates := testenv.PiTemplates(t, program)
	dir, err := os.MkdirTemp("/var/lib/clawjail", "test-pi-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { testkit.RemoveTrees(t, dir) })
	example := filepath.Join(dir, "examples/pi")
	declared, err := os.ReadFile(filepath.Join(testenv.Repository(t), "examples/pi/clawbots.yml"))
	err = errors.Join(err, os.Chmod(dir, 0o755), os.MkdirAll(example, 0o755), os.WriteFile(filepath.Join(example, "clawbots.yml"), declared, 0o644))
	if err != nil {
		t.Fatal(err)
	}
	port := strconv.Itoa(int(testenv.FreePort(t)))
	here := strings.NewReplacer("/path/to/clawjail", dir, piPort, port)
	section := func(name, language string, want int) []string {
		blocks := blocksOf(t, piReadme, name, language)
		if len(blocks) != want {
			t.Fatalf("%q has %d blocks of %s; this knows %d", name, len(blocks), language, want)
		}
		for i := range blocks {
			blocks[i] = here.Replace(blocks[i])
		}
		return blocks
	}
	settings := testkit.NoPool + "log:\n  level: debug\n" + section("Before", "yaml", 1)[0]
	b := testkit.PrepareWith(t, instance.Options{Settings: settings}, func(o *instance.Options, _ string) { o.Templates = templates })
	r := &piReader{reader: &reader{Installation: b, dir: dir, home: t.TempDir(), port: gitPort}, estate: &testkit.Deployment{Installation: b, Dir: dir}, before: section("Before", "sh", 2),
		model: section("A model", "sh", 2), agent: section("The agent", "sh", 5), end: section("The end", "sh", 1)}
	r.furnish()
	if r.before[1] != piBuilt {
		t.Fatalf("the README builds the templates with\n%s\nand testenv.PiTemplates with\n%s", r.before[1], piBuilt)
	}
	r.must(r.before[0], r.surroundings())
	b.Up()
	return r
}

// shown waits until a terminal shows a text that many times.
func (r *piReader) shown(terminal *testkit.Transcript, text string, times int) {
	r.T.Helper()
	testenv.Eventually(r.T, 30*time.Second, func() bool { return bytes.Count(terminal.Bytes(), []byte(text)) >= times }, "%q is not shown %d times", text, times)
}

// piEvent is as much of what pi prints as the test looks at.
type piEvent struct {
	Type     string
	ToolName string
	IsError  bool
	Message  struct {
		Role    string
		Content json.RawMessage
	}
}

// happened are the events of one prompt, without those of which it depends on the moment how many there are.
func happened(t *testing.T, lines []string) (out []string) {
	t.Helper()
	for _, line := range lines {
		if !strings.HasPrefix(line, "{") {
			continue // what Node warns of
		}
		var e piEvent
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v: %.300s", err, line)
		}
		switch e.Type {
		case "agent_start", "agent_end":
			out = append(out, e.Type)
		case "tool_execution_start":
			out = append(out, "start "+e.ToolName)
		case "tool_execution_end":
			if e.IsError {
				t.Errorf("%s did not work: %.600s", e.ToolName, line)
			}
			out = append(out, "end "+e.ToolName)
		}
	}
	return out
}

// oncePrompted is what happens after one prompt.
var oncePrompted = []string{
	"agent_start", "start write", "end write", "start browser_open_session", "end browser_open_session", "start browser_navigate",
	"end browser_navigate", "start browser_close_session", "end browser_close_session", "agent_end",
}

func TestThePiExampleDoesWhatItsREADMESays(t *testing.T) {
	r := newPiReader(t)
	model := r.terminal(r.model[0])
	testenv.Eventually(t, time.Minute, func() bool { return bytes.Contains(model.Bytes(), []byte("model: http://")) }, "the model does not begin")
	r.must(r.model[1], r.surroundings())
	r.must(r.agent[0], r.surroundings())
	out, err := r.Run(t.Context(), "agent", "sync", "-f", filepath.Join(r.dir, "examples/pi/clawbots.yml"), "--json")
	if err != nil {
		t.Fatal(err)
	}
	if got := testkit.Verbs(testkit.PlanOf(t, out)); got != "unchanged pi, unchanged reader" {
		t.Errorf("a second sync does %q", got)
	}
	was := r.estate.Running("pi")

	// Both were there before the prompt, and do not end: what they show was shown live.
	terminal := r.terminal(r.agent[1])
	stream := r.listen("/v1/agents/pi/events")
	r.must(r.agent[2], r.surroundings())
	r.shown(terminal, `{"type":"agent_end"`, 1)
	r.shown(stream, `"name":"agent_end"`, 1)
	if t.Failed() {
		t.FailNow()
	}
	lines := strings.Split(string(terminal.Bytes()), "\n")
	if got := happened(t, lines); !slices.Equal(got, oncePrompted) {
		t.Errorf("what happened is %q", got)
	}
	if !strings.Contains(string(terminal.Bytes()), piSaid) {
		t.Errorf("pi did not say that it is done:\n%.6000s", terminal.Bytes())
	}
	if got := happened(t, r.events(stream)); !slices.Equal(got, oncePrompted) {
		t.Errorf("the stream of events has %q", got)
	}
	r.file()

	// It is the same agent that is asked a second time, and it goes on to be shown.
	r.must(r.agent[2], r.surroundings())
	r.shown(terminal, `{"type":"agent_end"`, 2)
	if is := r.estate.Running("pi"); is.Jail.Name != was.Jail.Name || is.Jail.Restarts != 0 {
		t.Errorf("it was %s, and is %s after %d restarts", was.Jail.Name, is.Jail.Name, is.Jail.Restarts)
	}
	r.record("agent:"+was.ID, 2)
	r.searches(terminal, stream)

	r.must(r.end[0], r.surroundings())
	if out := r.must("sudo bin/clawjail agent ls --json && sudo bin/clawjail provider ls --json && sudo bin/clawjail secret ls --json", r.surroundings()); strings.Contains(out, `"name"`) {
		t.Errorf("at the end there is still\n%s", out)
	}
	r.Clean(30 * time.Second)
	if text, err := os.ReadFile(filepath.Join(r.dir, "examples/pi/workspaces/team/pi/hello.txt")); err != nil || string(text) != piWrote {
		t.Errorf("the file went with its agent: %q, %v", text, err)
	}
}

// listen reads a stream of the API until the test ends.
func (r *piReader) listen(path string) *testkit.Transcript {
	t := r.T
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.Config.Listen.String()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	resp, err := (&http.Client{Transport: testkit.Bearer{Transport: transport, Key: r.Installation.Key()}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%s is answered with %s as %s", path, resp.Status, resp.Header.Get("Content-Type"))
	}
	said, done := &testkit.Transcript{}, make(chan struct{})
	go func() { // the clean-up waits for it
		defer close(done)
		_, _ = bufio.NewReader(resp.Body).WriteTo(said) // the clean-up breaks it off
	}()
	t.Cleanup(func() {
		_ = resp.Body.Close() // it is broken off
		<-done
		transport.CloseIdleConnections()
	})
	return said
}

// events are the lines of JSON in a stream of server-sent events, which must say of each what it is.
func (r *piReader) events(stream *testkit.Transcript) (lines []string) {
	t := r.T
	t.Helper()
	seen := map[string]bool{}
	for text := range strings.SplitSeq(string(stream.Bytes()), "\n\n") {
		var id, kind, data string
		for line := range strings.Lines(text) {
			name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
			switch name {
			case "id":
				id = value
			case "event":
				kind = value
			case "data":
				data = value
			}
		}
		if kind != "json" {
			continue // that it started, warnings of Node, and half an event at the end
		}
		var e struct {
			ID, Name, Stream string
			JSON             json.RawMessage
		}
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatalf("%v: %.300s", err, data)
		}
		var inside piEvent
		if err := json.Unmarshal(e.JSON, &inside); err != nil || e.Name != inside.Type || e.Stream != "stdout" || e.ID != id || seen[id] {
			t.Errorf("an event is %v, %.300s", err, data)
		}
		seen[id] = true
		lines = append(lines, string(e.JSON))
	}
	return lines
}

// file looks at what pi wrote, from the host and from the other agent.
func (r *piReader) file() {
	t := r.T
	t.Helper()
	if got := r.must(r.agent[3], r.surroundings()); got != piWrote {
		t.Errorf("the file on the host has %q", got)
	}
	if got := r.estate.MustIn("reader", "cat /workspace/pi/hello.txt"); got != piWrote {
		t.Errorf("the other agent reads %q", got)
	}
	if _, err := r.estate.In("reader", "echo x >> /workspace/pi/hello.txt"); err == nil {
		t.Error("the other agent, whose workspace is read-only, writes to the file")
	}
}

// record looks at what is on record after so many prompts.
func (r *piReader) record(actor string, prompts int) {
	t := r.T
	t.Helper()
	r.must(r.agent[4], r.surroundings())
	for action, want := range map[string]int{"session.open": 1, "session.close": 1, "gateway.llm": 5} {
		var outcomes int
		testenv.Eventually(t, 20*time.Second, func() bool {
			outcomes = 0
			for _, row := range r.Rows("--action", action, "--limit", "1000") {
				if row.Phase == "intent" && row.Actor != actor {
					t.Errorf("%s was done by %s", action, row.Actor)
				}
				if row.Phase == "outcome" && row.Actor == actor && row.Result == "ok" {
					outcomes++
				}
			}
			return outcomes >= want*prompts
		}, "%s has %d outcomes, want %d", action, outcomes, want*prompts)
		if outcomes != want*prompts {
			t.Errorf("%s has %d outcomes, want %d", action, outcomes, want*prompts)
		}
	}
	if list, err := r.Run(t.Context(), "session", "ls", "--json"); err != nil || strings.Contains(list, `"id"`) {
		t.Errorf("sessions are left: %v\n%s", err, list)
	}
	out, err := r.Run(t.Context(), "usage", "--json", "--from", time.Now().UTC().AddDate(0, 0, -1).Format(time.DateOnly))
	if err != nil {
		t.Fatal(err)
	}
	var days []struct {
		Agent, Provider, Model string
		Requests               int
		Input                  int `json:"input_tokens"`
		Output                 int `json:"output_tokens"`
	}
	if err := json.Unmarshal([]byte(out), &days); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	requests, input, output := 0, 0, 0
	for _, d := range days {
		if d.Provider != "local" || d.Model != "example-model" {
			t.Errorf("used was %+v", d)
		}
		requests, input, output = requests+d.Requests, input+d.Input, output+d.Output
	}
	if requests != 5*prompts || input != 500*prompts || output != 100*prompts {
		t.Errorf("%d requests, %d tokens in and %d out were counted:\n%s", requests, input, output, out)
	}
}

// searches looks for the model's key in all that pi can see and that an operator reads, and for pi's token in all of it but
// the file that it is in. Each place is searched for something that is known to be there too.
func (r *piReader) searches(terminal, stream *testkit.Transcript) {
	t := r.T
	t.Helper()
	token := strings.TrimSpace(r.estate.MustIn("pi", "cat /run/hermit/token"))
	if len(token) < 20 {
		t.Fatalf("the token has %d characters", len(token))
	}
	answers := func(args ...string) []byte {
		t.Helper()
		out, err := r.Run(t.Context(), args...)
		if err != nil {
			t.Fatal(err)
		}
		return []byte(out)
	}
	inside := func(command string) []byte { return []byte(r.estate.MustIn("pi", command)) }
	// The status 1 of tar is that a file changed while it was read.
	const everything = "tar c /state /workspace 2>/dev/null || [ $? = 1 ]"
	for _, place := range []struct {
		name  string
		text  []byte
		known string
	}{
		{"environments in the jail", inside("cat /proc/[0-9]*/environ"), "PI_CODING_AGENT_DIR="},
		{"command lines in the jail", inside("cat /proc/[0-9]*/cmdline"), "pi"},
		{"files of the jail", inside(everything), "the-gateway-puts-the-key-in"},
		{"mounts of the jail", inside("cat /proc/self/mountinfo"), "/run/hermit"},
		{"what pi printed", terminal.Bytes(), "agent_end"},
		{"the stream of events", stream.Bytes(), "agent_end"},
		{"the log of pi", answers("agent", "logs", "pi"), "agent_end"},
		{"pi as it is shown", answers("agent", "show", "pi", "--json"), "/usr/local/bin/pi"},
		{"what commands printed", r.said.Bytes(), "session.open"},
		{"the log of the instance", []byte(r.Log()), "example-model"},
		{"audit rows", answers("audit", "ls", "--json", "--limit", "1000"), "models.internal"},
		{"providers", answers("provider", "ls", "--json"), "models.internal"},
	} {
		if !bytes.Contains(place.text, []byte(place.known)) {
			t.Errorf("%s: the search does not find %q, which is there:\n%.2000s", place.name, place.known, place.text)
		}
		for what, secret := range map[string]string{"the model's key": piKey, "the agent's token": token} {
			if form := secretIn(place.text, secret); form != "" {
				t.Errorf("%s: has %s as %s", place.name, what, form)
			}
		}
	}
	for _, folder := range []struct{ name, path, known string }{
		{"the folder of the example", r.dir, "written by pi"}, {"the data of the instance", r.Config.DataDir, "models.internal"},
	} {
		files := filesBelow(t, folder.path)
		for path, text := range files {
			if form := secretIn(text, piKey); form != "" {
				t.Errorf("%s: %s has the model's key as %s", folder.name, path, form)
			}
		}
		if !slices.ContainsFunc(slices.Collect(maps.Values(files)), func(text []byte) bool { return bytes.Contains(text, []byte(folder.known)) }) {
			t.Errorf("%s: the search of %d files does not find %q, which is there", folder.name, len(files), folder.known)
		}
	}
}
