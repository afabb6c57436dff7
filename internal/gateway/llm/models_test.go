package llm

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/egress"
)

func modelList(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.URL.Path == pathTags:
		fmt.Fprint(w, `{"models":[{"name":"ollama-3:latest","model":"ollama-3:latest","size":1,"digest":"d","details":{"family":"x"}},{"name":"other","model":"other"}]}`)
	case r.Header.Get("Anthropic-Version") != "":
		fmt.Fprint(w, `{"data":[{"type":"model","id":"anthropic-9","display_name":"Nine","created_at":"2026-01-01T00:00:00Z"}],"has_more":false,"first_id":"a","last_id":"b"}`)
	default:
		fmt.Fprint(w, `{"object":"list","data":[{"id":"openai-5","object":"model","created":7,"owned_by":"system"},{"id":"whisper"},{"id":"openai-a/b"},7,{"id":"x\u0000"},{"id":null}]}`)
	}
}

// idsOf are the names in a list, whatever its wire.
func idsOf(t *testing.T, body string) (out []string) {
	t.Helper()
	var list struct {
		Object string
		Data   []struct{ ID string }
		Models []struct{ Model string }
	}
	if err := json.Unmarshal([]byte(body), &list); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	for _, m := range list.Data {
		out = append(out, m.ID)
	}
	for _, m := range list.Models {
		out = append(out, m.Model)
	}
	return out
}

func TestListsHaveWhatTheAgentMayUse(t *testing.T) {
	w := newFixture(t, modelList)
	w.provider(egress.WireOpenAI, func(p *egress.Provider) { p.Models = []string{"written-1", "openai-*"} })
	for _, c := range []struct {
		path    string
		headers []string
		want    []string
	}{
		{pathModels, nil, []string{"written-1", "openai-5", "openai-a/b"}},
		{pathModels, []string{"Anthropic-Version", "2023-06-01"}, []string{"anthropic-9"}},
		{pathTags, nil, []string{"ollama-3:latest"}},
	} {
		got := w.do(http.MethodGet, c.path, "", c.headers...)
		if ids := idsOf(t, got.body); got.status != http.StatusOK || !slices.Equal(ids, c.want) {
			t.Errorf("%s %v: %d %s", c.path, c.headers, got.status, got.body)
		}
	}
	if w.book.count() != 0 {
		t.Error("a list was debited")
	}
}

func TestShapesOfLists(t *testing.T) {
	w := newFixture(t, modelList)
	if got := w.do(http.MethodGet, pathModels, ""); !strings.Contains(got.body, `"object":"list"`) || !strings.Contains(got.body, `"owned_by":"system"`) {
		t.Errorf("%s", got.body)
	}
	got := w.do(http.MethodGet, pathModels, "", "Anthropic-Version", "2023-06-01")
	for _, word := range []string{`"has_more":false`, `"first_id":"anthropic-9"`, `"last_id":"anthropic-9"`, `"display_name":"Nine"`} {
		if !strings.Contains(got.body, word) {
			t.Errorf("%s lacks %s", got.body, word)
		}
	}
	if got := w.do(http.MethodGet, pathTags, ""); !strings.Contains(got.body, `"details":{"family":"x"}`) {
		t.Errorf("%s", got.body)
	}
	w.mu.Lock()
	w.providers = nil
	w.mu.Unlock()
	for _, path := range []string{pathModels, pathTags} {
		if got := w.do(http.MethodGet, path, ""); got.status != http.StatusOK || !strings.Contains(got.body, `":[]`) {
			t.Errorf("%s of nobody: %d %s", path, got.status, got.body)
		}
	}
}

func TestOneModel(t *testing.T) {
	w := newFixture(t, modelList)
	w.provider(egress.WireOpenAI, func(p *egress.Provider) { p.Models = []string{"written-1", "openai-*"} })
	for _, c := range []struct {
		path   string
		status int
		has    string
	}{
		{"written-1", 200, `"owned_by":"openai"`}, {"openai-5", 200, `"owned_by":"system"`}, {"openai-a/b", 200, `"openai-a/b"`}, {"openai-a%2Fb", 200, `"openai-a/b"`},
		{"openai-none", 404, "model_unknown"}, {"whisper", 404, "model_unknown"}, {"a%0Ab", 404, "model_unknown"}, {strings.Repeat("a", 300), 404, "model_unknown"},
	} {
		if got := w.do(http.MethodGet, pathModels+"/"+c.path, ""); got.status != c.status || !strings.Contains(got.body, c.has) {
			t.Errorf("%.50s: %d %s", c.path, got.status, got.body)
		}
	}
}

