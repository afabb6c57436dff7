//go:build linux

package containers

import (
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// webhook sends a body to an agent by the API, as a key's owner.
func webhook(e *testkit.Deployment, name, body string) (status int, answer string) {
	e.T.Helper()
	key, err := os.ReadFile(hostd.AdminKeyPath(e.Config))
	if err != nil {
		e.T.Fatal(err)
	}
	request, err := http.NewRequestWithContext(e.T.Context(), http.MethodPost,
		"http://"+e.Config.Listen.String()+"/v1/agents/"+name+"/webhook", strings.NewReader(body))
	if err != nil {
		e.T.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(key)))
	request.Header.Set("Content-Type", "text/plain")
	got, err := http.DefaultClient.Do(request)
	if err != nil {
		e.T.Fatal(err)
	}
	text, err := io.ReadAll(got.Body)
	if err := errors.Join(err, got.Body.Close()); err != nil {
		e.T.Fatal(err)
	}
	return got.StatusCode, string(text)
}

// listener is a program of an agent that takes webhooks on the loopback of its own jail, and answers with what it was sent.
const listener = `
import http.server
class Hook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        print('{"type":"hooked"}', flush=True)
        said = (self.path + "|" + str(self.headers.get("Authorization")) + "|").encode() + body
        self.send_response(202)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)
    def log_message(self, *args): pass
http.server.HTTPServer(("127.0.0.1", 8000), Hook).serve_forever()
`

// TestAWebhookReachesTheProgramOfItsAgent sends one to a program that listens in a real jail, to one that listens and is
// not declared to take any, and to one that is declared and does not listen.
func TestAWebhookReachesTheProgramOfItsAgent(t *testing.T) {
	e := testkit.NewEstate(t, "")
	if err := os.MkdirAll(filepath.Join(e.Dir, "workspaces", "hook"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(e.Dir, "workspaces", "hook", "hook.py"), []byte(listener), 0o644); err != nil {
		t.Fatal(err)
	}
	e.Sync(`
clawbots:
  - {name: taker, webhook: true, workspace: ./workspaces/hook, workspace_mode: ro, command: [/usr/bin/python3, /workspace/hook.py]}
  - {name: deaf, workspace: ./workspaces/hook, workspace_mode: ro, command: [/usr/bin/python3, /workspace/hook.py]}
  - {name: mute, webhook: true}
`)
	for _, name := range []string{"taker", "deaf", "mute"} {
		e.Running(name)
	}
	status, answer := 0, ""
	testenv.Eventually(t, 20*time.Second, func() bool {
		status, answer = webhook(e, "taker", "hello")
		return status == http.StatusAccepted
	}, "the agent does not answer: %d %s", status, answer)
	if answer != "/webhook|None|hello" {
		t.Errorf("the agent was sent %q", answer)
	}
	if out, err := e.Run(t.Context(), "agent", "logs", "taker"); err != nil || !strings.Contains(out, `"type":"hooked"`) {
		t.Errorf("the agent has not seen it: %v\n%s", err, out)
	}
	// The same program listens here, soon, and was not told that anybody sends.
	if out := e.MustIn("deaf", "curl -s --retry 5 --retry-connrefused --noproxy '*' -d x http://127.0.0.1:8000/webhook"); out != "/webhook|None|x" {
		t.Fatalf("it does not listen, so a refusal shows nothing: %q", out)
	}
	if status, answer := webhook(e, "deaf", "hello"); status != http.StatusConflict || !strings.Contains(answer, "not declared") {
		t.Errorf("one that is not declared to take webhooks: %d %s", status, answer)
	}
	if status, answer := webhook(e, "mute", "hello"); status != http.StatusConflict || !strings.Contains(answer, "nothing answers") {
		t.Errorf("one that does not listen: %d %s", status, answer)
	}
}

// TestTheImageOfTheExampleIsBuiltAndTakesWebhooks builds examples/clawbot-base with an engine, from the image of the
// template and one with this machine's Go, and runs it as an agent.
func TestTheImageOfTheExampleIsBuiltAndTakesWebhooks(t *testing.T) {
	testenv.Long(t) // it compiles Go's library in the image
	d := newDock(t, "", "")
	build := func(args ...string) {
		t.Helper()
		if out, err := ask(t, append([]string{"build", "--network", "none"}, args...)...); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	// The image that FROM names: this machine's Go, with the rest of the template.
	goRoot, err := exec.CommandContext(t.Context(), testenv.Tool(t, "go"), "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	recipe := filepath.Join(t.TempDir(), "Dockerfile")
	if err := os.WriteFile(recipe, []byte("FROM clawjail/clawbot:latest\nUSER root\nCOPY . /usr/local/go\n"+
		"ENV PATH=/usr/local/go/bin:/usr/bin:/bin GOTOOLCHAIN=local GOPROXY=off GOCACHE=/tmp/cache\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	build("-t", "golang:1.26-bookworm", "-f", recipe, strings.TrimSpace(string(goRoot)))
	example := filepath.Join(testenv.Repository(t), "examples", "clawbot-base")
	build("-t", "clawbot-go", "--build-arg", "BASE=clawjail/clawbot:latest", example)
	d.Sync(`
clawbots:
  - {name: built, image: "clawbot-go:latest", env: {CLAWBOT_WEBHOOK: ":8000"}, webhook: true}
`, "--driver", "docker")
	d.Running("built")
	status, answer := 0, ""
	testenv.Eventually(t, 20*time.Second, func() bool {
		status, answer = webhook(d.Deployment, "built", "hello")
		return status == http.StatusNoContent
	}, "the agent does not answer: %d %s", status, answer)
	var out string
	testenv.Eventually(t, 20*time.Second, func() bool {
		var err error
		out, err = d.Run(t.Context(), "agent", "logs", "built")
		return err == nil && strings.Contains(out, `"type":"started"`) && strings.Contains(out, `"type":"webhook"`)
	}, "the agent has not seen it")
	if out := d.MustIn("built", "id -u; ! touch /usr/x 2>&1"); !strings.HasPrefix(out, "1000\n") || !strings.Contains(out, "Read-only") {
		t.Errorf("%q", out)
	}
}
