package trawl

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
)

const seed = "canary/Value+7"

func found(hits []Hit) []string {
	var out []string
	for _, h := range hits {
		out = append(out, h.Form+" "+h.Where)
	}
	slices.Sort(out)
	return out
}

func TestLogsAreSearchedWhileTheyAreWritten(t *testing.T) {
	r := newTestSet(t, one(seed)).Recorder()
	a, b := r.Log("log a"), r.Log("log of "+seed)
	for _, text := range []string{"msg=canary", "/Value", "+7"} {
		if hits := r.Hits(); len(hits) > 0 {
			t.Errorf("found %v before it is written", hits)
		}
		if n, err := io.WriteString(a, text); n != len(text) || err != nil {
			t.Fatal(n, err)
		}
	}
	want := []Hit{{"one", "raw", "log a", 4}}
	for range 2 {
		if hits := r.Hits(); !slices.Equal(hits, want) {
			t.Errorf("found %v, want %v", hits, want)
		}
	}
	fmt.Fprintf(b, "%s %[1]s %s", url.QueryEscape(seed), seed)
	want = append(want, Hit{"one", "url", "log of [one]", 0}, Hit{"one", "raw", "log of [one]", 38})
	hits := r.Hits()
	if len(hits) != 3 || !slices.Contains(hits, want[1]) || !slices.Contains(hits, want[2]) {
		t.Errorf("found %v, want %v", hits, want)
	}
	if stats := r.Stats(); stats.Logs != 2 || stats.Bytes == 0 {
		t.Errorf("looked at %+v", stats)
	}
}

func TestLogsAreKeptInBoundedMemory(t *testing.T) {
	s := newTestSet(t, one(seed))
	r := s.Recorder()
	w := r.Log("log")
	line := []byte(strings.Repeat("a line without anything in it\n", 1000))
	total := 0
	for range 300 {
		n, err := w.Write(line)
		if err != nil {
			t.Fatal(err)
		}
		total += n
	}
	fmt.Fprint(w, seed)
	for st := range r.open {
		if len(st.buffer) > chunk+s.longest || cap(st.buffer) > 2*(chunk+s.longest) {
			t.Errorf("%d bytes are kept of %d", cap(st.buffer), total)
		}
	}
	if hits := r.Hits(); len(hits) != 1 || hits[0].Offset != int64(total) {
		t.Errorf("found %v, want one hit at %d", hits, total)
	}
}

func TestManyMayWriteAtOnce(t *testing.T) {
	r := newTestSet(t, one(seed)).Recorder()
	shared := r.Log("shared")
	var wait sync.WaitGroup
	for n := range 8 {
		wait.Go(func() {
			own := r.Log(fmt.Sprint("log ", n))
			for range 100 {
				fmt.Fprintln(shared, seed)
				fmt.Fprintln(own, seed)
				r.Hits()
			}
		})
	}
	wait.Wait()
	if hits := r.Hits(); len(hits) != 9 {
		t.Errorf("found %d, want 9", len(hits))
	}
}

// site answers with the value in the place that the path names.
func site(t *testing.T) *httptest.Server {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch req.URL.Path {
		case "/head":
			w.Header().Set("X-Note", seed)
		case "/header-name":
			w.Header().Set("X-Canary-Value-7", "x")
		case "/body", "/v1/" + seed:
			fmt.Fprintf(w, `{"v": "%s"}`, seed)
		case "/error":
			http.Error(w, "no such thing: "+seed, http.StatusNotFound)
		case "/trailer":
			w.Header().Set("Trailer", "X-End")
			fmt.Fprint(w, "text")
			w.Header().Set("X-End", seed)
		case "/packed", "/packed-always":
			if req.URL.Path == "/packed-always" || strings.Contains(req.Header.Get("Accept-Encoding"), "gzip") {
				w.Header().Set("Content-Encoding", "gzip")
				z := gzip.NewWriter(w)
				fmt.Fprint(z, seed)
				_ = z.Close() // the client notices
			}
		case "/upgrade":
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				return
			}
			defer func() { _ = conn.Close() }() // the client notices
			fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			line, _ := bufio.NewReader(conn).ReadString('\n') // the client notices
			fmt.Fprint(conn, line)
		default:
			fmt.Fprint(w, "nothing")
		}
	}))
	t.Cleanup(server.Close)
	return server
}

