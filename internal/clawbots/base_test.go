package clawbots

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/clawjail/clawjail/internal/testenv"
)

const baseDir = "examples/clawbot-base"

// baseAgents are the commands of the three agents of examples/clawbot-base.
func baseAgents(t *testing.T) map[string][]string {
	t.Helper()
	dir := filepath.Join(testenv.Repository(t), baseDir)
	binary := filepath.Join(t.TempDir(), "clawbot")
	build := exec.CommandContext(t.Context(), testenv.Tool(t, "go"), "build", "-o", binary, ".")
	build.Dir, build.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=", "GOPROXY=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	testenv.Tool(t, "curl")
	return map[string][]string{
		"go":     {binary},
		"python": {testenv.Tool(t, "python3"), filepath.Join(dir, "agent.py")},
		"shell":  {testenv.Tool(t, "sh"), filepath.Join(dir, "agent.sh")},
	}
}

// fakeGateway answers execute, and remembers with which tokens it was asked.
type fakeGateway struct {
	*httptest.Server
	sync.Mutex
	tokens map[string]int
}

func newFakeGateway(t *testing.T) *fakeGateway {
	g := &fakeGateway{tokens: map[string]int{}}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(io.LimitReader(r.Body, 1<<16))
		var asked struct{ URL, Method string }
		if err != nil || json.Unmarshal(body, &asked) != nil || asked.URL != "https://api.example.com/x" || asked.Method != http.MethodGet ||
			r.Method+" "+r.URL.Path != "POST /v1/execute" || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("it asked for %s %s: %s", r.Method, r.URL, body)
		}
		g.Lock()
		g.tokens[r.Header.Get("Authorization")]++
		g.Unlock()
		w.WriteHeader(http.StatusForbidden)
	}))
	t.Cleanup(g.Close)
	return g
}

func (g *fakeGateway) asked(token string) func() bool {
	return func() bool {
		g.Lock()
		defer g.Unlock()
		return g.tokens["Bearer "+token] > 0
	}
}

// The three agents do the same: they wait for the token, use it, follow its rotation, print JSON lines, and end when asked to.
func TestTheThreeAgentsDoTheSame(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: builds a program, and -short leaves those tests out; run `make test`")
	}
	for name, argv := range baseAgents(t) {
		t.Run(name, func(t *testing.T) {
			gateway := newFakeGateway(t)
			token := filepath.Join(t.TempDir(), "token")
			write := func(text string) {
				if err := os.WriteFile(token+".new", []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.Rename(token+".new", token); err != nil {
					t.Fatal(err)
				}
			}
			events, end := startAgent(t, argv, "AGENT_NAME=dev", "SHELL_URL="+gateway.URL, "CLAWBOT_TOKEN_FILE="+token, "CLAWBOT_PAUSE=0.05s",
				"CLAWBOT_TARGET=https://api.example.com/x", "HTTP_PROXY=http://127.0.0.1:1", "http_proxy=http://127.0.0.1:1")
			got := []string{<-events}
			if gateway.asked("")() {
				t.Error("it asked without a token")
			}
			write("first-token")
			got = append(got, <-events, <-events)
			if diff := cmp.Diff([]string{"started", "token", "executed 403"}, got); diff != "" {
				t.Error(diff)
			}
			testenv.Eventually(t, 20*time.Second, gateway.asked("first-token"), "the token was used")
			write("second-token")
			testenv.Eventually(t, 20*time.Second, gateway.asked("second-token"), "the new token was used")
			if last := end(); last != "stopped" {
				t.Errorf("last it says %q", last)
			}
		})
	}
}

// startAgent starts a program and returns what it says, and what ends it and returns the last thing that it said.
func startAgent(t *testing.T, argv []string, env ...string) (events <-chan string, end func() string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := make(chan string, 1000)
	go func() {
		defer close(said)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var event struct {
				Type, Agent string
				Status      json.Number
			}
			if err := json.Unmarshal(lines.Bytes(), &event); err != nil || event.Agent != "dev" {
				t.Errorf("it printed %s", lines.Text())
			}
			said <- strings.TrimSpace(event.Type + " " + event.Status.String())
		}
	}()
	ended := false
	end = func() (last string) {
		ended = true
		defer cancel()
		if err := syscall.Kill(cmd.Process.Pid, syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		for last = range said {
			continue
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("it ended with %v", err)
		}
		return last
	}
	t.Cleanup(func() {
		if !ended {
			cancel()
			_ = cmd.Wait() // it was killed
		}
	})
	return said, end
}

// The README's agents are ones that can be declared, and the image is one that the driver takes.
func TestTheReadmeOfTheBaseSaysWhatWorks(t *testing.T) {
	text := exampleFile(t, baseDir+"/README.md")
	found := regexp.MustCompile(`(?s)clawbots:\n.*?\n(?:END|`+"```"+`)`).FindAllString(text, -1)
	if len(found) != 2 {
		t.Fatalf("found %d files", len(found))
	}
	for _, file := range found {
		mustParse(t, file[:strings.LastIndex(file, "\n")])
	}
	dockerfile := exampleFile(t, baseDir+"/Dockerfile")
	if regexp.MustCompile(`(?m)^VOLUME`).MatchString(dockerfile) || !regexp.MustCompile(`(?m)^USER 1000:1000$`).MatchString(dockerfile) {
		t.Error("the image has a volume, or another user")
	}
	for _, name := range regexp.MustCompile(`(?m)^COPY ([a-z. ]+) `).FindAllStringSubmatch(dockerfile, -1) {
		for file := range strings.FieldsSeq(name[1]) {
			if _, err := os.Stat(filepath.Join(testenv.Repository(t), baseDir, file)); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestAgentsTakeWebhooks(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: builds a program, and -short leaves those tests out; run `make test`")
	}
	agents := baseAgents(t)
	for _, name := range []string{"go", "python"} {
		t.Run(name, func(t *testing.T) {
			address := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
			events, end := startAgent(t, agents[name], "AGENT_NAME=dev", "CLAWBOT_WEBHOOK="+address, "CLAWBOT_TOKEN_FILE="+filepath.Join(t.TempDir(), "none"))
			if got := <-events; got != "started" {
				t.Errorf("first it says %q", got)
			}
			client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
			post := func(path string) (status int) {
				testenv.Eventually(t, 20*time.Second, func() bool {
					answer, err := client.Post("http://"+address+path, "text/plain", strings.NewReader("hello"))
					if err != nil {
						return false
					}
					status = answer.StatusCode
					return answer.Body.Close() == nil
				}, "it answers")
				return status
			}
			if status := post("/webhook"); status != http.StatusNoContent {
				t.Errorf("it answered %d", status)
			}
			if got := <-events; got != "webhook" {
				t.Errorf("it says %q", got)
			}
			if status := post("/other"); status != http.StatusNotFound {
				t.Errorf("another path answers %d", status)
			}
			if last := end(); last != "stopped" && last != "" {
				t.Errorf("last it says %q", last)
			}
		})
	}
}
