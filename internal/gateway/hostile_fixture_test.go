package gateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/gateway/access"
	"github.com/clawjail/clawjail/internal/gateway/execute"
	"github.com/clawjail/clawjail/internal/gateway/llm"
	"github.com/clawjail/clawjail/internal/gateway/service"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/netguard"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/sqlite"
	"github.com/clawjail/clawjail/internal/vault"
)

const (
	patience = 10 * time.Second
	// jail is where the requests of the tests come from.
	jail = "127.0.0.1"
	// marker is in every answer from outside.
	marker = "outside-was-here"
	// credential is what the surfaces inject.
	credential = "cred-4b1d-canary-77"
)

// whole is the gateway with every surface on it, the real Book, and a real name server that the test fills. All that it
// connects to is noted first; public addresses lead to the server outside, and all others to a trap.
type whole struct {
	t       testing.TB
	g       *gateway.Gateway
	names   *nameServer
	book    *egress.Book
	db      *sqlite.DB
	addr    string
	outside *httptest.Server
	trapped atomic.Int64
	// networks are those of the host; nil when nobody knows them.
	networks atomic.Pointer[netguard.Networks]
	// late is called when a connection is about to be made, before the last check.
	late func()

	mu      sync.Mutex // guards what follows
	dialled []netip.AddrPort
	begun   []gateway.Decision
	refused []gateway.Decision
}

// Begin implements gateway.Records.
func (w *whole) Begin(_ context.Context, d gateway.Decision) (gateway.Record, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun = append(w.begun, d)
	return w, nil
}

// Refused implements gateway.Records.
func (w *whole) Refused(d gateway.Decision) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refused = append(w.refused, d)
}

// End implements gateway.Record.
func (w *whole) End(gateway.Outcome) {}

// UseSecret implements the vault: there is one secret, whatever it is called.
func (w *whole) UseSecret(_ context.Context, _ vault.SecretName, _ vault.Destination, use func(secret.Value) error) error {
	v := secret.New([]byte(credential))
	defer v.Wipe()
	return use(v)
}

// unasked stands for what the Book asks only when operators change something.
type unasked struct {
	egress.Authority
	audit.Records
}

// isPublic are the addresses that stand for the Internet in these tests.
func isPublic(a netip.Addr) bool {
	return a == netip.MustParseAddr("93.184.216.34") || a == netip.MustParseAddr("2606:4700::1111")
}

// appears is outside, until a test makes it an address of the host.
var appears = netip.MustParseAddr("45.45.45.60")

// newWhole makes it. base is what the agent's jail may reach; entries are what operators decided.
func newWhole(t testing.TB, base policy.Policy, entries ...store.Entry) *whole {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	w := &whole{t: t, names: newNameServer(t), late: func() {}}
	w.networks.Store(netguard.NewNetworks(nil, nil))
	w.outside = httptest.NewServer(http.HandlerFunc(answerOutside))
	w.outside.Config.SetKeepAlivesEnabled(false)
	t.Cleanup(w.outside.Close)
	trap := httptest.NewServer(http.HandlerFunc(answerOutside))
	trap.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			w.trapped.Add(1)
		}
	}
	trap.Config.SetKeepAlivesEnabled(false)
	t.Cleanup(trap.Close)

	db, err := sqlite.Open(t.Context(), t.TempDir())
	must(err)
	t.Cleanup(func() { must(db.Close()) })
	w.db = db
	now := time.Now()
	must(db.CreateAgent(t.Context(), store.Agent{ID: "agent-1", Tenant: "default", Name: "one", CreatedAt: now}))
	for _, e := range entries {
		e.CreatedAt, e.UpdatedAt = now, now
		must(db.CreateEntry(t.Context(), e))
	}
	w.book, err = egress.Open(t.Context(), egress.Options{Store: db, Identity: unasked{}, Audit: unasked{}, Now: time.Now, Recheck: 5 * time.Millisecond})
	must(err)
	t.Cleanup(w.book.Close)

	views := func(c gateway.Caller) *egress.EffectivePolicy {
		return w.book.View(egress.Who{Tenant: c.Tenant, Agent: c.Agent, Base: c.Policy})
	}
	mux := http.NewServeMux()
	plenty := gateway.Rates{Proxy: 1 << 20, Execute: 1 << 20, Service: 1 << 20, LLM: 1 << 20, Tunnels: 1 << 10}
	w.g, err = gateway.New(gateway.Config{
		Resolver: w.names.resolver(), Records: w, Networks: w.networks.Load, Limits: gateway.DefaultLimits(), Local: mux,
		Policy: func(c gateway.Caller) *policy.Compiled { return views(c).Proxy() },
		Rates:  func(gateway.Caller) gateway.Rates { return plenty },
	})
	must(err)
	quiet := slog.New(slog.DiscardHandler)
	tools, err := execute.New(execute.Options{Gateway: w.g, Views: views, Secrets: w, Log: quiet, Now: time.Now})
	must(err)
	routes, err := service.New(service.Options{Gateway: w.g, Views: views, Secrets: w, Log: quiet, Now: time.Now})
	must(err)
	models, err := llm.New(llm.Options{Options: access.Options{Gateway: w.g, Views: views, Secrets: w, Log: quiet, Now: time.Now}, Book: w.book})
	must(err)
	mux.Handle("/v1/execute", tools)
	mux.Handle(service.Prefix, routes)
	mux.Handle("/v1/", models)

	inside, outside := trap.Listener.Addr().String(), w.outside.Listener.Addr().String()
	w.g.DialWith(func(ctx context.Context, target netip.AddrPort, check func(netip.AddrPort) error) (net.Conn, error) {
		w.mu.Lock()
		w.dialled = append(w.dialled, target)
		w.mu.Unlock()
		w.late()
		if err := check(target); err != nil {
			return nil, err
		}
		to := inside
		if isPublic(target.Addr()) || target.Addr() == appears {
			to = outside
		}
		var d net.Dialer
		return d.DialContext(ctx, "tcp", to)
	})
	must(w.g.Admit(netip.MustParseAddr(jail), gateway.Caller{Jail: "jail", Tenant: "default", Agent: "agent-1", Actor: "agent:agent-1", Policy: base}))
	var listen net.ListenConfig
	ln, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(err)
	w.addr = ln.Addr().String()
	served := make(chan error, 1)
	go func() { served <- w.g.Serve(context.Background(), ln) }()
	t.Cleanup(func() {
		must(w.g.Close())
		must(<-served)
	})
	return w
}

