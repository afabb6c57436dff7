package gateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/gateway/auditlog"
	"github.com/clawjail/clawjail/internal/gateway/execute"
	"github.com/clawjail/clawjail/internal/gateway/service"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/netguard"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/sqlite"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/internal/vault"
)

// The test binary runs itself to have a gateway to kill; see [gatewayToKill].
const (
	killMode   = "CLAWJAIL_TEST_GATEWAY_KILL"
	killFolder = "CLAWJAIL_TEST_GATEWAY_FOLDER"
	killWeb    = "CLAWJAIL_TEST_GATEWAY_WEB"
	killTunnel = "CLAWJAIL_TEST_GATEWAY_TUNNEL"
)

// openLog opens a log on a real database and real files.
func openLog(dir string) (*sqlite.DB, *checkpoint.File, *checkpoint.Key, *audit.Log, error) {
	ctx := context.Background()
	db, err := sqlite.Open(ctx, filepath.Join(dir, "db"))
	if err != nil {
		return nil, nil, nil, nil, err
	}
	file, fileErr := checkpoint.OpenFile(filepath.Join(dir, "checkpoints"))
	key, keyErr := checkpoint.LoadKey(filepath.Join(dir, "key"))
	if err := errors.Join(fileErr, keyErr); err != nil {
		return nil, nil, nil, nil, err
	}
	l, err := audit.Open(ctx, audit.Options{
		Store: db, Node: "n1", SpillPath: filepath.Join(dir, "spill"), SpillSize: 256 << 10, Key: key, Checkpoints: file,
		CheckpointRows: 50, CheckpointEvery: 20 * time.Millisecond, RetryEvery: 10 * time.Millisecond,
	})
	return db, file, key, l, err
}

// afterwards writes its intents when everything is over. It is what the gateway must not be.
type afterwards struct{ gateway.Records }

// Begin implements gateway.Records.
func (a afterwards) Begin(_ context.Context, d gateway.Decision) (gateway.Record, error) {
	return late{a.Records, d}, nil
}

type late struct {
	records gateway.Records
	d       gateway.Decision
}

// End implements gateway.Record.
func (l late) End(o gateway.Outcome) {
	if r, err := l.records.Begin(context.Background(), l.d); err == nil {
		r.End(o)
	}
}

// oneAnswer is a resolver that leads everything to one public address.
type oneAnswer struct{}

func (oneAnswer) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("93.184.216.34")}, nil
}

// oneSecret is a vault with one secret.
type oneSecret struct{}

func (oneSecret) UseSecret(_ context.Context, _ vault.SecretName, _ vault.Destination, use func(secret.Value) error) error {
	return use(secret.New([]byte(credential)))
}

// gatewayToKill runs a gateway with the real audit log, says where it is, and goes on until it is killed or nobody holds
// its standard input any more.
func gatewayToKill(mode string) error {
	ctx := context.Background()
	db, _, _, log, err := openLog(os.Getenv(killFolder))
	if err != nil {
		return err
	}
	book, err := egress.Open(ctx, egress.Options{Store: db, Identity: unasked{}, Audit: unasked{}, Now: time.Now, Recheck: time.Hour})
	if err != nil {
		return err
	}
	var records gateway.Records = auditlog.New(log)
	if mode == "afterwards" {
		records = afterwards{records}
	}
	views := func(c gateway.Caller) *egress.EffectivePolicy {
		return book.View(egress.Who{Tenant: c.Tenant, Agent: c.Agent, Base: c.Policy})
	}
	plenty := gateway.Rates{Proxy: 1 << 20, Execute: 1 << 20, Service: 1 << 20, LLM: 1 << 20, Tunnels: 1 << 10}
	mux := http.NewServeMux()
	g, err := gateway.New(gateway.Config{Networks: func() *netguard.Networks { return netguard.NewNetworks(nil, nil) }, Resolver: oneAnswer{}, Records: records, Limits: gateway.DefaultLimits(), Local: mux, Rates: func(gateway.Caller) gateway.Rates { return plenty }})
	if err != nil {
		return err
	}
	web, tunnel := os.Getenv(killWeb), os.Getenv(killTunnel)
	g.DialWith(func(ctx context.Context, target netip.AddrPort, _ func(netip.AddrPort) error) (net.Conn, error) {
		var d net.Dialer
		if target.Port() == 443 {
			return d.DialContext(ctx, "tcp", tunnel)
		}
		return d.DialContext(ctx, "tcp", web)
	})
	quiet := slog.New(slog.DiscardHandler)
	o := execute.Options{Gateway: g, Views: views, Secrets: oneSecret{}, Log: quiet, Now: time.Now}
	tools, toolsErr := execute.New(o)
	routes, routesErr := service.New(o)
	ln, listenErr := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err := errors.Join(toolsErr, routesErr, listenErr); err != nil {
		return err
	}
	mux.Handle("/v1/execute", tools)
	mux.Handle(service.Prefix, routes)
	base := policy.Only(policy.Rule{Name: "all", Action: policy.Allow, Host: policy.AnyHost(), Ports: policy.Ports(80, 443), Opaque: true})
	if err := g.Admit(netip.MustParseAddr(jail), gateway.Caller{Jail: "jail", Tenant: "default", Agent: "agent-1", Actor: "agent:agent-1", Policy: base}); err != nil {
		return err
	}
	go func() { _ = g.Serve(ctx, ln) }() // until it is killed
	fmt.Fprintln(os.Stdout, ln.Addr())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// counting is everything outside, and counts what comes there.
type counting struct {
	web    *httptest.Server
	tunnel net.Listener
	open   atomic.Int64 // connections
	silent atomic.Bool  // no request is answered
	asked  atomic.Int64 // requests that wait for an answer that does not come

	mu      sync.Mutex // guards what follows
	paths   map[string]int
	tunnels int
	serving sync.WaitGroup
}

func newCounting(t *testing.T) *counting {
	t.Helper()
	c := &counting{paths: map[string]int{}}
	c.web = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		c.paths[r.URL.Path]++
		c.mu.Unlock()
		if c.silent.Load() {
			c.asked.Add(1)
			<-r.Context().Done() // the gateway is gone
			return
		}
		_, _ = io.WriteString(w, "{}")
	}))
	c.web.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		switch s {
		case http.StateNew:
			c.open.Add(1)
		case http.StateClosed:
			c.open.Add(-1)
		}
	}
	c.web.Start()
	var err error
	if c.tunnel, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	c.serving.Go(func() {
		for {
			conn, err := c.tunnel.Accept()
			if err != nil {
				return
			}
			c.open.Add(1)
			c.mu.Lock()
			c.tunnels++
			c.mu.Unlock()
			c.serving.Go(func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
				c.open.Add(-1)
			})
		}
	})
	t.Cleanup(func() { c.web.Close(); _ = c.tunnel.Close(); c.serving.Wait() })
	return c
}

