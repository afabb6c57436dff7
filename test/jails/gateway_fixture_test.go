//go:build linux

package jails

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/agentenv"
	"github.com/clawjail/clawjail/internal/audit/audittest"
	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/gateway/access"
	"github.com/clawjail/clawjail/internal/gateway/auditlog"
	"github.com/clawjail/clawjail/internal/gateway/llm"
	"github.com/clawjail/clawjail/internal/gateway/service"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/netguard"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/open"
	"github.com/clawjail/clawjail/internal/vault"
	"github.com/clawjail/clawjail/test/testkit"
)

// Only the vault and the servers know these.
const (
	gitToken    = "ghp-canary-5d1e7a90c4"
	modelKey    = "sk-canary-77ab03f19e"
	apiKey      = "api-canary-c0ffee4411"
	clientLimit = time.Minute
)

// exit is a gateway with everything that decides behind it, servers outside, and an agent on an island before it.
type exit struct {
	t        *testing.T
	island   *island
	gateway  *gateway.Gateway
	log      *lines
	ca       string
	services []egress.Service
	models   []egress.Provider
	repo     string // where the git server keeps repositories
	plain    *httptest.Server
	secure   *httptest.Server
	acks     chan struct{}

	mu   sync.Mutex // guards what follows
	seen []string   // method and path of what came in outside
}

// lines is a log that is read by several.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newExit(t *testing.T) *exit {
	t.Helper()
	x := &exit{t: t, island: newIsland(t), log: &lines{}, acks: make(chan struct{}, 10), repo: filepath.Join(t.TempDir(), "repositories")}
	certificate, ca := x.certify("web.example", "git.example", "models.example")
	x.plain = httptest.NewServer(x.outside())
	x.secure = httptest.NewUnstartedServer(x.outside())
	x.secure.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	x.secure.Config.ErrorLog = slog.NewLogLogger(slog.NewTextHandler(x.log, nil), slog.LevelInfo) // clients that do not trust it
	x.secure.StartTLS()
	t.Cleanup(func() {
		for _, s := range []*httptest.Server{x.plain, x.secure} {
			s.CloseClientConnections()
			s.Close()
		}
	})
	x.open(ca)
	return x
}

