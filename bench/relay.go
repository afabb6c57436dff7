//go:build linux

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"

	"github.com/clawjail/clawjail/internal/api/socket"
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
	scrub    *redact.Values // such values as an operator's cookies have; none is on a page

	server *httptest.Server
	secret string // the endpoints are below; nobody else knows it
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
	values := make([][]byte, scrubbedValues)
	for n := range values {
		values[n] = []byte(rand.Text() + rand.Text())
	}
	r := &relay{Browser: b, chromium: c, mux: cdp.NewMux(conn), registry: guard.NewRegistry(), scrub: redact.New(values...), secret: rand.Text()}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /"+r.secret+"/{way}", r.serve)
	r.server = httptest.NewServer(mux)
	return r, nil
}

func (r *relay) end() error {
	r.server.Close()
	err := errors.Join(r.mux.Close(), r.Close(context.Background()))
	r.all.Wait()
	return errors.Join(err, r.chromium.end())
}

// endpoint is where a client drives the browser in a certain way.
func (r *relay) endpoint(way string) string {
	return strings.Replace(r.server.URL, "http", "ws", 1) + "/" + r.secret + "/" + url.PathEscape(way)
}

// filter is what stands before a client; a direct one has nil.
func (r *relay) filter(way string) (cdp.Filter, error) {
	o := guard.Options{Mode: guard.Clean, Registry: r.registry, Hidden: r.HiddenContext, DownloadsPath: r.DownloadsPath(), File: r.FilePath,
		Refused: func(string, string) {}, Seen: func(string) {}}
	switch way {
	case direct:
		return nil, nil
	case guardedClean:
	case guardedOperator:
		o.Mode, o.Scrub = guard.Operator, r.scrub
	default:
		return nil, fmt.Errorf("%q is no way", way)
	}
	return guard.New(o)
}

// serve carries the messages of one client, as the control plane does.
func (r *relay) serve(w http.ResponseWriter, req *http.Request) {
	r.all.Add(1)
	defer r.all.Done()
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
	_ = socket.Serve(req.Context(), w, req, client) // until either has left
	_ = client.Close()
}