func TestAnswersAreSearched(t *testing.T) {
	server := site(t)
	for path, want := range map[string][]string{
		"/head":                        {"raw the answer to GET /head (head)"},
		"/body":                        {"raw the answer to GET /body (body)"},
		"/v1/" + seed + "?key=" + seed: {"raw the answer to GET /v1/[one] (body)"},
		"/error":                       {"raw the answer to GET /error (body)"},
		"/trailer":                     {"raw the answer to GET /trailer (trailer)"},
		"/packed":                      {"raw the answer to GET /packed (body)"},
		"/packed-always":               {"raw the answer to GET /packed-always (body)"},
		"/":                            nil,
		"/?key=" + seed:                nil, // the request is not searched
	} {
		for _, drop := range []string{"", "gzip"} {
			r := newTestSet(t, one(seed)).Recorder()
			base := http.DefaultTransport.(*http.Transport).Clone()
			client := http.Client{Transport: r.Transport(base)}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if drop != "" {
				req.Header.Set("Accept-Encoding", drop)
			}
			req.Header.Set("Authorization", "Bearer "+seed)
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				t.Fatal(err)
			}
			if err := resp.Body.Close(); err != nil {
				t.Fatal(err)
			}
			if got := found(r.Hits()); !slices.Equal(got, want) {
				t.Errorf("%s: found %q, want %q", path, got, want)
			}
			if stats := r.Stats(); stats.Answers != 1 || stats.Bytes < 20 || stats.Damaged != 0 {
				t.Errorf("%s: looked at %+v", path, stats)
			}
			if len(r.open) != 0 || req.Header.Get("Accept-Encoding") != drop {
				t.Errorf("%s: a stream stays, or the caller's request was changed", path)
			}
			base.CloseIdleConnections()
		}
	}
}

func TestAnAnswerThatStaysPackedIsCounted(t *testing.T) {
	server := site(t)
	r := newTestSet(t, one(seed)).Recorder()
	base := &http.Transport{DisableCompression: true}
	defer base.CloseIdleConnections()
	resp, err := (&http.Client{Transport: r.Transport(base)}).Get(server.URL + "/packed-always")
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Fatal(err)
	}
	if stats := r.Stats(); stats.Damaged != 1 {
		t.Errorf("looked at %+v", stats)
	}
}

func TestErrorsOfATransportAreSearched(t *testing.T) {
	r := newTestSet(t, one(seed)).Recorder()
	broken := errors.New("connect to " + seed)
	base := roundTripper(func(*http.Request) (*http.Response, error) { return nil, broken })
	_, err := (&http.Client{Transport: r.Transport(base)}).Get("http://localhost/x")
	if !errors.Is(err, broken) {
		t.Errorf("the error is %v", err)
	}
	if got := found(r.Hits()); !slices.Equal(got, []string{"raw the answer to GET /x (error)"}) {
		t.Errorf("found %q", got)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func TestAnUpgradedConnectionIsSearched(t *testing.T) {
	server := site(t)
	r := newTestSet(t, one(seed)).Recorder()
	base := &http.Transport{DialContext: (&net.Dialer{}).DialContext}
	defer base.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/upgrade", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "echo")
	resp, err := r.Transport(base).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if resp.StatusCode != http.StatusSwitchingProtocols || !ok {
		t.Fatalf("status %d, body %T", resp.StatusCode, resp.Body)
	}
	fmt.Fprintln(conn, seed)
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil || line != seed+"\n" {
		t.Fatalf("read %q, %v", line, err)
	}
	// It is found while the connection is open.
	if got := found(r.Hits()); !slices.Equal(got, []string{"raw the answer to GET /upgrade (body)"}) {
		t.Errorf("found %q", got)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if got := r.Hits(); len(got) != 1 || len(r.open) != 0 {
		t.Errorf("after the end: %v, %d streams", got, len(r.open))
	}
}
