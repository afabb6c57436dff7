package llm

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/gateway/access"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/internal/vault"
)

func TestOptionsSayEverythingThatIsMissing(t *testing.T) {
	_, err := New(Options{Options: access.Options{Log: slog.New(slog.DiscardHandler)}})
	for _, name := range []string{"gateway", "views", "book", "secrets", "clock"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named in %v", name, err)
		}
	}
}

func TestKeyGoesInWhereTheProviderWantsIt(t *testing.T) {
	for _, c := range []struct {
		path, model, answer string
		header, value       string
		change              func(*egress.Provider)
	}{
		{pathChat, "openai-mini", chatAnswer, "Authorization", "Bearer " + canary, nil},
		{pathResponses, "openai-mini", responsesAnswer, "Authorization", "Bearer " + canary, nil},
		{"/v1/embeddings", "openai-e", embeddingsAnswer, "Authorization", "Bearer " + canary, nil},
		{"/v1/messages", "anthropic-1", messagesAnswer, "X-Api-Key", canary, nil},
		{"/v1/messages/count_tokens", "anthropic-1", `{"input_tokens":3}`, "X-Api-Key", canary, nil},
		{"/api/chat", "ollama-1", ollamaAnswer, "Authorization", "Bearer " + canary, nil},
		{"/api/generate", "ollama-1", ollamaAnswer, "Authorization", "Bearer " + canary, nil},
		{pathChat, "openai-mini", chatAnswer, "Api-Key", canary, func(p *egress.Provider) {
			p.Inject = egress.Injection{Type: egress.InjectHeader, Name: "api-key"}
		}},
		{pathChat, "openai-mini", chatAnswer, "Authorization", "", func(p *egress.Provider) { p.Inject.Type = egress.InjectNone }},
	} {
		w := newFixture(t, jsonAnswer(http.StatusOK, c.answer))
		if c.change != nil {
			w.provider(egress.WireOpenAI, c.change)
		}
		body := askBody(c.path, c.model)
		got := w.post(c.path, body, "Authorization", "Bearer jail", "X-Api-Key", "jail", "Api-Key", "jail", "X-Goog-Api-Key", "jail", "Cookie", "jail=1",
			"Proxy-Authorization", "jail", "Anthropic-Version", "2023-06-01", "Anthropic-Beta", "tools", "OpenAI-Beta", "assistants=v2",
			"X-Forwarded-For", "jail", "Connection", "Anthropic-Beta", "X-Secret", "jail", "OpenAI-Organization", "jail", "OpenAI-Project", "jail")
		if got.status != http.StatusOK || got.body != c.answer {
			t.Fatalf("%s: %d %s %v", c.path, got.status, got.body, got.err)
		}
		r, sent := w.last()
		if c.path == pathResponses {
			sent = strings.Replace(sent, `"include":["reasoning.encrypted_content"],"store":false,`, "", 1) // see TestResponsesAreNotKeptByTheProvider
		}
		if r.Header.Get(c.header) != c.value || r.URL.Path != c.path || sent != body || r.Method != http.MethodPost {
			t.Errorf("%s: the provider got %s %s with %s %q: %s", c.path, r.Method, r.URL.Path, c.header, r.Header.Get(c.header), sent)
		}
		for name, values := range r.Header {
			if strings.Contains(strings.Join(values, " "), "jail") {
				t.Errorf("%s: the provider got the agent's own %s: %q", c.path, name, values)
			}
		}
		if r.Header.Get("Anthropic-Version") != "2023-06-01" || r.Header.Get("Openai-Beta") != "assistants=v2" || r.Header.Get("Accept-Encoding") != "identity" {
			t.Errorf("%s: the provider got %v", c.path, r.Header)
		}
	}
}