// certify makes an authority that has one server, and a bundle of it.
func (x *exit) certify(names ...string) (tls.Certificate, *x509.CertPool) {
	x.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		x.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "outside"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: names, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		x.t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	x.ca = filepath.Join(x.t.TempDir(), "ca.pem")
	if err := os.WriteFile(x.ca, text, 0o644); err != nil {
		x.t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// open opens everything that decides, and the gateway.
func (x *exit) open(ca *x509.CertPool) {
	t, ctx := x.t, x.t.Context()
	t.Helper()
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(dir, open.Folder), 0o700))
	db, err := open.Open(ctx, "", dir)
	must(err)
	t.Cleanup(func() { must(db.Close()) })
	records, _ := audittest.Open(t, db)
	secrets, err := vault.Open(ctx, vault.Options{KeyFile: filepath.Join(dir, "vault.key"), Store: db, Now: time.Now})
	must(err)
	people, err := identity.Open(ctx, identity.Options{Store: db, Now: time.Now, Audit: records,
		Recheck: identity.DefaultRecheck, RateLimit: identity.DefaultRateLimit()})
	must(err)
	book, err := egress.Open(ctx, egress.Options{Store: db, Identity: people, Audit: records, Now: time.Now, Recheck: time.Second})
	must(err)

	who := func(c gateway.Caller) egress.Who { return egress.Who{Tenant: c.Tenant, Agent: c.Agent, Base: c.Policy} }
	views := func(c gateway.Caller) *egress.EffectivePolicy { return book.View(who(c)) }
	mux := http.NewServeMux()
	log := slog.New(slog.NewTextHandler(x.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	x.gateway, err = gateway.New(gateway.Config{
		Records: auditlog.New(records), Policy: func(c gateway.Caller) *policy.Compiled { return views(c).Proxy() }, Used: func(ctx context.Context, rule string) (bool, bool) {
			return book.Used(ctx, rule), egress.ForOneUse(rule)
		}, Keys: people,
		Networks: func() *netguard.Networks { return netguard.NewNetworks(nil, nil) },
		Roots:    ca, Local: mux, Logger: log, Limits: gateway.DefaultLimits(),
	})
	must(err)
	common := access.Options{Gateway: x.gateway, Views: views, Secrets: secrets, Log: log, Now: time.Now}
	routes, err := service.New(common)
	must(err)
	models, err := llm.New(llm.Options{Options: common, Book: book})
	must(err)
	mux.Handle(service.Prefix, routes)
	mux.Handle("/v1/", models)

	admin := identity.Principal{Kind: identity.KindAdmin, ID: "admin", Name: "admin", Role: identity.RoleAdmin}
	_, agent, err := people.CreateAgent(ctx, admin, store.DefaultTenant, "writer", time.Hour)
	must(err)
	here := netip.MustParseAddr("127.0.0.1")
	_, err = book.AddRule(ctx, admin, egress.Rule{Meta: egress.Meta{Tenant: agent.Tenant}, Rule: policy.Rule{Name: "web", Action: policy.Allow,
		Host: policy.MustParsePattern("web.example"), Ports: policy.Ports(port(x.plain), port(x.secure)), Address: here}})
	must(err)
	base := func(host string) string { return fmt.Sprintf("https://%s:%d", host, port(x.secure)) }
	for _, s := range []egress.Service{
		{
			Name: "forge", Upstream: egress.Upstream{BaseURL: base("git.example") + "/git", Address: here}, Allow: []egress.Allowance{{}},
			Inject: egress.Injection{Type: egress.InjectBasic, User: "x-access-token"}, Git: "https://git.example/",
		},
		{
			Name: "api", Upstream: egress.Upstream{BaseURL: base("web.example") + "/keyed", Address: here}, Allow: []egress.Allowance{{Methods: []string{"GET"}}},
			Inject: egress.Injection{Type: egress.InjectHeader, Name: "X-Key"}, Env: map[string]string{"API_URL": "{url}"},
		},
	} {
		s.Tenant = agent.Tenant
		s, err = book.PutService(ctx, admin, s)
		must(err)
		x.services = append(x.services, s)
	}
	for _, p := range []egress.Provider{
		{Name: "openai", Upstream: egress.Upstream{BaseURL: base("models.example") + "/v1", Address: here, Secret: "models"}, Wire: egress.WireOpenAI, Models: []string{"gpt-*", "embed-*"}},
		{Name: "anthropic", Upstream: egress.Upstream{BaseURL: base("models.example"), Address: here, Secret: "models"}, Wire: egress.WireAnthropic, Models: []string{"claude-*"}},
	} {
		p.Tenant = agent.Tenant
		p, err = book.PutProvider(ctx, admin, p)
		must(err)
		x.models = append(x.models, p)
	}
	secrets.BindBy(func(_ context.Context, n vault.SecretName) ([]vault.Destination, error) {
		return vault.ParseDestinations(book.Origins(n.Tenant, n.Agent, n.Service))
	})
	for name, value := range map[string]string{"forge": gitToken, "api": apiKey, "models": modelKey} {
		must(secrets.PutSecret(ctx, vault.SecretName{Tenant: agent.Tenant, Service: name}, secret.New([]byte(value))))
	}
	must(x.gateway.Admit(here, gateway.Caller{Jail: "writer", Tenant: agent.Tenant, Agent: agent.ID, Actor: "agent:" + agent.ID, Policy: policy.Only()}))

	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	ln := x.island.listen(t, "127.0.0.1:3000")
	served := make(chan error, 1)
	go func() { served <- x.gateway.Serve(serving, ln) }()
	t.Cleanup(func() {
		stop()
		if err := errors.Join(x.gateway.Close(), <-served); err != nil {
			t.Error(err)
		}
		book.Close()
		people.Close()
		for _, value := range secretsOfTest() {
			if strings.Contains(x.log.String(), value) {
				t.Errorf("the log has %s", value)
			}
		}
	})
}

func secretsOfTest() []string { return []string{gitToken, modelKey, apiKey} }

func port(s *httptest.Server) uint16 { return uint16(s.Listener.Addr().(*net.TCPAddr).Port) }

// outside is what the servers answer.
func (x *exit) outside() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/hello", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	mux.HandleFunc("/keyed/hello", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Key") != apiKey {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, "hello")
	})
	mux.HandleFunc("/ack", func(http.ResponseWriter, *http.Request) { x.acks <- struct{}{} })
	mux.HandleFunc("/events", func(w http.ResponseWriter, r *http.Request) {
		x.stream(w, r, "data: e0\n\n", "data: e1\n\n", "data: e2\n\n")
	})
	mux.Handle("/git/", http.StripPrefix("/git", http.HandlerFunc(x.serveGit)))
	x.serveModels(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x.mu.Lock()
		x.seen = append(x.seen, r.Method+" "+r.Host+r.URL.Path)
		x.mu.Unlock()
		mux.ServeHTTP(w, r)
	})
}

