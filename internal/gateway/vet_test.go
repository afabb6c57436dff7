package gateway

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
)

// Each connection is asked about once, before its first request is done. One that is refused reaches nobody, by whatever
// kind of request, and those that were asked about before go on.
func TestEachConnectionIsVettedOnceBeforeAnythingIsDone(t *testing.T) {
	w := newFixture(t)
	visits := new(atomic.Int64)
	s := web(t, func(rw http.ResponseWriter, r *http.Request) { visits.Add(1) })
	w.public("web.example", "93.184.216.2", s.Listener.Addr())
	var asked atomic.Int64
	var no atomic.Pointer[problem.Error]
	err := w.g.Admit(netip.MustParseAddr(jailA), Caller{Jail: "jail-a", Session: "s_1", Tenant: "t", Policy: policy.PublicWeb(), Vet: func(context.Context) error {
		asked.Add(1)
		if p := no.Load(); p != nil {
			return p
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(c net.Conn, r *bufio.Reader, request string) (int, string) {
		t.Helper()
		if _, err := io.WriteString(c, request); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(request, "CONNECT") && resp.StatusCode == http.StatusOK {
			return resp.StatusCode, ""
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	const get, inner = "GET http://web.example/ HTTP/1.1\r\nHost: web.example\r\n\r\n", "GET / HTTP/1.1\r\nHost: web.example\r\n\r\n"
	const connect = "CONNECT web.example:80 HTTP/1.1\r\nHost: web.example:80\r\n\r\n"
	old := w.dial(jailA)
	oldReader := bufio.NewReader(old)
	for range 2 {
		if status, body := ask(old, oldReader, get); status != 200 {
			t.Fatalf("got %d %s", status, body)
		}
	}
	tunnel := w.dial(jailA)
	tunnelReader := bufio.NewReader(tunnel)
	for _, request := range []string{connect, inner, inner} {
		if status, body := ask(tunnel, tunnelReader, request); status != 200 {
			t.Fatalf("got %d %s", status, body)
		}
	}
	if n := asked.Load(); n != 2 || visits.Load() != 4 {
		t.Errorf("%d questions and %d visits", n, visits.Load())
	}

	no.Store(problem.New(problem.CookiesLost, "", "the cookies are lost"))
	for _, request := range []string{get, connect, "GET /healthz HTTP/1.1\r\nHost: " + w.addr + "\r\n\r\n"} {
		c := w.dial(jailA)
		r := bufio.NewReader(c)
		if status, body := ask(c, r, request); status != http.StatusGone || !strings.Contains(body, problem.CookiesLost) {
			t.Errorf("%q: got %d %s", request, status, body)
		}
		closedSoon(t, "a connection that was refused", r)
	}
	if status, _ := ask(old, oldReader, get); status != 200 || visits.Load() != 5 {
		t.Errorf("an old connection: %d, %d visits", status, visits.Load())
	}
	if refused := slices.DeleteFunc(w.recorded(), func(d Decision) bool { return d.Code != problem.CookiesLost }); len(refused) != 3 {
		t.Errorf("%d refusals are on record", len(refused))
	}
}
