//go:build linux

package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptrace"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/console"
	"github.com/clawjail/clawjail/internal/op"
)

const (
	// shownAgents and shownRecords are what the pages of the console show at once, and have to find their rows among.
	shownAgents, shownRecords = 200, 10_000
	// pageRounds is how often each page is asked for.
	pageRounds = 50
	// fillers make the records, at the same time.
	fillers = 16
)

// desk is somebody at the console of an instance.
type desk struct {
	*box
	base   string
	client *http.Client // it keeps its connections, and follows no redirection
	jar    http.CookieJar
}

// consolePart measures the console, in an instance of its own: it is to be full.
func (b *bench) consolePart(ctx context.Context) (err error) {
	x, err := b.start(ctx, 1_879_700_000, "warm_pool:\n  size: 0\n"+b.site.settings())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.end()) }()
	d, err := x.signedIn(ctx)
	if err != nil {
		return fmt.Errorf("sign in: %w", err)
	}
	defer d.client.CloseIdleConnections()
	for _, part := range []struct {
		name    string
		measure func(context.Context, *desk) error
	}{{"pages", b.pages}, {"live view", b.live}} {
		if err := part.measure(ctx, d); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// signedIn signs in with a link, as `clawjail console` does.
func (x *box) signedIn(ctx context.Context) (*desk, error) {
	link, err := x.api.ConsoleLink(ctx)
	if err != nil {
		return nil, err
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, err
	}
	d := &desk{box: x, base: "http://" + x.Config.Listen.String(), jar: jar, client: &http.Client{Jar: jar,
		Transport:     &http.Transport{DisableCompression: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	_, err = d.post(ctx, "/sign-in", url.Values{"code": {link.Code}})
	return d, err
}

// post sends a form of the console's, and returns where it leads.
func (d *desk) post(ctx context.Context, path string, form url.Values) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, d.base+console.Prefix+path, strings.NewReader(form.Encode()))
	if err != nil {
		return "", err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := d.client.Do(r)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err == nil && resp.StatusCode != http.StatusSeeOther {
		err = fmt.Errorf("%s: %s: %.2000s", path, resp.Status, body)
	}
	return strings.TrimPrefix(resp.Header.Get("Location"), console.Prefix), err
}

// get asks for something, and says when the first byte of the answer came.
func (d *desk) get(ctx context.Context, c *http.Client, path string) (body []byte, first time.Duration, err error) {
	var began time.Time
	r, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotFirstResponseByte: func() { first = time.Since(began) }}),
		http.MethodGet, d.base+path, nil)
	if err != nil {
		return nil, 0, err
	}
	r.Header.Set("Accept", "text/html,*/*")
	r.Header.Set("Accept-Encoding", "gzip")
	began = time.Now()
	resp, err := c.Do(r)
	if err != nil {
		return nil, 0, err
	}
	body, err = io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", path, resp.Status)
	}
	return body, first, err
}

