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
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/gateway"
	records "github.com/clawjail/clawjail/internal/gateway/auditlog"
	"github.com/clawjail/clawjail/internal/gateway/hostnet"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/policy/redact"
)

const (
	// exitCallers ask at the same time for exitFor.
	exitCallers = 64
	exitFor     = 2 * time.Second
	// bulkBytes go through a tunnel.
	bulkBytes = 1 << 30
	// idleTunnels are open and silent.
	idleTunnels = 1000
	// manyRules are in a policy.
	manyRules    = 10_000
	upstreamName = "upstream.bench.test"
)

// exit is the gateway with a durable audit log, on loopback, beside what it is compared with.
type exit struct {
	address  string
	upstream *httptest.Server
	bare     *httptest.Server // httputil.ReverseProxy, and nothing else
	source   net.Listener     // sends without end
	relay    net.Listener     // a tunnel to source that only copies
	silent   net.Listener     // neither sends nor ends anything
}

// gatewayPart measures the way out of a jail: everything runs in this process, on loopback.
func (b *bench) gatewayPart(ctx context.Context) {
	x := b.newExit(ctx)
	check(attempt(func() { b.exitLatency(x) }), attempt(func() { b.exitThroughput(x) }), attempt(func() { b.exitBulk(x) }),
		attempt(func() { b.exitIdle(x) }), attempt(b.rules), attempt(b.scrubbing))
}

// newExit makes one that ends with the part.
func (b *bench) newExit(ctx context.Context) *exit {
	l := b.newLedger(ctx)
	x := &exit{upstream: httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "hello") // a client that has left needs no answer
	}))}
	to := must(url.Parse(x.upstream.URL))
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 2 * exitCallers
	x.bare = httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }, Transport: transport})
	b.atEnd(func() error {
		x.bare.Close()
		transport.CloseIdleConnections()
		x.upstream.Close()
		return nil
	})
	block := make([]byte, 256<<10)
	x.source = b.listen(func(c net.Conn) {
		for err := error(nil); err == nil; {
			_, err = c.Write(block)
		}
	})
	x.relay = b.listen(func(c net.Conn) {
		if u, err := net.Dial("tcp", x.source.Addr().String()); err == nil {
			defer u.Close()
			_, _ = io.Copy(c, u) // ends with either
		}
	})
	x.silent = b.listen(nil)

	loopback := netip.MustParseAddr("127.0.0.1")
	var rules []policy.Rule
	for _, l := range []net.Listener{x.upstream.Listener, x.source, x.silent} {
		rules = append(rules, policy.Rule{Name: fmt.Sprint("port-", port(l)), Action: policy.Allow, Host: policy.ExactHost(hostport.MustParseHost(upstreamName)),
			Opaque: true, Ports: policy.Ports(port(l)), Address: loopback})
	}
	limits := gateway.DefaultLimits()
	limits.ConnectionsPerCaller = 2 * idleTunnels
	networks := must(hostnet.Open(slog.New(slog.DiscardHandler)))
	b.atEnd(networks.Close)
	g := must(gateway.New(gateway.Config{Networks: networks.Now, Records: records.New(l.log), Limits: limits, Rates: func(gateway.Caller) gateway.Rates {
		return gateway.Rates{Proxy: 1 << 30, Execute: 1, Service: 1, LLM: 1, Tunnels: 2 * idleTunnels}
	}}))
	check(g.Admit(loopback, gateway.Caller{Jail: "bench", Agent: "bench", Tenant: "default", Actor: "agent:bench", Policy: policy.Only(rules...)}))
	in := must(net.Listen("tcp", "127.0.0.1:0"))
	x.address = in.Addr().String()
	served := make(chan error, 1)
	go func() { served <- g.Serve(ctx, in) }()
	b.atEnd(func() error { return errors.Join(g.Close(), <-served) })
	return x
}

// listen does something with each connection to a port of loopback, or nothing at all, until the part ends.
func (b *bench) listen(do func(net.Conn)) net.Listener {
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	b.atEnd(l.Close)
	go func() {
		var all []net.Conn
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			all = append(all, c)
			if do != nil { // a silent tunnel is not waited for: that would count in the figure of its memory
				go func() {
					defer c.Close()
					do(c)
				}()
			}
		}
		for _, c := range all {
			_ = c.Close() // most are closed
		}
	}()
	return l
}

func port(l net.Listener) uint16 { return uint16(l.Addr().(*net.TCPAddr).Port) }

// asker asks through the gateway, or the bare proxy.
func (x *exit) asker(bare bool) (ask, close func()) {
	transport := &http.Transport{MaxIdleConnsPerHost: 2 * exitCallers, DisableCompression: true}
	at := x.bare.URL + "/"
	if !bare {
		transport.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: x.address})
		at = fmt.Sprintf("http://%s:%d/", upstreamName, port(x.upstream.Listener))
	}
	c := &http.Client{Transport: transport}
	return func() {
		resp := must(c.Get(at))
		body, err := io.ReadAll(resp.Body)
		if err = errors.Join(err, resp.Body.Close()); err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", resp.Status, body)
		}
		check(err)
	}, c.CloseIdleConnections
}

