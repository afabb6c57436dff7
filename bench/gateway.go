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
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/gateway/hostnet"
	records "github.com/clawjail/clawjail/internal/gateway/ledger"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/policy/redact"
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
	silent   net.Listener     // neither sends nor ends anything
	ends     []func() error   // what is to be done at the end, the last first
}

// gatewayPart measures the way out of a jail: everything runs in this process, on loopback.
func (b *bench) gatewayPart(ctx context.Context) error {
	x := &exit{}
	err := x.open(ctx)
	if err == nil {
		err = errors.Join(b.exitLatency(x), b.exitThroughput(x), b.exitBulk(x), b.exitIdle(x))
	}
	err = errors.Join(err, b.rules(), b.scrubbing())
	for _, end := range slices.Backward(x.ends) {
		err = errors.Join(err, end())
	}
	return err
}

const upstreamName = "upstream.bench.test"

func (x *exit) open(ctx context.Context) error {
	l, err := newLedger(ctx)
	if err != nil {
		return err
	}
	x.ends = append(x.ends, l.close)
	x.upstream = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "hello") // whoever left needs no answer
	}))
	to, err := url.Parse(x.upstream.URL)
	if err != nil {
		return err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 2 * exitCallers
	x.bare = httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }, Transport: transport})
	x.ends = append(x.ends, func() error { x.bare.Close(); transport.CloseIdleConnections(); x.upstream.Close(); return nil })
	block := make([]byte, 256<<10)
	for into, do := range map[*net.Listener]func(net.Conn){
		&x.source: func(c net.Conn) {
			for err := error(nil); err == nil; {
				_, err = c.Write(block)
			}
		},
		&x.relay: func(c net.Conn) {
			if u, err := net.Dial("tcp", x.source.Addr().String()); err == nil {
				defer u.Close()
				_, _ = io.Copy(c, u) // ends with either
			}
		},
		&x.silent: func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, // until it is closed
	} {
		if *into, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return err
		}
		x.ends = append(x.ends, (*into).Close)
		go serve(*into, do)
	}

	loopback := netip.MustParseAddr("127.0.0.1")
	var rules []policy.Rule
	for _, l := range []net.Listener{x.upstream.Listener, x.source, x.silent} {
		rules = append(rules, policy.Rule{Name: fmt.Sprint("port-", port(l)), Action: policy.Allow, Host: policy.ExactHost(hostport.MustParseHost(upstreamName)),
			Opaque: true, Ports: policy.Ports(port(l)), Address: loopback})
	}
	limits := gateway.DefaultLimits()
	limits.ConnectionsPerCaller = 2 * idleTunnels
	networks, err := hostnet.Open(slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	x.ends = append(x.ends, networks.Close)
	x.gateway, err = gateway.New(gateway.Config{Networks: networks.Now, Records: records.New(l.log), Limits: limits, Rates: func(gateway.Caller) gateway.Rates {
		return gateway.Rates{Proxy: 1 << 30, Execute: 1, Service: 1, LLM: 1, Tunnels: 2 * idleTunnels}
	}})
	if err != nil {
		return err
	}
	err = x.gateway.Admit(loopback, gateway.Caller{Jail: "bench", Agent: "bench", Tenant: "default", Actor: "agent:bench", Policy: policy.Only(rules...)})
	if err != nil {
		return err
	}
	in, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	x.address = in.Addr().String()
	served := make(chan error, 1)
	go func() { served <- x.gateway.Serve(ctx, in) }()
	x.ends = append(x.ends, func() error { return errors.Join(x.gateway.Close(), <-served) })
	return nil
}

// serve does something with each connection, until the listener is closed.
func serve(l net.Listener, do func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			do(c)
		}()
	}
}

func port(l net.Listener) uint16 { return uint16(l.Addr().(*net.TCPAddr).Port) }

// asker asks through the gateway, or the bare proxy.
func (x *exit) asker(bare bool) (ask func() error, close func()) {
	transport := &http.Transport{MaxIdleConnsPerHost: 2 * exitCallers, DisableCompression: true}
	at := x.bare.URL + "/"
	if !bare {
		transport.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: x.address})
		at = fmt.Sprintf("http://%s:%d/", upstreamName, port(x.upstream.Listener))
	}
	c := &http.Client{Transport: transport}
	return func() error {
		resp, err := c.Get(at)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(resp.Body)
		if err = errors.Join(err, resp.Body.Close()); err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", resp.Status, body)
		}
		return err
	}, c.CloseIdleConnections
}

func (b *bench) exitLatency(x *exit) error {
	bare, closeBare := x.asker(true)
	defer closeBare()
	ours, closeOurs := x.asker(false)
	defer closeOurs()
	const name, peer = "gateway: request, durable audit", "gateway: request, bare reverse proxy"
	_, err := b.inTurn(exitRounds, 50, func(t times) error { return errors.Join(t.timed(peer, bare), t.timed(name, ours)) })
	if err != nil {
		return err
	}
	b.result.Beside("bare httputil.ReverseProxy", peer, name)
	b.result.Value("gateway: added latency", "ms", b.result.Figures[name].P50-b.result.Figures[peer].P50).AtMost(0.8)
	return nil
}