// answerOutside is the Internet: a redirect where one is asked for, below /stream an answer that says the time and does not end, else one that every
// surface can read.
func answerOutside(w http.ResponseWriter, r *http.Request) {
	if to := r.URL.Query().Get("to"); to != "" {
		w.Header().Set("Location", to)
		w.WriteHeader(http.StatusFound)
		return
	}
	if strings.HasPrefix(r.URL.Path, "/stream/") {
		w.Header().Set("Content-Type", "text/event-stream")
		for every := time.Tick(5 * time.Millisecond); r.Context().Err() == nil; <-every {
			_, _ = fmt.Fprintf(w, ": %s %d\n\n", marker, time.Now().UnixNano())
			_ = http.NewResponseController(w).Flush()
		}
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"id":"c","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"`+marker+
		`"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`)
}

// entry is what operators decided, as the database has it.
func entry(t testing.TB, kind, name string, body any) store.Entry {
	t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	return store.Entry{ID: kind + "-" + name, Kind: kind, Tenant: "default", Name: name, Body: text}
}

// heard is an answer.
type heard struct {
	status  int
	refusal string // the code, if the gateway itself answers
	text    string
}

// outside says whether the answer came from outside, or a tunnel was opened.
func (h heard) outside() bool { return strings.Contains(h.text, marker) }

func (h heard) String() string { return fmt.Sprintf("%d %s %.200q", h.status, h.refusal, h.text) }

// open makes a connection from the jail.
func (w *whole) open() net.Conn {
	w.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(jail)}, Timeout: patience}
	c, err := d.DialContext(w.t.Context(), "tcp", w.addr)
	if err == nil {
		err = c.SetDeadline(time.Now().Add(patience))
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// say sends a request on a connection and reads its answer.
func (w *whole) say(c net.Conn, from *bufio.Reader, request string) heard {
	w.t.Helper()
	if _, err := io.WriteString(c, request); err != nil {
		w.t.Fatal(err)
	}
	method, _, _ := strings.Cut(request, " ")
	resp, err := http.ReadResponse(from, &http.Request{Method: method})
	if err != nil {
		w.t.Fatalf("the answer to %.200q: %v", request, err)
	}
	defer resp.Body.Close()
	out := heard{status: resp.StatusCode, refusal: resp.Header.Get("Clawjail-Refusal")}
	if method == http.MethodConnect && resp.StatusCode == http.StatusOK {
		out.text = marker // the tunnel is open
		return out
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatalf("the answer to %.200q: %v", request, err)
	}
	out.text = string(text)
	return out
}

// raw sends one request on a connection of its own.
func (w *whole) raw(request string) heard {
	w.t.Helper()
	c := w.open()
	defer c.Close()
	return w.say(c, bufio.NewReader(c), request)
}

// post sends JSON to the gateway itself.
func (w *whole) post(path string, body any) heard {
	w.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.raw(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: gateway:3000\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, len(text), text))
}

// connections are what was dialled, or was about to be.
func (w *whole) connections() []netip.AddrPort {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]netip.AddrPort(nil), w.dialled...)
}
