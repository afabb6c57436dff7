//go:build linux

package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"

	"github.com/coder/websocket"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/cdp/guard"
	"github.com/clawjail/clawjail/internal/policy/redact"
)

// The ways to drive one browser. They differ in nothing but the guard.
const (
	direct          = "direct"
	guardedClean    = "guarded, clean"
	guardedOperator = "guarded, operator"
)

// scrubbedValues is how many values the guard of an operator session looks for.
const scrubbedValues = 20

// relay is a plain Chromium with WebSocket endpoints before it, as a session has one.
type relay struct {
	*browser.Browser
	chromium *chromium
	mux      *cdp.Mux
	registry *guard.Registry
	scrub    *redact.Values

	server *http.Server
	url    string // the endpoints are below; nobody else knows it
	all    sync.WaitGroup
}

func startRelay(ctx context.Context, proxy string) (_ *relay, err error) {
	c, err := startChromium(ctx, proxy)
	if err != nil {
		return nil, err
	}
	conn, err := cdp.New(c.out, c.in, cdp.Options{})
	if err != nil {
		return nil, errors.Join(err, c.end())
	}
	b, err := browser.Open(ctx, conn)
	if err != nil {
		return nil, errors.Join(err, conn.Close(), c.end())
	}
	b.UseFolder(c.home)
	r := &relay{Browser: b, chromium: c, mux: cdp.NewMux(conn), registry: guard.NewRegistry(), scrub: secrets()}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, r.end())
	}
	secret := rand.Text()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /"+secret+"/{way}", r.serve)
	r.server, r.url = &http.Server{Handler: mux}, "ws://"+l.Addr().String()+"/"+secret+"/"
	r.all.Go(func() { _ = r.server.Serve(l) }) // ends with end
	return r, nil
}

func (r *relay) end() error {
	var errs []error
	if r.server != nil {
		errs = append(errs, r.server.Close())
	}
	errs = append(errs, r.mux.Close(), r.Close(context.Background()))
	r.all.Wait()
	return errors.Join(append(errs, r.chromium.end())...)
}

// endpoint is where a client drives the browser in a certain way.
func (r *relay) endpoint(way string) string {
	return r.url + map[string]string{direct: "direct", guardedClean: "clean", guardedOperator: "operator"}[way]
}

// filter is what stands before a client; a direct one has nil.
func (r *relay) filter(way string) (cdp.Filter, error) {
	o := guard.Options{Mode: guard.Clean, Registry: r.registry, Hidden: r.HiddenContext, DownloadsPath: r.DownloadsPath(), File: r.FilePath,
		Refused: func(string, string) {}, Seen: func(string) {}}
	switch way {
	case "direct":
		return nil, nil
	case "clean":
	case "operator":
		o.Mode, o.Scrub = guard.Operator, r.scrub
	default:
		return nil, fmt.Errorf("%q is no way", way)
	}
	return guard.New(o)
}

// serve carries the messages of one client, as the control plane does.
func (r *relay) serve(w http.ResponseWriter, req *http.Request) {
	filter, err := r.filter(req.PathValue("way"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	client, err := r.mux.Attach(req.Context(), cdp.ClientOptions{Filter: filter})
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer client.Close() // the browser ends soon
	ws, err := websocket.Accept(w, req, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return // Accept has answered
	}
	defer ws.CloseNow() // the client has left
	ws.SetReadLimit(cdp.MaxCommand)
	r.all.Add(1)
	defer r.all.Done()
	ctx, cancel := context.WithCancel(context.WithoutCancel(req.Context()))
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = ws.CloseNow() })()
	r.all.Go(func() {
		defer cancel()
		for {
			frame, err := client.Receive(ctx)
			if err != nil || ws.Write(ctx, websocket.MessageText, frame) != nil {
				return
			}
		}
	})
	for {
		_, frame, err := ws.Read(ctx)
		if err != nil || client.Send(ctx, frame) != nil {
			return
		}
	}
}

// secrets are values such as an operator's cookies have. None of them is on a page.
func secrets() *redact.Values {
	values := make([][]byte, scrubbedValues)
	for n := range values {
		var value [24]byte
		rand.Read(value[:]) // never fails, see its documentation
		values[n] = hex.AppendEncode(nil, value[:])
	}
	return redact.New(values...)
}