// stream sends pieces, each when the one before has been acknowledged.
func (x *exit) stream(w http.ResponseWriter, r *http.Request, pieces ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, piece := range pieces {
		_, _ = io.WriteString(w, piece)
		_ = http.NewResponseController(w).Flush()
		if strings.Contains(piece, "unacknowledged") {
			continue
		}
		select {
		case <-x.acks:
		case <-r.Context().Done():
			return
		}
	}
}

// serveGit is git's own server, for whoever has the token.
func (x *exit) serveGit(w http.ResponseWriter, r *http.Request) {
	if _, password, _ := r.BasicAuth(); password != gitToken {
		w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	// It takes no chunks, as CGI does not.
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	r.Body, r.ContentLength, r.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
	path, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	h := cgi.Handler{Path: filepath.Join(strings.TrimSpace(string(path)), "git-http-backend"), Stderr: x.log,
		Env: []string{"GIT_PROJECT_ROOT=" + x.repo, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=writer", "GIT_CONFIG_NOSYSTEM=1", "HOME=" + filepath.Dir(x.repo)}}
	h.ServeHTTP(w, r)
}

func (x *exit) serveModels(mux *http.ServeMux) {
	answer := func(wire egress.Wire, plain string, pieces ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			key := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
			if wire == egress.WireAnthropic {
				key = r.Header.Get("X-Api-Key")
			}
			if key != modelKey {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			var asked struct{ Stream bool }
			if json.NewDecoder(r.Body).Decode(&asked) != nil {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			if asked.Stream {
				x.stream(w, r, pieces...)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, plain)
		}
	}
	chunk := func(text string) string {
		return `data: {"id":"c","object":"chat.completion.chunk","model":"gpt-test","choices":[{"index":0,"delta":{"content":"` + text + `"}}]}` + "\n\n"
	}
	mux.HandleFunc("/v1/chat/completions", answer(egress.WireOpenAI,
		`{"id":"c","object":"chat.completion","model":"gpt-test","choices":[{"index":0,"message":{"role":"assistant","content":"one two"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}`,
		chunk("one"), chunk(" two"), ": unacknowledged\ndata: [DONE]\n\n"))
	mux.HandleFunc("/v1/responses", answer(egress.WireOpenAI,
		`{"id":"r","object":"response","model":"gpt-test","status":"completed","output":[{"type":"message","id":"m","role":"assistant","status":"completed","content":[{"type":"output_text","text":"one two","annotations":[]}]}],"usage":{"input_tokens":1,"output_tokens":2,"total_tokens":3}}`))
	mux.HandleFunc("/v1/embeddings", answer(egress.WireOpenAI,
		`{"object":"list","model":"embed-test","data":[{"object":"embedding","index":0,"embedding":[0.5,1]}],"usage":{"prompt_tokens":1,"total_tokens":1}}`))
	event := func(kind, data string) string { return "event: " + kind + "\ndata: " + data + "\n\n" }
	delta := func(text string) string {
		return event("content_block_delta", `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"`+text+`"}}`)
	}
	mux.HandleFunc("/v1/messages", answer(egress.WireAnthropic,
		`{"id":"m","type":"message","role":"assistant","model":"claude-test","content":[{"type":"text","text":"one two"}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":1,"output_tokens":2}}`,
		": unacknowledged\n"+event("message_start", `{"type":"message_start","message":{"id":"m","type":"message","role":"assistant","model":"claude-test","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":1,"output_tokens":1}}}`),
		": unacknowledged\n"+event("content_block_start", `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`),
		delta("one"), delta(" two"),
		": unacknowledged\n"+event("content_block_stop", `{"type":"content_block_stop","index":0}`)+
			event("message_delta", `{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":2}}`)+
			event("message_stop", `{"type":"message_stop"}`)))
}

// outfit is a program's surroundings: a home, and what the payload gives it.
type outfit struct {
	x    *exit
	home string
	env  agentenv.Env
}

// newAgent has the environment of a payload, without some of its variables, and nothing else.
func (x *exit) newAgent(without ...string) *outfit {
	x.t.Helper()
	home := x.t.TempDir()
	p, err := agentenv.For(agentenv.Options{Gateway: "http://127.0.0.1:3000", AgentName: "writer", Home: home, Dir: home, CABundle: x.ca,
		Services: x.services, Providers: x.models})
	if err != nil {
		x.t.Fatal(err)
	}
	for _, f := range p.Files {
		if err := os.WriteFile(f.Path, []byte(f.Content), f.Mode); err != nil {
			x.t.Fatal(err)
		}
	}
	for _, name := range without {
		if _, there := p.Env[name]; !there {
			x.t.Fatalf("there is no %s to take away", name)
		}
		delete(p.Env, name)
	}
	return &outfit{x, home, p.Env}
}

func (a *outfit) plain() string {
	return "http://web.example:" + strconv.Itoa(int(port(a.x.plain)))
}

func (a *outfit) secure() string {
	return "https://web.example:" + strconv.Itoa(int(port(a.x.secure)))
}

// run runs a program on the island. Whatever it prints must not have a secret.
func (a *outfit) run(dir string, extra []string, program string, args ...string) (string, error) {
	t := a.x.t
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), clientLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.WaitDelay = dir, 5*time.Second
	cmd.Env = slices.Concat(a.env.List(), []string{"PATH=" + os.Getenv("PATH"), "HOME=" + a.home, "PLAIN=" + a.plain(), "SECURE=" + a.secure()}, extra)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := a.x.island.start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	for _, value := range secretsOfTest() {
		if strings.Contains(out.String(), value) || strings.Contains(strings.Join(cmd.Env, "\n"), value) {
			t.Errorf("%s has or prints %s", filepath.Base(program), value)
		}
	}
	return out.String(), err
}

// steps runs a script that reports steps, and returns which went well, and the errors of the others.
func (a *outfit) steps(program string, args ...string) map[string]string {
	t := a.x.t
	t.Helper()
	dir, _ := testkit.Clients(t)
	out, err := a.run(dir, nil, program, args...)
	if err != nil {
		out += "\n" + err.Error()
	}
	results := map[string]string{}
	scanner := bufio.NewScanner(strings.NewReader(out))
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		var r testkit.Report
		if json.Unmarshal(scanner.Bytes(), &r) == nil && r.Step != "" {
			results[r.Step] = r.Error
			if !r.OK && r.Error == "" {
				results[r.Step] = "failed"
			}
		}
	}
	if len(results) == 0 {
		t.Fatalf("%s reported nothing: %.4000s", filepath.Base(program), out)
	}
	return results
}

// filesWithout makes sure that no file below a folder has a secret.
func filesWithout(t *testing.T, dir string) {
	t.Helper()
	read := 0
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		read++
		for _, value := range secretsOfTest() {
			if bytes.Contains(text, []byte(value)) {
				t.Errorf("%s has %s", path, value)
			}
		}
		return nil
	})
	if err != nil || read == 0 {
		t.Errorf("read %d files of %s: %v", read, dir, err)
	}
}
