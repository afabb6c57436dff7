package api

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/peer"
	"github.com/clawjail/clawjail/internal/store"
)

// BenchmarkForwarded compares a request, and a message of a DevTools client with its answer, at the control plane that has the session
// with the same at another one, which forwards it.
func BenchmarkForwarded(b *testing.B) {
	var nodes []store.Node
	peers := func(name string) *peer.Peers {
		p, err := peer.New(peer.Options{Node: name, Secret: secret.New(make([]byte, 32)), Log: slog.New(slog.DiscardHandler), Now: time.Now,
			Nodes: func(context.Context) ([]store.Node, error) {
				now := time.Now()
				for i := range nodes {
					nodes[i].SeenAt, nodes[i].ReadAt = now, now
				}
				return nodes, nil
			}})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(p.Close)
		return p
	}
	owners, others := peers("owner"), peers("other")
	id := "s_" + store.NodeTag("owner") + "abcdefghijk"
	owner := newTestAPI(b, func(o *Options) { o.Peers = owners })
	other := newTestAPI(b, func(o *Options) { o.Peers = others })
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		return l
	}
	serving, stop := context.WithCancel(b.Context())
	served := make(chan error, 3)
	between, direct, through := listen(), listen(), listen()
	nodes = []store.Node{{Name: "owner", PeerAddress: between.Addr().String()}, {Name: "other"}}
	go func() {
		served <- owner.ServePeers(serving, owners.Listener(between), owners.Handler(nil, http.HandlerFunc(owner.Forwarded)))
	}()
	go func() { served <- owner.Serve(serving, direct) }()
	go func() { served <- other.Serve(serving, through) }()
	b.Cleanup(func() {
		stop()
		for range cap(served) {
			if err := <-served; err != nil {
				b.Error(err)
			}
		}
	})
	for name, at := range map[string]net.Listener{"direct": direct, "forwarded": through} {
		address := at.Addr().String() + "/v1/sessions/" + id
		b.Run("request/"+name, func(b *testing.B) {
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			for b.Loop() {
				r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "http://"+address, nil)
				if err != nil {
					b.Fatal(err)
				}
				r.Host = "127.0.0.1:18780"
				r.Header.Set("Authorization", "Bearer "+goodKey)
				answer, err := client.Do(r)
				if err != nil {
					b.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, answer.Body)
				_ = answer.Body.Close()
				if answer.StatusCode != http.StatusOK {
					b.Fatal(answer.Status)
				}
			}
		})
		b.Run("message/"+name, func(b *testing.B) {
			conn, _, err := websocket.Dial(b.Context(), "ws://"+address+"/cdp", &websocket.DialOptions{Host: "127.0.0.1:18780",
				HTTPHeader: http.Header{"Authorization": {"Bearer " + goodKey}}})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = conn.CloseNow() }()
			conn.SetReadLimit(1 << 20)
			message := []byte(`{"id":1,"method":"A.b","params":{"x":"` + strings.Repeat("x", 500) + `"}}`)
			for b.Loop() {
				if err := conn.Write(b.Context(), websocket.MessageText, message); err != nil {
					b.Fatal(err)
				}
				for range 2 { // an event, and the answer, which is the message
					if _, _, err := conn.Read(b.Context()); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