func (b *bench) exitLatency(x *exit) {
	bare, closeBare := x.asker(true)
	defer closeBare()
	ours, closeOurs := x.asker(false)
	defer closeOurs()
	const name, peer = "gateway: request, durable audit", "gateway: request, bare reverse proxy"
	b.inTurn(1500, 50, func(t times) {
		t.timed(peer, bare)
		t.timed(name, ours)
	})
	b.result.Beside("bare httputil.ReverseProxy", peer, name)
	b.result.Value("gateway: added latency", "ms", b.result.Figures[name].P50-b.result.Figures[peer].P50).AtMost(0.8)
}

// against measures a rate without the gateway and with it, in turn: what counts is the best of each.
func (b *bench) against(rounds int, bare, ours, label, unit, name string, minimum float64, rate func(bare bool) float64) {
	var theirs, with []float64
	for range rounds {
		theirs, with = append(theirs, rate(true)), append(with, rate(false))
	}
	b.result.Samples(bare, unit, theirs)
	b.result.Samples(ours, unit, with)
	b.result.Beside(label, bare, ours)
	b.result.Value(name, "×", slices.Max(with)/slices.Max(theirs)).AtLeast(minimum)
}

func (b *bench) exitThroughput(x *exit) {
	b.against(5, "gateway: requests a second, bare", "gateway: requests a second, durable audit", "bare httputil.ReverseProxy", "1/s",
		"gateway: throughput against bare", 0.65, func(bare bool) float64 {
			ask, close := x.asker(bare)
			defer close()
			return float64(atOnce(exitCallers, during(exitFor), func(int) { ask() })) / exitFor.Seconds()
		})
}

// tunnel opens one through the gateway.
func (x *exit) tunnel(to net.Listener) (net.Conn, io.Reader) {
	c := must(net.Dial("tcp", x.address))
	must(fmt.Fprintf(c, "CONNECT %s:%d HTTP/1.1\r\nHost: %[1]s:%[2]d\r\n\r\n", upstreamName, port(to)))
	r := bufio.NewReaderSize(c, 16)
	if resp := must(http.ReadResponse(r, &http.Request{Method: http.MethodConnect})); resp.StatusCode != http.StatusOK {
		check(errors.New(resp.Status), c.Close())
	}
	return c, r
}

func (b *bench) exitBulk(x *exit) {
	b.against(3, "gateway: tunnel, bare relay", "gateway: tunnel", "bare relay", "MB/s", "gateway: tunnel against bare", 0.9, func(bare bool) float64 {
		var c net.Conn
		var r io.Reader
		if bare {
			c = must(net.Dial("tcp", x.relay.Addr().String()))
			r = c
		} else {
			c, r = x.tunnel(x.source)
		}
		defer c.Close()
		began := time.Now()
		must(io.CopyBuffer(struct{ io.Writer }{io.Discard}, io.LimitReader(struct{ io.Reader }{r}, bulkBytes), make([]byte, 256<<10)))
		return bulkBytes / time.Since(began).Seconds() / 1e6
	})
}

// exitIdle opens tunnels in which nothing moves: what they cost is what the process has more of afterwards. The clients are
// in this process too, and the servers: their part of the memory is in the figure.
func (b *bench) exitIdle(x *exit) {
	before := resident()
	for range idleTunnels {
		c, _ := x.tunnel(x.silent)
		defer c.Close()
	}
	b.result.Value("gateway: 1000 idle tunnels, clients and servers included", "MB", resident()-before).AtMost(30)
}

// resident is the memory of this process after a collection, in megabytes.
func resident() float64 {
	runtime.GC() // twice with the other, which empties the pools
	debug.FreeOSMemory()
	return megabytes([]string{"/proc/self"}, "status", "VmRSS:") * 1.024 // a kernel's kilobyte has 1024
}

// rules measures a decision among many rules.
func (b *bench) rules() {
	var rules []policy.Rule
	var hosts []hostport.Host
	for n := range manyRules {
		hosts = append(hosts, hostport.MustParseHost(fmt.Sprintf("h%d.example.com", n)))
		rules = append(rules, policy.Rule{Name: fmt.Sprint("rule-", n), Action: policy.Allow, Host: policy.ExactHost(hosts[n]), Ports: policy.Ports(443)})
	}
	compiled := must(policy.Compile(policy.Only(rules...)))
	const decisions = 100_000
	began := time.Now()
	for n := range decisions {
		compiled.Decide(policy.Request{Scheme: policy.HTTPS, Host: hosts[n*7919%manyRules], Port: 443, Method: policy.Connect})
	}
	b.result.Value("gateway: decision among 10 000 rules", "µs", time.Since(began).Seconds()*1e6/decisions).AtMost(20)
}

// scrubbing measures looking through an answer for a value that is not in it.
func (b *bench) scrubbing() {
	text := strings.Repeat("{\"id\": 4711, \"title\": \"The quick brown fox jumps over the lazy dog\", \"url\": \"https://example.com/a?b=c\"}\n", 10_000)
	v := redact.New([]byte("ghp_16C7e42F292c6912E7710c838347Ae178B4a"))
	read, began := int64(0), time.Now()
	for read < 256<<20 {
		read += must(io.Copy(io.Discard, v.NewReader(strings.NewReader(text), redact.StreamOptions{})))
	}
	b.result.Value("gateway: scrubbing", "MB/s", float64(read)/time.Since(began).Seconds()/1e6).AtLeast(300)
}