func TestSecretIsTheAgentsOwnThenTheTenants(t *testing.T) {
	w := newFixture(t, jsonAnswer(http.StatusOK, chatAnswer))
	own := vault.SecretName{Tenant: "default", Agent: "agent-1", Service: "openai"}
	w.secrets[own] = "sk-of-the-agent-itself"
	w.post(pathChat, chatBody("openai-mini"))
	if r, _ := w.last(); r.Header.Get("Authorization") != "Bearer sk-of-the-agent-itself" {
		t.Errorf("sent %q", r.Header.Get("Authorization"))
	}
	if len(w.used) != 1 || w.used[0] != own {
		t.Errorf("used %v", w.used)
	}
}

func TestMissingKeyIsRefusedBeforeAnythingIsSentOrDebited(t *testing.T) {
	for name, change := range map[string]func(*fixture){
		"no secret":    func(w *fixture) { clear(w.secrets) },
		"named secret": func(w *fixture) { w.provider(egress.WireOllama, func(p *egress.Provider) { p.Secret = "other" }) },
		"short secret": func(w *fixture) { w.secrets[vault.SecretName{Tenant: "default", Service: "ollama"}] = "short" },
		"line ends": func(w *fixture) {
			w.secrets[vault.SecretName{Tenant: "default", Service: "ollama"}] = "sk-0123456789\r\nHost: x"
		},
	} {
		w := newFixture(t, jsonAnswer(http.StatusOK, ollamaAnswer))
		w.provider(egress.WireOllama, func(p *egress.Provider) { p.Inject.Type = egress.InjectBearer })
		change(w)
		got := w.post("/api/chat", chatBody("ollama-1"))
		if got.status < 400 || got.header.Get(headerRefusal) == "" || w.reached() != 0 || w.book.count() != 0 || len(w.errands) != 0 {
			t.Errorf("%s: %d %s, %d reached, %d debited", name, got.status, got.body, w.reached(), w.book.count())
		}
		if strings.Contains(got.body+w.log.String(), "0123456789") {
			t.Errorf("%s: the key is shown: %s", name, got.body)
		}
	}
	// A local Ollama needs no key, and gets none.
	w := newFixture(t, jsonAnswer(http.StatusOK, ollamaAnswer))
	clear(w.secrets)
	if got := w.post("/api/chat", chatBody("ollama-1")); got.status != http.StatusOK {
		t.Fatalf("%d %s", got.status, got.body)
	}
	if r, _ := w.last(); r.Header.Get("Authorization") != "" || w.errands[0].Credential {
		t.Errorf("sent %q", r.Header.Get("Authorization"))
	}
}

func TestKeyIsNotInTheAnswer(t *testing.T) {
	w := newFixture(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Request-Id", r.Header.Get("Authorization"))
		w.Header().Set("Set-Cookie", "__cf_bm=1")
		w.Header().Set("Openai-Organization", "operator-org")
		w.Header().Set("Clawjail-Refusal", "forged")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.WriteString(w, `{"error":{"message":"you sent `+r.Header.Get("Authorization")+`"}}`)
	})
	got := w.post(pathChat, chatBody("openai-mini"))
	if got.status != http.StatusTooManyRequests || !strings.Contains(got.body, "you sent") {
		t.Fatalf("%d %s", got.status, got.body)
	}
	all := got.body + w.log.String()
	for name, values := range got.header {
		all += name + strings.Join(values, " ")
	}
	for _, word := range []string{canary, "operator-org", "__cf_bm", "forged"} {
		if strings.Contains(all, word) {
			t.Errorf("%q is in %s", word, all)
		}
	}
}

func TestRefusedKeyIsSaidInTheGatewaysWords(t *testing.T) {
	w := newFixture(t, jsonAnswer(http.StatusUnauthorized, `{"error":{"message":"Incorrect API key provided: sk-canar***********cdef."}}`))
	got := w.post(pathChat, chatBody("openai-mini"))
	if got.status < 400 || got.status >= 500 || strings.Contains(got.body, "sk-canar") || !strings.Contains(got.body, "operator") || got.header.Get("X-Should-Retry") != "false" {
		t.Errorf("%d %s %v", got.status, got.body, got.header)
	}
	if total := w.book.total(); total.Input != 0 || total.Output != 0 || total.MicroCost != 0 {
		t.Errorf("debited %+v", total)
	}
}

