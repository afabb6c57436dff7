//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/gateway/hostnet"
	"github.com/clawjail/clawjail/internal/gateway/ledger"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/policy/redact"
	"github.com/clawjail/clawjail/internal/store/open"
)

const (
	// exitRounds is how many requests are timed on each way, in turn.
	exitRounds = 1500
	// exitCallers ask at the same time for exitFor.
	exitCallers = 64
	exitFor     = 2 * time.Second
	// bulkBytes go through a tunnel.
	bulkBytes = 1 << 30
	// idleTunnels are open and silent.
	idleTunnels = 1000
	// manyRules are in a policy.
	manyRules = 10_000
	scrubbed  = 256 << 20
)

// exit is the gateway with a durable audit log, on loopback, beside what it is compared with.
type exit struct {
	gateway  *gateway.Gateway
	address  string
	upstream *httptest.Server
	bare     *httptest.Server // httputil.ReverseProxy, and nothing else
	source   net.Listener     // sends without end
	relay    net.Listener     // a tunnel to source that only copies
	close    func() error
}

// gatewayPart measures the way out of a jail: everything runs in this process, on loopback.
func (b *bench) gatewayPart(ctx context.Context) error {
	dir, err := os.MkdirTemp("/var/lib/clawjail", "bench-")
	if err != nil {
		return err
	}
	x, err := newExit(ctx, dir)
	if err == nil {
		err = errors.Join(b.exitLatency(ctx, x), b.exitThroughput(ctx, x), b.exitBulk(x), b.exitIdle(x), x.close())
	}
	b.rules()
	b.scrubbing()
	return errors.Join(err, checkpoint.Unprotect(filepath.Join(dir, notesFile)), os.RemoveAll(dir))
}

const upstreamName = "upstream.bench.test"

func newExit(ctx context.Context, dir string) (*exit, error) {
	if err := os.Mkdir(filepath.Join(dir, open.Folder), 0o700); err != nil {
		return nil, err
	}
	rows, err := open.Open(ctx, "", dir)
	if err != nil {
		return nil, err
	}
	log, _, err := ledgerParts(ctx, rows, dir)
	if err != nil {
		return nil, errors.Join(err, rows.Close())
	}
	x := &exit{upstream: httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "hello") // whoever left needs no answer
	}))}
	to, err := url.Parse(x.upstream.URL)
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 2 * exitCallers
	x.bare = httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }, Transport: transport})
	if x.source, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	go pour(x.source)
	if x.relay, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	go copies(x.relay, x.source.Addr().String())

	rule := func(name string, at net.Addr) policy.Rule {
		return policy.Rule{Name: name, Action: policy.Allow, Host: policy.ExactHost(hostport.MustParseHost(upstreamName)), Opaque: true,
			Ports: policy.Ports(uint16(at.(*net.TCPAddr).Port)), Address: netip.MustParseAddr("127.0.0.1")}
	}
	limits := gateway.DefaultLimits()
	limits.ConnectionsPerCaller = 2 * idleTunnels
	networks, err := hostnet.Open(slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	x.gateway, err = gateway.New(gateway.Config{Networks: networks.Now, Records: ledger.New(log), Limits: limits, Rates: func(gateway.Caller) gateway.Rates {
		return gateway.Rates{Proxy: 1 << 30, Execute: 1, Service: 1, LLM: 1, Tunnels: 2 * idleTunnels}
	}})
	if err != nil {
		return nil, err
	}
	err = x.gateway.Admit(netip.MustParseAddr("127.0.0.1"), gateway.Caller{Jail: "bench", Agent: "bench", Tenant: "default", Actor: "agent:bench",
		Policy: policy.Only(rule("http", x.upstream.Listener.Addr()), rule("bulk", x.source.Addr()))})
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	x.address = l.Addr().String()
	served := make(chan error, 1)
	go func() { served <- x.gateway.Serve(ctx, l) }()
	x.close = func() error {
		x.bare.Close()
		transport.CloseIdleConnections()
		err := errors.Join(x.gateway.Close(), <-served, networks.Close(), x.source.Close(), x.relay.Close())
		x.upstream.Close()
		return errors.Join(err, log.Close(context.WithoutCancel(ctx)), rows.Close())
	}
	return x, nil
}

// pour sends zeros to everybody who connects.
func pour(l net.Listener) {
	block := make([]byte, 256<<10)
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			for {
				if _, err := c.Write(block); err != nil {
					return
				}
			}
		}()
	}
}

// copies relays connections, and does nothing else.
func copies(l net.Listener, to string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			u, err := net.Dial("tcp", to)
			if err != nil {
				return
			}
			defer u.Close()
			_, _ = io.Copy(c, u) // ends with either
		}()
	}
}

