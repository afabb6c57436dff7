package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// serving serves an API on loopback until the test ends, and returns its address and what ends it.
func serving(t *testing.T, a *API) (address string, stop func() error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Serve(ctx, l) }()
	stopped := false
	stop = func() error {
		stopped = true
		cancel()
		return <-ended
	}
	t.Cleanup(func() {
		if !stopped {
			_ = stop()
		}
	})
	return l.Addr().String(), stop
}

// A body that was announced and does not come keeps neither the answer back nor the server from ending.
func TestABodyThatDoesNotComeIsNotWaitedFor(t *testing.T) {
	w := newTestAPI(t)
	address, stop := serving(t, w.API)
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "POST /v1/sessions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n", address); err != nil {
		t.Fatal(err)
	}
	// Far below the bound of a body that somebody waits for.
	if err := conn.SetReadDeadline(time.Now().Add(bodyTimeout / 2)); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	if _, err := io.Copy(io.Discard, answer.Body); err != nil || answer.StatusCode != http.StatusUnauthorized {
		t.Errorf("%d, %v", answer.StatusCode, err)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !strings.Contains(err.Error(), "reset") {
		t.Errorf("the connection is kept: %v", err)
	}
	if err := stop(); err != nil {
		t.Errorf("the server does not end: %v", err)
	}
}

// Principals of one tenant do not learn what others do on this machine: they hear of neither their sessions nor the
// host.
func TestInfoOfATenantIsItsOwn(t *testing.T) {
	w := newFixture(t)
	for _, who := range []string{"beta agent", "beta admin"} {
		if got := w.request(who, "GET", "/v1/info", ""); got.StatusCode != http.StatusOK || strings.Contains(got.body, "abcd") || !strings.Contains(got.body, `"sessions":0`) {
			t.Errorf("%s is told %d %s", who, got.StatusCode, got.body)
		}
	}
	if got := w.request("acme viewer", "GET", "/v1/info", ""); !strings.Contains(got.body, `"sessions":2`) {
		t.Errorf("a viewer of acme is told %s", got.body)
	}
}

// A handler that does not read its body once left a bound on the connection behind, which ended the requests that came next.
func TestABodyThatNobodyReadEndsNoLaterRequest(t *testing.T) {
	ended := error(nil)
	w := newTestAPI(t, func(o *Options) {
		o.Console = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				fmt.Fprint(w, strings.Repeat("refused ", 1000)) // more than the server keeps back
				return
			}
			ended = context.Cause(r.Context())
		})
	})
	address, _ := serving(t, w.API)
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(bodyTimeout / 2)); err != nil {
		t.Fatal(err)
	}
	answers := bufio.NewReader(conn)
	// It took one in some dozens.
	const post, get = "POST /console/x HTTP/1.1\r\nHost: %s\r\nContent-Length: 4\r\n\r\nx=yz", "GET /console/x HTTP/1.1\r\nHost: %s\r\n\r\n"
	for _, request := range append(slices.Repeat([]string{post}, 1000), get) {
		if _, err := fmt.Fprintf(conn, request, address); err != nil {
			t.Fatal(err)
		}
		answer, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatalf("no answer: %v", err)
		}
		if _, err := io.Copy(io.Discard, answer.Body); err != nil || answer.Close {
			t.Fatalf("%v, closes: %t", err, answer.Close)
		}
	}
	if ended != nil {
		t.Errorf("the last request had ended before it began: %v", ended)
	}
}
