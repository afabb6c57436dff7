package llm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/problem"
)

// Bounds of lists of models.
const (
	longestList  = 2 << 20
	maxModels    = 2000
	listTimeout  = 15 * time.Second // for all providers together
	listAge      = time.Minute
	listErrorAge = 10 * time.Second // how long a provider that did not answer is not asked again
	maxLists     = 64
	anthropicAPI = "2023-06-01"
)

// model is one entry of a list, as the wire has it.
type model struct {
	id  string
	raw jsontext.Value
}

// lists keeps what providers said about their models.
type lists struct {
	mu   sync.Mutex // guards what follows
	seen map[listKey]listed
}

// listKey has the agent in it, because its key may be its own, and shows what that key shows.
type listKey struct {
	provider, tenant, agent string
	version                 int64
}

type listed struct {
	models []model
	ok     bool
	until  time.Time
}

func newLists() *lists { return &lists{seen: map[listKey]listed{}} }

func (l *lists) get(k listKey, now time.Time) (listed, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	found, ok := l.seen[k]
	return found, ok && now.Before(found.until)
}

// put keeps a list. When there is no room, what is out of date goes, and then anything.
func (l *lists) put(k listKey, v listed, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.seen) >= maxLists {
		for other, old := range l.seen {
			if !now.Before(old.until) {
				delete(l.seen, other)
			}
		}
		for other := range l.seen {
			if len(l.seen) < maxLists {
				break
			}
			delete(l.seen, other)
		}
	}
	l.seen[k] = v
}

// serveList answers with the models of the caller, or with one of them.
func (h *Handler) serveList(w http.ResponseWriter, r *http.Request, e endpoint, c gateway.Caller, v view) {
	ctx, cancel := context.WithTimeout(r.Context(), listTimeout)
	defer cancel()
	id, one := strings.CutPrefix(r.URL.Path, pathModels+"/")
	if !one {
		h.answerJSON(w, listOf(e.wire, h.allModels(ctx, c, v, e.wire)))
		return
	}
	if p := checkModel(id); p != nil {
		h.refuse(w, r, e.wire, problem.New(problem.ModelUnknown, "do not retry: GET "+pathModels+" lists the models of this agent", "the path has no valid model name"))
		return
	}
	if m, ok := h.oneModel(ctx, c, v, e.wire, id); ok {
		h.answerJSON(w, m.raw)
		return
	}
	h.refuse(w, r, e.wire, unknownModel(e, id, v))
}

func (h *Handler) answerJSON(w http.ResponseWriter, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	// A client that left misses nothing.
	_, _ = w.Write(body)
}

// allModels are those that a request would find a provider for: names that operators wrote as they are, and for patterns
// what the provider says it has. A provider that does not answer is left out.
func (h *Handler) allModels(ctx context.Context, c gateway.Caller, v view, wire egress.Wire) []model {
	var out []model
	seen := map[string]bool{}
	add := func(p egress.Provider, m model) {
		// A model that another provider would serve is in that one's list.
		if len(out) >= maxModels || seen[m.id] {
			return
		}
		if serves, _, ok := v.Provider(wire, m.id); ok && serves.ID == p.ID {
			seen[m.id] = true
			out = append(out, m)
		}
	}
	for _, p := range v.Providers() {
		if p.Wire != wire {
			continue
		}
		patterns := false
		for _, pattern := range p.Models {
			if strings.Contains(pattern, "*") {
				patterns = true
			} else {
				add(p, written(p, pattern))
			}
		}
		if !patterns {
			continue
		}
		said, _ := h.askModels(ctx, c, v, p)
		for _, m := range said {
			add(p, m)
		}
	}
	return out
}

// oneModel finds a model. A provider that does not say what it has is believed to have what the operator wrote.
func (h *Handler) oneModel(ctx context.Context, c gateway.Caller, v view, wire egress.Wire, id string) (model, bool) {
	p, _, ok := v.Provider(wire, id)
	if !ok {
		return model{}, false
	}
	for _, pattern := range p.Models {
		if pattern == id {
			return written(p, id), true
		}
	}
	said, ok := h.askModels(ctx, c, v, p)
	for _, m := range said {
		if m.id == id {
			return m, true
		}
	}
	return written(p, id), !ok
}

// written is the entry of a model that the provider was not asked about.
func written(p egress.Provider, id string) model {
	since := max(p.CreatedAt.Unix(), 0)
	at := time.Unix(since, 0).UTC().Format(time.RFC3339)
	var entry map[string]any
	switch p.Wire {
	case egress.WireAnthropic:
		entry = map[string]any{"type": "model", "id": id, "display_name": id, "created_at": at}
	case egress.WireOllama:
		entry = map[string]any{"name": id, "model": id, "modified_at": at, "size": 0, "digest": "", "details": map[string]any{}}
	default:
		entry = map[string]any{"id": id, "object": "model", "created": since, "owned_by": p.Name}
	}
	// Texts and numbers always encode.
	raw, _ := json.Marshal(entry)
	return model{id: id, raw: raw}
}