func TestRedirectsOfProvidersAreNotFollowed(t *testing.T) {
	w := newFixture(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "http://127.0.0.1:9/")
		w.WriteHeader(http.StatusTemporaryRedirect)
	})
	got := w.post(pathChat, chatBody("openai-mini"))
	if got.status != http.StatusBadGateway || got.header.Get("Location") != "" || got.header.Get("X-Should-Retry") != "false" || w.reached() != 1 {
		t.Errorf("%d %v, %d reached", got.status, got.header, w.reached())
	}
}

// message is the text that the SDK of a wire shows.
func message(t *testing.T, wire egress.Wire, body string) (text, kind, code string) {
	t.Helper()
	var out struct {
		Type  string          `json:"type"`
		Error json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal([]byte(body), &out); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	if wire == egress.WireOllama {
		if err := json.Unmarshal(out.Error, &text); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		return text, "", ""
	}
	var inner struct{ Message, Type, Code string }
	if err := json.Unmarshal(out.Error, &inner); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	if (wire == egress.WireAnthropic) != (out.Type == "error") {
		t.Errorf("%s: the type is %q", body, out.Type)
	}
	return inner.Message, inner.Type, inner.Code
}

func TestUnknownModelIsSaidInTheShapeOfTheWire(t *testing.T) {
	for _, c := range []struct {
		path string
		wire egress.Wire
		kind string
	}{
		{pathChat, egress.WireOpenAI, "invalid_request_error"}, {"/v1/embeddings", egress.WireOpenAI, "invalid_request_error"},
		{"/v1/messages", egress.WireAnthropic, "not_found_error"}, {"/api/chat", egress.WireOllama, ""},
	} {
		w := newFixture(t, jsonAnswer(http.StatusOK, chatAnswer))
		got := w.post(c.path, chatBody("nobodys"))
		text, kind, _ := message(t, c.wire, got.body)
		if got.status != http.StatusNotFound || got.header.Get(headerRefusal) != problem.ModelUnknown || got.header.Get("X-Should-Retry") != "false" ||
			kind != c.kind || !strings.Contains(text, `"nobodys"`) || !strings.Contains(text, "provider add") {
			t.Errorf("%s: %d %v %s", c.path, got.status, got.header, got.body)
		}
		if w.reached() != 0 || w.book.count() != 0 {
			t.Errorf("%s: %d reached, %d debited", c.path, w.reached(), w.book.count())
		}
	}
	w := newFixture(t, jsonAnswer(http.StatusOK, chatAnswer))
	if got := w.post(pathChat, chatBody("anthropic-1")); !strings.Contains(got.body, "/v1/messages") {
		t.Errorf("the other wire is not named: %s", got.body)
	}
}

func TestProvidersOfOtherAgentsAreNotThere(t *testing.T) {
	w := newFixture(t, jsonAnswer(http.StatusOK, chatAnswer))
	w.provider(egress.WireOpenAI, func(p *egress.Provider) { p.Agent = "agent-2" })
	other := w.post(pathChat, chatBody("openai-mini"))
	none := w.post(pathChat, chatBody("nothing-mini"))
	if other.status != http.StatusNotFound || strings.ReplaceAll(other.body, "openai-mini", "nothing-mini") != none.body || w.reached() != 0 {
		t.Errorf("%d %s, unlike %s", other.status, other.body, none.body)
	}
	if got := w.do(http.MethodGet, pathModels, ""); strings.Contains(got.body, "openai") {
		t.Errorf("listed: %s", got.body)
	}
	w.mu.Lock()
	w.caller.Agent = "agent-2"
	w.mu.Unlock()
	if got := w.post(pathChat, chatBody("openai-mini")); got.status != http.StatusOK {
		t.Errorf("its own agent: %d %s", got.status, got.body)
	}
}

func TestRefusals(t *testing.T) {
	limited := problem.New(problem.RateLimited, "wait", "too many requests").With("retry_after", 7)
	for _, c := range []struct {
		name, method, path, body string
		headers                  []string
		change                   func(*fixture)
		status                   int
		code, retry, after       string
	}{
		{name: "no agent", change: func(w *fixture) { w.caller.Agent = "" }, status: 401, code: problem.Unauthorized, retry: "false"},
		{name: "page of another site", headers: []string{"Sec-Fetch-Site", "cross-site"}, status: 403, code: problem.Forbidden, retry: "false"},
		{name: "page of a neighbour", headers: []string{"Sec-Fetch-Site", "same-site"}, status: 403, code: problem.Forbidden, retry: "false"},
		{name: "origin", headers: []string{"Origin", "https://evil.example"}, status: 403, code: problem.Forbidden, retry: "false"},
		{name: "null origin", headers: []string{"Origin", "null"}, status: 403, code: problem.Forbidden, retry: "false"},
		{name: "wrong method", method: http.MethodGet, status: 405, code: problem.Unsupported, retry: "false"},
		{name: "wrong path", path: "/v1/files", status: 404, code: problem.NotFound, retry: "false"},
		{name: "path below", path: pathChat + "/x", status: 404, code: problem.NotFound, retry: "false"},
		{name: "no body", body: " ", status: 400, code: problem.BadJSON, retry: "false"},
		{name: "compressed", headers: []string{"Content-Encoding", "gzip"}, status: 400, code: problem.BadRequest, retry: "false"},
		{name: "rate", change: func(w *fixture) { w.limited = limited }, status: 429, code: problem.RateLimited, retry: "true", after: "7"},
		{name: "budget", change: func(w *fixture) { w.book.limit = 10 }, status: 429, code: problem.BudgetExceeded, retry: "false", after: "3601"},
		{name: "database", change: func(w *fixture) { w.book.err = io.ErrUnexpectedEOF }, status: 503, code: problem.DatabaseUnavailable, retry: "true"},
		{name: "policy", change: func(w *fixture) { w.refusal = problem.New(problem.AddressDenied, "", "private") }, status: 403, code: problem.AddressDenied, retry: "false"},
		{name: "policy's own", change: func(w *fixture) { w.refusal = problem.New("scheme_denied", "", "http") }, status: 403, code: "scheme_denied", retry: "false"},
		{name: "no connection", change: func(w *fixture) { w.refusal = problem.New(problem.UpstreamUnreachable, "", "closed") }, status: 502, code: problem.UpstreamUnreachable, retry: "true"},
		{name: "base URL", change: func(w *fixture) {
			w.provider(egress.WireOpenAI, func(p *egress.Provider) { p.BaseURL = "http://user:pass@127.0.0.1/" })
		}, status: 502, code: problem.UpstreamFailed, retry: "false"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newFixture(t, jsonAnswer(http.StatusOK, chatAnswer))
			w.now = time.Date(2126, 1, 2, 22, 59, 59, 0, time.UTC) // deadlines are in the future
			if c.change != nil {
				c.change(w)
			}
			method, path, body := http.MethodPost, pathChat, chatBody("openai-mini")
			if c.method != "" {
				method, body = c.method, ""
			}
			if c.path != "" {
				path = c.path
			}
			if c.body != "" {
				body = c.body
			}
			got := w.do(method, path, body, c.headers...)
			_, _, code := message(t, egress.WireOpenAI, got.body)
			if got.status != c.status || code != c.code || got.header.Get(headerRefusal) != c.code || got.header.Get("X-Should-Retry") != c.retry || got.header.Get("Retry-After") != c.after {
				t.Errorf("%d %v %s", got.status, got.header, got.body)
			}
			if w.reached() != 0 {
				t.Error("the provider was asked")
			}
			if total := w.book.total(); total != (egress.Tokens{}) {
				t.Errorf("debited %+v", total)
			}
		})
	}
}