// fill makes the agents and the records, by way of the API.
func (d *desk) fill(ctx context.Context) error {
	errs := make([]error, fillers)
	var all sync.WaitGroup
	for n := range fillers {
		all.Go(func() {
			for i := n; i < shownAgents && errs[n] == nil; i += fillers {
				errs[n] = d.fillAgent(ctx, fmt.Sprintf("shown-%d", i))
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	var rows lines
	if err := d.api.AuditExport(ctx, &rows, ""); err != nil || rows < shownRecords {
		return errors.Join(err, fmt.Errorf("%d records were made", rows))
	}
	return nil
}

// fillAgent makes one agent, and what it adds to the audit log: each of these actions has an intent and an outcome.
func (d *desk) fillAgent(ctx context.Context, name string) error {
	_, err := client.Call(ctx, d.api, op.CreateAgent(), op.NewAgent{Body: op.With(op.AgentRequest{Name: name})})
	for n := 0; n < shownRecords/shownAgents/4 && err == nil; n++ {
		err = errors.Join(client.Do(ctx, d.api, op.RevokeAgent(), op.OneAgent{Name: name}), client.Do(ctx, d.api, op.RestoreAgent(), op.OneAgent{Name: name}))
	}
	return err
}

// lines counts those that are written to it.
type lines int

func (l *lines) Write(p []byte) (int, error) {
	*l += lines(strings.Count(string(p), "\n"))
	return len(p), nil
}

// pages measures all pages, in turn, next to an address of the API that only answers.
func (b *bench) pages(ctx context.Context, d *desk) (err error) {
	if err := d.fill(ctx); err != nil {
		return fmt.Errorf("fill the instance: %w", err)
	}
	s, err := d.api.Open(ctx, api.OpenRequest{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.api.Close(context.WithoutCancel(ctx), s.ID, true)) }()
	found, err := client.Call(ctx, d.api, op.ListAudit(), op.AuditQuery{Limit: 1})
	if err != nil || len(found.Rows) == 0 {
		return errors.Join(err, errors.New("no record is found"))
	}
	const health = "/v1/health"
	paths := []string{health}
	names := map[string]string{health: health}
	for name, path := range map[string]string{"/sessions/ID": "/sessions/" + s.ID, "/audit/ID": "/audit/" + found.Rows[0].ID, "/agents/NAME": "/agents/default/shown-7",
		"/agents/NAME/tokens": "/agents/default/shown-7/tokens", "/agents/NAME/network": "/agents/default/shown-7/network"} {
		names[console.Prefix+path] = name
		paths = append(paths, console.Prefix+path)
	}
	for _, path := range []string{"/", "/sessions", "/refresh", "/agents", "/agents/add", "/agents/plan", "/credentials", "/credentials/import",
		"/credentials/secrets", "/credentials/grants", "/credentials/grants/issue", "/network", "/network/explain", "/network/requests",
		"/network/services", "/network/providers", "/network/usage", "/audit", "/audit?action=session", "/settings", "/settings/people",
		"/settings/keys", "/settings/machine", "/settings/host-browser", "/settings/servers"} {
		names[console.Prefix+path] = path
		paths = append(paths, console.Prefix+path)
	}
	each := map[string][]time.Duration{}
	for n := range pageRounds + 2 { // the first two fill the caches
		for _, path := range paths {
			_, first, err := d.get(ctx, d.client, path)
			if err != nil {
				return err
			}
			if n >= 2 {
				each[path] = append(each[path], first)
			}
		}
	}
	var slowest float64
	for _, path := range paths {
		name := "console: first byte, " + names[path]
		f := b.result.Times(name, each[path])
		if path != health {
			b.result.AtMost(name, 20)
			slowest = max(slowest, f.P95)
		}
	}
	b.result.Value("console: first byte, page that is slowest, p95", "ms", slowest)
	b.result.AtMost("console: first byte, page that is slowest, p95", 20)
	return b.weights(ctx, d, paths[1:], names)
}

// weights counts the bytes of each page with an empty cache: what comes over the connection, headers included.
func (b *bench) weights(ctx context.Context, d *desk, paths []string, names map[string]string) error {
	type weight struct {
		name        string
		html, bytes int64
	}
	var all []weight
	for _, path := range paths {
		w, err := d.weigh(ctx, path)
		if err != nil {
			return err
		}
		all = append(all, weight{names[path], w.html, w.bytes})
	}
	slices.SortFunc(all, func(one, other weight) int { return int(other.bytes - one.bytes) })
	var said []string
	for _, w := range all[:5] {
		said = append(said, fmt.Sprintf("%s %d KB of which %d KB HTML", w.name, w.bytes/1000, w.html/1000))
	}
	b.note("the heaviest pages: %s", strings.Join(said, ", "))
	b.result.Value("console: weight of the heaviest page", "KB", float64(all[0].bytes)/1000)
	b.result.AtMost("console: weight of the heaviest page", 150)
	b.result.Value("console: weight of the page in the middle", "KB", float64(all[len(all)/2].bytes)/1000)
	return nil
}

// referred are the files that a page, a style sheet or a module names.
var referred = regexp.MustCompile(`(?:/console/static/[0-9a-f]+|from '\.)/([a-z0-9-]+\.[a-z]+)`)

type weighed struct{ html, bytes int64 }

// weigh loads a page and all that it refers to over new connections.
func (d *desk) weigh(ctx context.Context, path string) (out weighed, err error) {
	var read atomic.Int64
	transport := &http.Transport{DisableCompression: true, DialContext: func(ctx context.Context, network, at string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, at)
		return &counted{c, &read}, err
	}}
	defer transport.CloseIdleConnections()
	c := &http.Client{Jar: d.jar, Transport: transport}
	page, _, err := d.get(ctx, c, path)
	if err != nil {
		return out, err
	}
	out.html = read.Load()
	folder := regexp.MustCompile(`/console/static/[0-9a-f]+/`).Find(page)
	loaded := map[string]bool{}
	for wanted := referred.FindAllSubmatch(page, -1); len(wanted) > 0; wanted = wanted[1:] {
		name := string(wanted[0][1])
		if loaded[name] {
			continue
		}
		loaded[name] = true
		text, _, err := d.get(ctx, c, string(folder)+name)
		if err != nil {
			return out, err
		}
		if text, err = unzipped(text); err != nil {
			return out, fmt.Errorf("%s: %w", name, err)
		}
		wanted = append(wanted, referred.FindAllSubmatch(text, -1)...)
	}
	if len(loaded) < 3 {
		return out, fmt.Errorf("%s refers to %d files", path, len(loaded))
	}
	out.bytes = read.Load()
	return out, nil
}

// unzipped is a file as it was before it was compressed.
func unzipped(text []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// counted counts what is read.
type counted struct {
	net.Conn
	read *atomic.Int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.read.Add(int64(n))
	return n, err
}