// client asks through the gateway, or the bare proxy.
func (x *exit) client(bare bool) (*http.Client, string) {
	transport := &http.Transport{MaxIdleConnsPerHost: 2 * exitCallers, DisableCompression: true}
	if bare {
		return &http.Client{Transport: transport}, x.bare.URL + "/"
	}
	transport.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: x.address})
	return &http.Client{Transport: transport}, "http://" + upstreamName + ":" + strconv.Itoa(x.upstream.Listener.Addr().(*net.TCPAddr).Port) + "/"
}

func ask(c *http.Client, at string) error {
	resp, err := c.Get(at)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", resp.Status, body)
	}
	return nil
}

func (b *bench) exitLatency(ctx context.Context, x *exit) error {
	took := map[bool][]time.Duration{}
	clients := map[bool]func() error{}
	for _, bare := range []bool{true, false} {
		c, at := x.client(bare)
		defer c.CloseIdleConnections()
		clients[bare] = func() error { return ask(c, at) }
	}
	for n := range exitRounds + 50 {
		for _, bare := range []bool{true, false} {
			began := time.Now()
			if err := clients[bare](); err != nil {
				return fmt.Errorf("a request through the proxy: %w", err)
			}
			if n >= 50 {
				took[bare] = append(took[bare], time.Since(began))
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	plain := b.result.Times("gateway: request, bare reverse proxy", took[true])
	ours := b.result.Times("gateway: request, durable audit", took[false])
	b.result.Beside("gateway: request, durable audit", "gateway: request, bare reverse proxy", "bare httputil.ReverseProxy")
	b.result.Value("gateway: added latency", "ms", ours.P50-plain.P50)
	b.result.AtMost("gateway: added latency", 0.8)
	return nil
}

func (b *bench) exitThroughput(ctx context.Context, x *exit) error {
	rate := map[bool][]float64{}
	for range 5 {
		for _, bare := range []bool{true, false} {
			c, at := x.client(bare)
			n, err := hammer(ctx, func() error { return ask(c, at) })
			c.CloseIdleConnections()
			if err != nil {
				return fmt.Errorf("many requests through the proxy: %w", err)
			}
			rate[bare] = append(rate[bare], float64(n)/exitFor.Seconds())
		}
	}
	plain, ours := slices.Max(rate[true]), slices.Max(rate[false])
	b.result.Samples("gateway: requests a second, bare", "1/s", rate[true])
	b.result.Samples("gateway: requests a second, durable audit", "1/s", rate[false])
	b.result.Beside("gateway: requests a second, durable audit", "gateway: requests a second, bare", "bare httputil.ReverseProxy")
	b.result.Value("gateway: throughput against bare", "×", ours/plain)
	b.result.AtLeast("gateway: throughput against bare", 0.65)
	return nil
}

// hammer has many callers do the same for a while, and says how often that was.
func hammer(ctx context.Context, do func() error) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, exitFor)
	defer cancel()
	var done atomic.Int64
	errs := make([]error, exitCallers)
	var all sync.WaitGroup
	for n := range exitCallers {
		all.Go(func() {
			for ctx.Err() == nil {
				if errs[n] = do(); errs[n] != nil {
					return
				}
				done.Add(1)
			}
		})
	}
	all.Wait()
	return done.Load(), errors.Join(errs...)
}

// tunnel opens one through the gateway.
func (x *exit) tunnel() (net.Conn, io.Reader, error) {
	c, err := net.Dial("tcp", x.address)
	if err != nil {
		return nil, nil, err
	}
	to := upstreamName + ":" + strconv.Itoa(x.source.Addr().(*net.TCPAddr).Port)
	if _, err := fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", to, to); err != nil {
		return nil, nil, errors.Join(err, c.Close())
	}
	r := bufio.NewReaderSize(c, 16)
	resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	if err != nil {
		return nil, nil, errors.Join(err, c.Close())
	}
	return c, r, nil
}