// against measures a rate with the gateway and without, in turn: what counts is the best of each.
func (b *bench) against(rounds int, ours, bare, label, unit, ratio string, least float64, rate func(bare bool) (float64, error)) error {
	rates := map[bool][]float64{}
	for n := range 2 * rounds {
		got, err := rate(n%2 == 0)
		if err != nil {
			return fmt.Errorf("%s: %w", ratio, err)
		}
		rates[n%2 == 0] = append(rates[n%2 == 0], got)
	}
	b.result.Samples(bare, unit, rates[true])
	b.result.Samples(ours, unit, rates[false])
	b.result.Beside(label, bare, ours)
	b.result.Value(ratio, "×", slices.Max(rates[false])/slices.Max(rates[true])).AtLeast(least)
	return nil
}

func (b *bench) exitThroughput(x *exit) error {
	return b.against(5, "gateway: requests a second, durable audit", "gateway: requests a second, bare", "bare httputil.ReverseProxy", "1/s",
		"gateway: throughput against bare", 0.65, func(bare bool) (float64, error) {
			ask, close := x.asker(bare)
			defer close()
			n, err := atOnce(exitCallers, during(exitFor), func(int) error { return ask() })
			return float64(n) / exitFor.Seconds(), err
		})
}

// tunnel opens one through the gateway.
func (x *exit) tunnel(to net.Listener) (net.Conn, io.Reader, error) {
	c, err := net.Dial("tcp", x.address)
	if err != nil {
		return nil, nil, err
	}
	_, err = fmt.Fprintf(c, "CONNECT %s:%d HTTP/1.1\r\nHost: %[1]s:%[2]d\r\n\r\n", upstreamName, port(to))
	r := bufio.NewReaderSize(c, 16)
	if err == nil {
		var resp *http.Response
		if resp, err = http.ReadResponse(r, &http.Request{Method: http.MethodConnect}); err == nil && resp.StatusCode != http.StatusOK {
			err = errors.New(resp.Status)
		}
	}
	if err != nil {
		return nil, nil, errors.Join(err, c.Close())
	}
	return c, r, nil
}

func (b *bench) exitBulk(x *exit) error {
	return b.against(3, "gateway: tunnel", "gateway: tunnel, bare relay", "bare relay", "MB/s", "gateway: tunnel against bare", 0.9, func(bare bool) (float64, error) {
		var c net.Conn
		var r io.Reader
		var err error
		if bare {
			c, err = net.Dial("tcp", x.relay.Addr().String())
			r = c
		} else {
			c, r, err = x.tunnel(x.source)
		}
		if err != nil {
			return 0, err
		}
		began := time.Now()
		_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, io.LimitReader(struct{ io.Reader }{r}, bulkBytes), make([]byte, 256<<10))
		return bulkBytes / time.Since(began).Seconds() / 1e6, errors.Join(err, c.Close())
	})
}

// exitIdle opens tunnels in which nothing moves: what they cost is what the process has more of afterwards. The clients are
// in this process too, and the servers: their part of the memory is in the figure.
func (b *bench) exitIdle(x *exit) error {
	before := resident()
	for range idleTunnels {
		c, _, err := x.tunnel(x.silent)
		if err != nil {
			return fmt.Errorf("an idle tunnel: %w", err)
		}
		defer c.Close()
	}
	b.result.Value("gateway: 1000 idle tunnels, clients and servers included", "MB", resident()-before).AtMost(30)
	return nil
}

// resident is the memory of this process after a collection, in megabytes.
func resident() float64 {
	debug.FreeOSMemory()
	return megabytes([]string{"/proc/self"}, "status", "VmRSS:") * 1.024 // a kernel's kilobyte has 1024
}

// rules measures a decision among many rules.
func (b *bench) rules() error {
	var rules []policy.Rule
	var hosts []hostport.Host
	for n := range manyRules {
		hosts = append(hosts, hostport.MustParseHost(fmt.Sprintf("h%d.example.com", n)))
		rules = append(rules, policy.Rule{Name: fmt.Sprint("rule-", n), Action: policy.Allow, Host: policy.ExactHost(hosts[n]), Ports: policy.Ports(443)})
	}
	compiled, err := policy.Compile(policy.Only(rules...))
	if err != nil {
		return err
	}
	const decisions = 100_000
	began := time.Now()
	for n := range decisions {
		compiled.Decide(policy.Request{Scheme: policy.HTTPS, Host: hosts[n*7919%manyRules], Port: 443, Method: policy.Connect})
	}
	b.result.Value("gateway: decision among 10 000 rules", "µs", time.Since(began).Seconds()*1e6/decisions).AtMost(20)
	return nil
}

// scrubbing measures looking through an answer for a value that is not in it.
func (b *bench) scrubbing() error {
	text := strings.Repeat("{\"id\": 4711, \"title\": \"The quick brown fox jumps over the lazy dog\", \"url\": \"https://example.com/a?b=c\"}\n", 10_000)
	v := redact.New([]byte("ghp_16C7e42F292c6912E7710c838347Ae178B4a"))
	var read int64
	began := time.Now()
	for read < scrubbed {
		n, err := io.Copy(io.Discard, v.NewReader(strings.NewReader(text), redact.StreamOptions{}))
		if err != nil {
			return err
		}
		read += n
	}
	b.result.Value("gateway: scrubbing", "MB/s", float64(read)/time.Since(began).Seconds()/1e6).AtLeast(300)
	return nil
}