// seen is how many requests and tunnels came.
func (c *counting) seen() (total int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.paths {
		total += n
	}
	return total + c.tunnels
}

// hammer asks for everything until the gateway is gone.
func hammer(addr string, next *atomic.Int64) {
	for {
		id := next.Add(1)
		var request, method string
		switch id % 4 {
		case 0:
			request = fmt.Sprintf("GET http://web.example/proxy/%d HTTP/1.1\r\nHost: x%s", id, noHeaders)
		case 1:
			body := fmt.Sprintf(`{"service":"svc","url":"http://web.example/execute/%d"}`, id)
			request = fmt.Sprintf("POST /v1/execute HTTP/1.1\r\nHost: gateway:3000\r\nContent-Type: application/json\r\nContent-Length: %d%s%s", len(body), noHeaders, body)
		case 2:
			request = fmt.Sprintf("GET /svc/svc/%d HTTP/1.1\r\nHost: gateway:3000%s", id, noHeaders)
		case 3:
			request, method = "CONNECT tunnel.example:443 HTTP/1.1\r\nHost: x"+noHeaders, http.MethodConnect
		}
		c, err := net.DialTimeout("tcp", addr, patience)
		if err != nil {
			return
		}
		_ = c.SetDeadline(time.Now().Add(patience))
		_, _ = io.WriteString(c, request)
		from := bufio.NewReader(c)
		resp, err := http.ReadResponse(from, &http.Request{Method: method})
		if err == nil && method == http.MethodConnect {
			_, _ = io.WriteString(c, "ping\n")
			_, err = from.ReadString('\n')
		} else if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
		}
		_ = c.Close()
		if err != nil {
			return
		}
	}
}

// killed runs a gateway, hammers it, kills it when enough is true and some time has passed, and waits until nothing of it is
// under way outside.
func killed(t *testing.T, mode, dir string, c *counting, next *atomic.Int64, enough func() bool, after time.Duration) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledAtAnyMomentNothingLeftWithoutAnIntent$")
	cmd.Env = append(os.Environ(), killMode+"="+mode, killFolder+"="+dir, killWeb+"="+c.web.Listener.Addr().String(), killTunnel+"="+c.tunnel.Addr().String())
	var said strings.Builder
	cmd.Stderr = &said
	hold, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		t.Fatalf("the gateway does not start: %v: %s", err, said.String())
	}
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() { hammer(strings.TrimSpace(addr), next) })
	}
	testenv.Eventually(t, patience, enough, "the gateway lets too little through")
	<-time.After(after)
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // killed
	clients.Wait()
	testenv.Eventually(t, patience, func() bool { return c.open.Load() == 0 }, "connections outside outlive the gateway")
}

// killedInTheMiddle has the outside answer nothing until the gateway is killed. It returns how many requests were under way.
func killedInTheMiddle(t *testing.T, mode, dir string, c *counting, next *atomic.Int64) int {
	t.Helper()
	before := c.asked.Load()
	c.silent.Store(true)
	defer c.silent.Store(false)
	killed(t, mode, dir, c, next, func() bool { return c.asked.Load() > before }, 0)
	return int(c.asked.Load() - before)
}