func (b *bench) exitBulk(x *exit) error {
	rate := map[bool][]float64{}
	for range 3 {
		for _, bare := range []bool{true, false} {
			var c net.Conn
			var r io.Reader
			var err error
			if bare {
				c, err = net.Dial("tcp", x.relay.Addr().String())
				r = c
			} else {
				c, r, err = x.tunnel()
			}
			if err != nil {
				return fmt.Errorf("a tunnel: %w", err)
			}
			began := time.Now()
			_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, io.LimitReader(struct{ io.Reader }{r}, bulkBytes), make([]byte, 256<<10))
			rate[bare] = append(rate[bare], bulkBytes/time.Since(began).Seconds()/1e6)
			if err := errors.Join(err, c.Close()); err != nil {
				return fmt.Errorf("many bytes through a tunnel: %w", err)
			}
		}
	}
	plain, ours := slices.Max(rate[true]), slices.Max(rate[false])
	b.result.Samples("gateway: tunnel, bare relay", "MB/s", rate[true])
	b.result.Samples("gateway: tunnel", "MB/s", rate[false])
	b.result.Beside("gateway: tunnel", "gateway: tunnel, bare relay", "bare relay")
	b.result.Value("gateway: tunnel against bare", "×", ours/plain)
	b.result.AtLeast("gateway: tunnel against bare", 0.9)
	return nil
}

// exitIdle opens tunnels in which nothing moves: what they cost is what the process has more of afterwards. The clients are
// in this process too, and the servers: their part of the memory is in the figure.
func (b *bench) exitIdle(x *exit) error {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer silent.Close()
	var held []net.Conn
	var mu sync.Mutex
	go func() {
		for {
			c, err := silent.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			held = append(held, c)
			mu.Unlock()
		}
	}()
	addr := netip.MustParseAddr("127.0.0.1")
	if err := x.gateway.Forget(addr, ""); err != nil {
		return err
	}
	rule := policy.Rule{Name: "silent", Action: policy.Allow, Host: policy.ExactHost(hostport.MustParseHost(upstreamName)), Opaque: true,
		Ports: policy.Ports(uint16(silent.Addr().(*net.TCPAddr).Port)), Address: addr}
	if err := x.gateway.Admit(addr, gateway.Caller{Jail: "bench", Agent: "bench", Tenant: "default", Actor: "agent:bench", Policy: policy.Only(rule)}); err != nil {
		return err
	}
	former := x.source
	x.source = silent
	defer func() { x.source = former }()
	before := resident()
	for range idleTunnels {
		c, _, err := x.tunnel()
		if err != nil {
			return fmt.Errorf("an idle tunnel: %w", err)
		}
		defer c.Close()
	}
	b.result.Value("gateway: 1000 idle tunnels, clients and servers included", "MB", float64(resident()-before)/1e6)
	b.result.AtMost("gateway: 1000 idle tunnels, clients and servers included", 30)
	mu.Lock()
	defer mu.Unlock()
	for _, c := range held {
		_ = c.Close() // nothing was sent on it
	}
	return nil
}

// resident is the memory of this process after a collection.
func resident() int64 {
	runtime.GC()
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text))
	pages, _ := strconv.ParseInt(fields[1], 10, 64) // the kernel writes numbers
	return pages * int64(os.Getpagesize())
}

// rules measures a decision among many rules.
func (b *bench) rules() {
	var rules []policy.Rule
	var hosts []hostport.Host
	for n := range manyRules {
		hosts = append(hosts, hostport.MustParseHost(fmt.Sprintf("h%d.example.com", n)))
		rules = append(rules, policy.Rule{Name: fmt.Sprint("rule-", n), Action: policy.Allow, Host: policy.ExactHost(hosts[n]), Ports: policy.Ports(443)})
	}
	compiled, err := policy.Compile(policy.Only(rules...))
	if err != nil {
		b.note("compile %d rules: %v", manyRules, err)
		return
	}
	const decisions = 100_000
	began := time.Now()
	for n := range decisions {
		compiled.Decide(policy.Request{Scheme: policy.HTTPS, Host: hosts[n*7919%manyRules], Port: 443, Method: policy.Connect})
	}
	b.result.Value("gateway: decision among 10 000 rules", "µs", time.Since(began).Seconds()*1e6/decisions)
	b.result.AtMost("gateway: decision among 10 000 rules", 20)
}

// scrubbing measures looking through an answer for a value that is not in it.
func (b *bench) scrubbing() {
	text := []byte(strings.Repeat("{\"id\": 4711, \"title\": \"The quick brown fox jumps over the lazy dog\", \"url\": \"https://example.com/a?b=c\"}\n", 10_000))
	v := redact.New([]byte("ghp_16C7e42F292c6912E7710c838347Ae178B4a"))
	var read int64
	began := time.Now()
	for read < scrubbed {
		n, err := io.Copy(io.Discard, v.NewReader(strings.NewReader(string(text)), redact.StreamOptions{}))
		if err != nil {
			b.note("scrub: %v", err)
			return
		}
		read += n
	}
	b.result.Value("gateway: scrubbing", "MB/s", float64(read)/time.Since(began).Seconds()/1e6)
	b.result.AtLeast("gateway: scrubbing", 300)
}
