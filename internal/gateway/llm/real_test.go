package llm

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/testenv"
)

// TestStockClientsHoldAConversationOfTenTurns has each client talk through the gateway to a server that behaves as OpenAI's does.
// The server keeps nothing, and its model sees everything.
func TestStockClientsHoldAConversationOfTenTurns(t *testing.T) {
	w := newResponsesFixture(t)
	for name, got := range talks(t, w.front.URL, "gpt-5-mini") {
		if want := "user 10 assistant 9 call 10 output 10 thought 19"; got != want {
			t.Errorf("%s: the model sees %q, not %q", name, got, want)
		}
	}
	w.keptNothing(t)
}

func TestStockClientsHoldTheSameConversationDirectly(t *testing.T) {
	testenv.Long(t)
	direct := httptest.NewServer(newOpenAI())
	t.Cleanup(direct.Close)
	w := newResponsesFixture(t)
	one, two := talks(t, direct.URL, "gpt-5-mini gpt-4o"), talks(t, w.front.URL, "gpt-5-mini gpt-4o")
	for name, want := range one {
		if got := two[name]; got != want || want == "" {
			t.Errorf("%s: directly the model sees %q, through the gateway %q", name, want, got)
		}
	}
	w.keptNothing(t)
}

// talks has every client talk to models, and returns the last answer of each conversation.
func talks(t *testing.T, base, models string) map[string]string {
	t.Helper()
	dir := filepath.Join(testenv.Repository(t), "test", "clients")
	node := filepath.Join(dir, "node_modules", ".node")
	if _, err := os.Stat(node); err != nil {
		testenv.Missing(t, "the packages of stock clients", "run `make setup`, or scripts/clients.sh")
	}
	cmd := exec.CommandContext(t.Context(), node, filepath.Join(dir, "responses.mjs"))
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "BASE="+base, "MODELS="+models, "OPENAI_AGENTS_DISABLE_TRACING=1", "OPENAI_API_KEY=none")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.Output()
	if err != nil {
		t.Errorf("%s: %v\n%.3000s", base, err, stderr.String())
	}
	out := map[string]string{}
	for lines := bufio.NewScanner(bytes.NewReader(stdout)); lines.Scan(); {
		var line struct {
			Step, Note, Error string
			OK                bool
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Errorf("%s: %s", base, lines.Text())
			continue
		}
		if !line.OK {
			t.Errorf("%s: %s: %s", base, line.Step, line.Error)
		}
		out[line.Step] = line.Note
	}
	if want := 12 * len(strings.Fields(models)); len(out) != want {
		t.Errorf("%s: %d conversations, want %d", base, len(out), want)
	}
	return out
}
