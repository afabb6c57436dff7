package auditlog

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/audit/audittest"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/policy/netguard"
	"github.com/clawjail/clawjail/internal/store/open"
)

// auditLog is a durable one on a real disk.
func auditLog(tb testing.TB) *audit.Log {
	tb.Helper()
	dir := tb.TempDir()
	if err := os.Mkdir(filepath.Join(dir, open.Folder), 0o700); err != nil {
		tb.Fatal(err)
	}
	rows, err := open.Open(tb.Context(), "", dir)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := rows.Close(); err != nil {
			tb.Error(err)
		}
	})
	log, _ := audittest.Open(tb, rows)
	return log
}

// BenchmarkRequest compares a request through the gateway, with durable records, with one through a reverse proxy that does
// nothing else.
func BenchmarkRequest(b *testing.B) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	b.Cleanup(upstream.Close)
	to, err := url.Parse(upstream.URL)
	if err != nil {
		b.Fatal(err)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 128
	bare := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }, Transport: transport})
	b.Cleanup(bare.Close)
	port := uint16(upstream.Listener.Addr().(*net.TCPAddr).Port)
	g, err := gateway.New(gateway.Config{Networks: func() *netguard.Networks { return netguard.NewNetworks(nil, nil) }, Records: New(auditLog(b)), Limits: gateway.DefaultLimits(), Rates: func(gateway.Caller) gateway.Rates {
		return gateway.Rates{Proxy: 1 << 30, Execute: 1, Service: 1, LLM: 1, Tunnels: 1}
	}})
	if err != nil {
		b.Fatal(err)
	}
	loopback := netip.MustParseAddr("127.0.0.1")
	if err := g.Admit(loopback, gateway.Caller{Jail: "bench", Agent: "bench", Tenant: "default", Actor: "agent:bench", Policy: policy.Only(policy.Rule{
		Name: "upstream", Action: policy.Allow, Host: policy.ExactHost(hostport.MustParseHost("upstream.test")), Ports: policy.Ports(port), Address: loopback})}); err != nil {
		b.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- g.Serve(context.Background(), l) }()
	b.Cleanup(func() {
		if err := g.Close(); err != nil {
			b.Error(err)
		}
		<-served
	})
	through := &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: l.Addr().String()}), MaxIdleConnsPerHost: 128}
	plain := &http.Transport{MaxIdleConnsPerHost: 128}
	ask := func(b *testing.B, t *http.Transport, at string) {
		resp, err := (&http.Client{Transport: t}).Get(at)
		if err != nil {
			b.Error(err)
			return
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 200 {
			b.Error(resp.Status)
		}
	}
	for name, way := range map[string]struct {
		t  *http.Transport
		at string
	}{"bare": {plain, bare.URL}, "gateway": {through, fmt.Sprintf("http://upstream.test:%d/", port)}} {
		b.Run(name+"/1", func(b *testing.B) {
			for b.Loop() {
				ask(b, way.t, way.at)
			}
		})
		b.Run(name+"/64", func(b *testing.B) {
			b.SetParallelism(32)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					ask(b, way.t, way.at)
				}
			})
		})
	}
	through.CloseIdleConnections()
	plain.CloseIdleConnections()
}