func TestPageOfTheGatewayItselfMayAsk(t *testing.T) {
	w := newFixture(t, jsonAnswer(http.StatusOK, chatAnswer))
	if got := w.post(pathChat, chatBody("openai-mini"), "Origin", w.front.URL, "Sec-Fetch-Site", "same-origin"); got.status != http.StatusOK {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// endless is a body that never ends by itself.
type endless struct{ left int }

func (e *endless) Read(p []byte) (int, error) {
	if e.left <= 0 {
		return 0, io.EOF
	}
	n := min(len(p), e.left)
	for i := range p[:n] {
		p[i] = ' '
	}
	e.left -= n
	return n, nil
}

func TestLargeBodiesAreRefused(t *testing.T) {
	w := newFixture(t, jsonAnswer(http.StatusOK, chatAnswer))
	for name, length := range map[string]int64{"announced": longestBody + 1, "chunked": -1} {
		r := w.request(http.MethodPost, pathChat, "")
		r.Body, r.ContentLength = io.NopCloser(&endless{left: longestBody + 1}), length
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Do(r)
		if err != nil {
			if name == "announced" {
				continue // the refusal came while the body was being sent
			}
			t.Fatal(err)
		}
		if resp.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("%s: %d", name, resp.StatusCode)
		}
		_ = resp.Body.Close()
	}
	if n := w.heldNow(); n != 0 {
		t.Errorf("%d bytes are still held", n)
	}
	// A body that just fits is read.
	body := chatBody("openai-mini")
	if got := w.post(pathChat, body+strings.Repeat(" ", longestBody-len(body))); got.status != http.StatusOK {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestBodyThatDripsIsRefused(t *testing.T) {
	w := newFixture(t, jsonAnswer(http.StatusOK, chatAnswer))
	w.now = time.Date(2126, 1, 1, 0, 0, 0, 0, time.UTC)
	body, drip := io.Pipe()
	r := w.request(http.MethodPost, pathChat, "")
	r.Body, r.ContentLength = body, -1
	status := make(chan int, 1)
	go func() {
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
		if err != nil {
			status <- 0
			return
		}
		_ = resp.Body.Close()
		status <- resp.StatusCode
	}()
	_, _ = io.WriteString(drip, `{"model":`)
	testenv.Eventually(t, patience, func() bool { return w.heldNow() > 0 }, "the body is not read")
	w.mu.Lock()
	w.now = w.now.Add(bodyTimeout + time.Second)
	w.mu.Unlock()
	_, _ = io.WriteString(drip, `"openai-1"}`)
	_ = drip.Close()
	if got := <-status; got != http.StatusBadRequest || w.reached() != 0 {
		t.Errorf("%d, %d reached", got, w.reached())
	}
}

func TestMemoryOfBodiesIsSharedAndBounded(t *testing.T) {
	h := newHeld(Options{Options: access.Options{Tenants: func() int { return 2 }}})
	of := func(tenant, agent string) quota.Holder { return quota.Holder{Tenant: tenant, Agent: agent} }
	may := func(want bool, tenant, agent string, n int64) {
		t.Helper()
		if err := h.Take(of(tenant, agent), n); (err == nil) != want {
			t.Errorf("%s of %s takes %d: %v", agent, tenant, n, err)
		}
	}
	may(true, "acme", "a", maxHeldByAgent)
	may(false, "acme", "a", 1)
	may(true, "acme", "b", maxHeldByAgent)
	may(false, "acme", "c", maxHeldByAgent) // 80 % of 256 MiB are two times 80 and some
	may(true, "rival", "a", maxHeldByAgent)
	h.Give(of("acme", "a"), maxHeldByAgent)
	may(true, "acme", "c", maxHeldByAgent)
	// A full share is an answer that says when to come again.
	w := newFixture(t, jsonAnswer(http.StatusOK, chatAnswer))
	if err := w.held.Take(quota.Holder{Tenant: "default", Agent: "agent-1"}, maxHeldByAgent); err != nil {
		t.Fatal(err)
	}
	if got := w.post(pathChat, chatBody("openai-mini")); got.status != http.StatusTooManyRequests || got.header.Get("Retry-After") != "5" || w.reached() != 0 {
		t.Errorf("%d %s", got.status, got.body)
	}
	if n := w.heldNow(); n != maxHeldByAgent {
		t.Errorf("held %d", n)
	}
}

func TestUpstreamURLs(t *testing.T) {
	for _, c := range []struct {
		wire             egress.Wire
		base, path, want string
	}{
		{egress.WireOpenAI, "https://api.openai.com", pathChat, "https://api.openai.com/v1/chat/completions"},
		{egress.WireOpenAI, "https://api.openai.com/v1/", pathChat, "https://api.openai.com/v1/chat/completions"},
		{egress.WireOpenAI, "https://openrouter.ai/api/v1", pathModels, "https://openrouter.ai/api/v1/models"},
		{egress.WireOpenAI, "https://example.com/v1beta/openai/", pathChat, "https://example.com/v1beta/openai/chat/completions"},
		{egress.WireOpenAI, "https://example.com/a%2Fb", pathChat, "https://example.com/a%2Fb/chat/completions"},
		{egress.WireAnthropic, "https://api.anthropic.com", "/v1/messages", "https://api.anthropic.com/v1/messages"},
		{egress.WireAnthropic, "https://api.anthropic.com/v1", "/v1/messages", "https://api.anthropic.com/v1/messages"},
		{egress.WireAnthropic, "https://example.com/anthropic", "/v1/messages", "https://example.com/anthropic/v1/messages"},
		{egress.WireOllama, "http://10.0.0.5:11434", "/api/chat", "http://10.0.0.5:11434/api/chat"},
		{egress.WireOllama, "http://10.0.0.5:11434/api", "/api/chat", "http://10.0.0.5:11434/api/chat"},
	} {
		u, p := upstreamURL(egress.Provider{Wire: c.wire, Upstream: egress.Upstream{BaseURL: c.base}}, c.path)
		if p != nil || u.String() != c.want {
			t.Errorf("%s and %s are %v, %v", c.base, c.path, u, p)
		}
	}
	for _, base := range []string{"", "ftp://x", "https://", "/v1", "https://u:p@x/", "https://x/?a=b", "https://x/#a", "https://x/%zz"} {
		if u, p := upstreamURL(egress.Provider{Wire: egress.WireOpenAI, Upstream: egress.Upstream{BaseURL: base}}, pathChat); p == nil {
			t.Errorf("%q is %v", base, u)
		}
	}
}

func TestQueryIsOnlyWhatSwitchesVersions(t *testing.T) {
	w := newFixture(t, jsonAnswer(http.StatusOK, messagesAnswer))
	w.post("/v1/messages?beta=true&key=jail&api-version=2026-01-01", chatBody("anthropic-1"))
	if r, _ := w.last(); r.URL.RawQuery != "api-version=2026-01-01&beta=true" {
		t.Errorf("the query is %q", r.URL.RawQuery)
	}
}

func TestErrandsSayWhoAndHowLong(t *testing.T) {
	w := newFixture(t, jsonAnswer(http.StatusOK, chatAnswer))
	w.post(pathChat, chatBody("openai-mini"))
	e := w.errands[0]
	if e.Caller.Agent != "agent-1" || e.Surface != gateway.SurfaceLLM || e.Permit == nil || e.Service != "openai" || !e.Credential ||
		e.HeaderTimeout != 0 || e.IdleTimeout != 0 || e.Lifetime != lifetime {
		t.Errorf("%+v", e)
	}
}

func TestRoutesAreAnswered(t *testing.T) {
	w := newFixture(t, jsonAnswer(http.StatusOK, chatAnswer))
	for _, path := range Routes() {
		if strings.HasSuffix(path, "/") {
			path += "some-model"
		}
		if got := w.do(http.MethodPut, path, "{}"); got.status != http.StatusMethodNotAllowed || got.header.Get("Allow") == "" {
			t.Errorf("%s: %d", path, got.status)
		}
	}
}

func (w *fixture) heldNow() int64 { return w.held.Amounts(quota.Holder{})[0].Held.All }
