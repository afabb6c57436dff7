package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"testing"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/hostport"
)

const benchBlock = 1 << 20

// source is a server that sends without end.
func source(b *testing.B) net.Listener {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				for block := make([]byte, 256<<10); ; {
					if _, err := c.Write(block); err != nil {
						return
					}
				}
			})
		}
	})
	b.Cleanup(func() { ln.Close(); wg.Wait() })
	return ln
}

func drawFrom(b *testing.B, r io.Reader) {
	b.SetBytes(benchBlock)
	b.ReportAllocs()
	buf := make([]byte, benchBlock)
	for b.Loop() {
		if _, err := io.ReadFull(r, buf); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkConnectBulk compares a tunnel with a relay that does nothing but copy.
func BenchmarkConnectBulk(b *testing.B) {
	b.Run("relay", func(b *testing.B) {
		upstream := source(b)
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			u, err := net.Dial("tcp", upstream.Addr().String())
			if err != nil {
				return
			}
			defer u.Close()
			_, _ = io.Copy(c, u)
		})
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		drawFrom(b, c)
		c.Close()
		ln.Close()
		wg.Wait()
	})
	b.Run("gateway", func(b *testing.B) {
		c, br := benchTunnel(b, source(b))
		defer c.Close()
		drawFrom(b, br)
	})
}

// BenchmarkConnect measures opening and closing a tunnel.
func BenchmarkConnect(b *testing.B) {
	ln := source(b)
	g, addr, port := benchGateway(b, ln)
	_ = g
	for b.Loop() {
		c, _ := openTunnel(b, addr, port)
		c.Close()
	}
}

func benchTunnel(b *testing.B, upstream net.Listener) (net.Conn, *bufio.Reader) {
	_, addr, port := benchGateway(b, upstream)
	return openTunnel(b, addr, port)
}

func benchGateway(b *testing.B, upstream net.Listener) (*Gateway, string, uint16) {
	port := uint16(upstream.Addr().(*net.TCPAddr).Port)
	host := hostport.MustParseHost("bulk.corp")
	g, err := New(Config{
		Networks: alone,
		Limits:   DefaultLimits(),
		Records:  nothing{},
	})
	if err != nil {
		b.Fatal(err)
	}
	err = g.Admit(netip.MustParseAddr("127.0.0.1"), Caller{Jail: "bench", Policy: policy.Only(policy.Rule{
		Name: "bulk", Action: policy.Allow, Host: policy.ExactHost(host), Ports: policy.Ports(port), Opaque: true, Address: netip.MustParseAddr("127.0.0.1"),
	})})
	if err != nil {
		b.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- g.Serve(context.Background(), ln) }()
	b.Cleanup(func() {
		if err := g.Close(); err != nil {
			b.Error(err)
		}
		<-served
	})
	return g, ln.Addr().String(), port
}

// nothing writes nothing down.
type nothing struct{}

func (nothing) Begin(context.Context, Decision) (Record, error) { return nothing{}, nil }
func (nothing) Refused(Decision)                                {}
func (nothing) End(Outcome)                                     {}

func openTunnel(b *testing.B, addr string, port uint16) (net.Conn, *bufio.Reader) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		b.Fatal(err)
	}
	fmt.Fprintf(c, "CONNECT bulk.corp:%d HTTP/1.1\r\nHost: x\r\n\r\n", port)
	br := bufio.NewReaderSize(c, 16)
	resp, err := http.ReadResponse(br, &http.Request{Method: "CONNECT"})
	if err != nil || resp.StatusCode != 200 {
		b.Fatal(resp, err)
	}
	return c, br
}