func TestListsAreKeptForAMinute(t *testing.T) {
	w := newFixture(t, modelList)
	w.now = time.Date(2126, 1, 1, 0, 0, 0, 0, time.UTC)
	ask := func(want int, why string) {
		t.Helper()
		if got := w.do(http.MethodGet, pathModels, ""); got.status != http.StatusOK || w.reached() != want {
			t.Errorf("%s: %d, %d reached, want %d", why, got.status, w.reached(), want)
		}
	}
	step := func(d time.Duration) {
		w.mu.Lock()
		w.now = w.now.Add(d)
		w.mu.Unlock()
	}
	ask(1, "first")
	step(listAge - time.Second)
	ask(1, "within the minute")
	step(time.Second)
	ask(2, "after a minute")
	w.provider(egress.WireOpenAI, func(p *egress.Provider) { p.Version++ })
	ask(3, "changed provider")
	w.mu.Lock()
	w.caller.Agent = "agent-2"
	w.mu.Unlock()
	ask(4, "another agent")
}

func TestProviderThatDoesNotListIsBelieved(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"error": jsonAnswer(http.StatusNotFound, `{}`), "no JSON": jsonAnswer(http.StatusOK, `<html>`), "no list": jsonAnswer(http.StatusOK, `{"data":{}}`),
		"too long": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"data":[`+strings.Repeat(" ", longestList)+`]}`)
		},
	} {
		w := newFixture(t, answer)
		w.provider(egress.WireOpenAI, func(p *egress.Provider) { p.Models = []string{"written-1", "openai-*"} })
		if got := w.do(http.MethodGet, pathModels, ""); got.status != http.StatusOK || !slices.Equal(idsOf(t, got.body), []string{"written-1"}) {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
		if got := w.do(http.MethodGet, pathModels+"/openai-7", ""); got.status != http.StatusOK {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
		if w.reached() != 1 {
			t.Errorf("%s: asked %d times", name, w.reached())
		}
	}
}

func TestListsAreBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"data":[`)
	for i := range maxModels + 500 {
		fmt.Fprintf(&b, `{"id":"openai-%d"},`, i)
	}
	b.WriteString(`{"id":"openai-last"}]}`)
	if models, err := readList([]byte(b.String()), egress.WireOpenAI); err != nil || len(models) != maxModels {
		t.Errorf("%d models, %v", len(models), err)
	}
	l := newLists()
	now := time.Unix(0, 0)
	for i := range 3 * maxLists {
		l.put(listKey{agent: fmt.Sprint(i)}, listed{until: now.Add(time.Hour)}, now)
	}
	if len(l.seen) > maxLists {
		t.Errorf("%d lists are kept", len(l.seen))
	}
}

func TestShadowedModelsAreListedOnce(t *testing.T) {
	w := newFixture(t, modelList)
	w.mu.Lock()
	second := w.providers[0]
	second.ID, second.Name, second.Models = "id-second", "second", []string{"openai-5", "openai-*", "whisper"}
	w.providers = append(w.providers, second)
	w.mu.Unlock()
	got := w.do(http.MethodGet, pathModels, "")
	if ids := idsOf(t, got.body); !slices.Equal(ids, []string{"openai-5", "openai-a/b", "whisper"}) {
		t.Errorf("%v", ids)
	}
}

func FuzzReadList(f *testing.F) {
	f.Add(`{"data":[{"id":"a"},{"id":"a","x":[{}]}]}`, "openai")
	f.Add(`{"models":[{"name":"a"},{"model":"b"}]}`, "ollama")
	f.Add(`{"data":[[[]]}`, "anthropic")
	f.Fuzz(func(t *testing.T, body, wire string) {
		models, err := readList([]byte(body), egress.Wire(wire))
		if err != nil && len(models) > 0 || len(models) > maxModels {
			t.Fatalf("%d models, %v", len(models), err)
		}
		for _, m := range models {
			if checkModel(m.id) != nil || !m.raw.IsValid() {
				t.Fatalf("%q: %q", m.id, m.raw)
			}
		}
		if !json.Valid(listOf(egress.Wire(wire), models)) {
			t.Fatal("the list is no JSON")
		}
	})
}