// recorded reopens the log after a kill, verifies it, and counts the intents by what they are about, and the outcomes.
func recorded(t *testing.T, dir string) (intents, outcomes map[string]int) {
	t.Helper()
	db, file, key, log, err := openLog(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	defer file.Close()
	if err := log.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	report, err := audit.Verify(t.Context(), db, checkpoint.ReadFile(filepath.Join(dir, "checkpoints")), key.Keys())
	if err != nil || !report.OK() {
		t.Fatalf("the log of a killed gateway is bad: %v, %v", report.Bad(), err)
	}
	intents, outcomes = map[string]int{}, map[string]int{}
	for row, err := range db.WalkAudit(t.Context(), "n1", 1) {
		if err != nil {
			t.Fatal(err)
		}
		switch row.Phase {
		case "intent":
			var detail struct{ Path string }
			if err := json.Unmarshal(row.Detail, &detail); err != nil {
				t.Fatal(err)
			}
			intents[detail.Path]++
		case "outcome":
			outcomes[row.Result]++
		}
	}
	return intents, outcomes
}

// killFolderWith makes a database in which the agent may do everything that hammer does.
func killFolderWith(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() {
		f, err := os.Open(filepath.Join(dir, "checkpoints"))
		if err != nil {
			return
		}
		defer f.Close()
		if flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS); err == nil {
			_ = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags&^0x20) // FS_APPEND_FL; not every file system has it
		}
	})
	db, err := sqlite.Open(t.Context(), filepath.Join(dir, "db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	now := time.Now()
	err = db.CreateAgent(t.Context(), store.Agent{ID: "agent-1", Tenant: "default", Name: "one", CreatedAt: now})
	for _, e := range []store.Entry{
		entry(t, "settings", "settings", egress.Settings{Tools: []egress.Tool{{URL: "http://web.example/execute/**", Methods: []string{"GET"}}}}),
		entry(t, "service", "svc", egress.Service{Name: "svc", Upstream: egress.Upstream{BaseURL: "http://web.example/service"}, Allow: []egress.Allowance{{}},
			Inject: egress.Injection{Type: egress.InjectBearer}, Scrub: egress.ScrubRedact, Compressed: egress.CompressedDecode}),
	} {
		e.CreatedAt, e.UpdatedAt = now, now
		err = errors.Join(err, db.CreateEntry(t.Context(), e))
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// unrecorded is what came outside and has no intent.
func (c *counting) unrecorded(intents map[string]int) (missing []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for path, n := range c.paths {
		if n > intents[path] {
			missing = append(missing, path)
		}
	}
	// A tunnel has no path.
	if c.tunnels > intents[""] {
		missing = append(missing, fmt.Sprintf("%d tunnels of %d", c.tunnels-intents[""], c.tunnels))
	}
	return missing
}

func TestKilledAtAnyMomentNothingLeftWithoutAnIntent(t *testing.T) {
	if mode := os.Getenv(killMode); mode != "" {
		if err := gatewayToKill(mode); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
	dir, c, next := killFolderWith(t), newCounting(t), &atomic.Int64{}
	rounds, dice := 16, testenv.Dice(t)
	if testing.Short() {
		rounds = 4
	}
	var outcomes map[string]int
	underWay := 0
	for round := range rounds {
		if round == 1 {
			underWay = killedInTheMiddle(t, "first", dir, c, next)
		} else {
			enough := c.seen() + 1 + dice.IntN(150)
			killed(t, "first", dir, c, next, func() bool { return c.seen() >= enough }, time.Duration(dice.IntN(20_000))*time.Microsecond)
		}
		var intents map[string]int
		intents, outcomes = recorded(t, dir)
		if missing := c.unrecorded(intents); len(missing) != 0 {
			t.Fatalf("round %d: without an intent: %v", round, missing)
		}
	}
	kinds := map[string]bool{}
	for path := range c.paths {
		kind, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
		kinds[kind] = true
	}
	if !kinds["proxy"] || !kinds["execute"] || !kinds["service"] || c.tunnels == 0 {
		t.Errorf("only %v and %d tunnels came", kinds, c.tunnels)
	}
	if outcomes["unknown"] < underWay {
		t.Errorf("%d requests were under way when one gateway was killed, and of %d the outcome is unknown", underWay, outcomes["unknown"])
	}
	t.Logf("%d requests and tunnels, outcomes %v", c.seen(), outcomes)
}

// The one above would say nothing if it could not see what left before its intent.
func TestAnIntentThatComesAfterwardsIsSeenToBeMissing(t *testing.T) {
	dir, c, next := killFolderWith(t), newCounting(t), &atomic.Int64{}
	underWay := killedInTheMiddle(t, "afterwards", dir, c, next)
	if intents, _ := recorded(t, dir); len(c.unrecorded(intents)) < underWay {
		t.Errorf("%d requests were under way, and only %v have no intent", underWay, c.unrecorded(intents))
	}
}