// listOf is a list as the wire has it.
func listOf(wire egress.Wire, models []model) []byte {
	entries := make([]jsontext.Value, 0, len(models))
	for _, m := range models {
		entries = append(entries, m.raw)
	}
	var list map[string]any
	switch wire {
	case egress.WireAnthropic:
		list = map[string]any{"data": entries, "has_more": false, "first_id": nil, "last_id": nil}
		if len(models) > 0 {
			list["first_id"], list["last_id"] = models[0].id, models[len(models)-1].id
		}
	case egress.WireOllama:
		list = map[string]any{"models": entries}
	default:
		list = map[string]any{"object": "list", "data": entries}
	}
	// Every entry has been checked to be JSON.
	out, _ := json.Marshal(list)
	return out
}

// askModels is what a provider says about its models; ok is false when it did not answer.
func (h *Handler) askModels(ctx context.Context, c gateway.Caller, v view, p egress.Provider) (models []model, ok bool) {
	k := listKey{provider: p.ID, tenant: c.Tenant, agent: c.Agent, version: p.Version}
	if known, ok := h.lists.get(k, h.Now()); ok {
		return known.models, known.ok
	}
	models, err := h.fetchModels(ctx, c, v, p)
	if ctx.Err() == nil || err == nil {
		age := listAge
		if err != nil {
			age = listErrorAge
		}
		h.lists.put(k, listed{models: models, ok: err == nil, until: h.Now().Add(age)}, h.Now())
	}
	if err != nil {
		h.Log.Warn("provider did not list its models", "agent", c.Agent, "provider", p.Name, "code", problem.CodeOf(err), "error", err)
	}
	return models, err == nil
}

// fetchModels asks a provider for its models.
func (h *Handler) fetchModels(ctx context.Context, c gateway.Caller, v view, p egress.Provider) ([]model, error) {
	sample, ok := sampleModel(v, p)
	if !ok {
		// All its patterns are behind those of other providers.
		return nil, nil
	}
	key, refusal := h.key(ctx, c, p)
	if refusal != nil {
		return nil, refusal
	}
	defer func() { key.values.Wipe() }()
	path, query, header := pathModels, url.Values{}, http.Header{"Accept": {"application/json"}}
	switch p.Wire {
	case egress.WireAnthropic:
		query.Set("limit", "1000")
		header.Set("Anthropic-Version", anthropicAPI)
	case egress.WireOllama:
		path = pathTags
	}
	resp, _, refusal := h.send(ctx, call{
		provider: p, model: sample, caller: c, key: key, method: http.MethodGet, path: path, query: query.Encode(), header: header,
	})
	if refusal != nil {
		return nil, refusal
	}
	defer func() { _ = resp.Body.Close() }() // it has been read
	if resp.StatusCode != http.StatusOK {
		return nil, problem.New(problem.UpstreamFailed, "", "the provider %s answered with the status %d", p.Name, resp.StatusCode)
	}
	body, err := io.ReadAll(&bounded{Reader: resp.Body, left: longestList})
	if err != nil {
		return nil, problem.Wrap(err, problem.UpstreamFailed, "", "the list of the provider %s cannot be read", p.Name)
	}
	return readList(body, p.Wire)
}

// readList reads a provider's list. Entries that make no sense are left out.
func readList(body []byte, wire egress.Wire) ([]model, error) {
	object := jsontext.Value(bytes.TrimSpace(body))
	if !isObject(object) {
		return nil, errors.New("the list is not a JSON object that can be read")
	}
	name, ident := "data", "id"
	if wire == egress.WireOllama {
		name, ident = "models", "model"
	}
	list, _, ok := member(object, name)
	if !ok || list.Kind() != '[' {
		return nil, errors.New("the list has no models")
	}
	d := jsontext.NewDecoder(bytes.NewBuffer(list))
	if _, err := d.ReadToken(); err != nil {
		return nil, err
	}
	var out []model
	for d.PeekKind() != ']' && len(out) < maxModels {
		entry, err := d.ReadValue()
		if err != nil {
			return nil, err
		}
		if entry.Kind() != '{' {
			continue
		}
		value, _, ok := member(entry, ident)
		if !ok && wire == egress.WireOllama {
			value, _, ok = member(entry, "name")
		}
		if !ok || value.Kind() != '"' {
			continue
		}
		id, err := jsontext.AppendUnquote(nil, value)
		if err != nil || checkModel(string(id)) != nil {
			continue
		}
		out = append(out, model{id: string(id), raw: entry.Clone()})
	}
	return out, nil
}
