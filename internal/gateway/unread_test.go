package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/testenv"
)

// lazySite reads no bodies: it takes what follows a header for the next one, and closes where it is told to. It keeps the
// first line of every request.
func lazySite(t *testing.T) (addr net.Addr, seen func() []string) {
	t.Helper()
	listener := listenOn(t, "127.0.0.1:0")
	var mu sync.Mutex
	var lines []string
	var serving sync.WaitGroup
	serve := func(conn net.Conn) {
		defer conn.Close()
		reader := textproto.NewReader(bufio.NewReader(conn))
		for {
			line, err := reader.ReadLine()
			if err != nil || !strings.HasSuffix(line, " HTTP/1.1") {
				return
			}
			header, err := reader.ReadMIMEHeader()
			if err != nil {
				return
			}
			mu.Lock()
			lines = append(lines, line)
			mu.Unlock()
			// A client that has its answer may send no body any more.
			if length := header.Get("Content-Length"); length != "" && length != "0" || header.Get("Transfer-Encoding") != "" {
				_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second)) // a body that does not come shows in what was seen
				_, _ = reader.R.Peek(1)
				_ = conn.SetReadDeadline(time.Time{})
			}
			end := header.Get("Connection") == "close"
			if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"); err != nil || end {
				return
			}
		}
	}
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { serve(conn) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		serving.Wait()
	})
	return listener.Addr(), func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(lines)
	}
}

// TestABodyThatAServerLeavesUnreadIsNoRequest has bodies that are requests of their own, for a server that would obey them.
func TestABodyThatAServerLeavesUnreadIsNoRequest(t *testing.T) {
	for method, want := range map[string]bool{
		"POST": true, // what the server does with every body
		"GET":  false, "HEAD": false, "OPTIONS": false, "DELETE": false, "SEARCH": false,
	} {
		for _, chunked := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s chunked %t", method, chunked), func(t *testing.T) {
				site, seen := lazySite(t)
				w := newFixture(t)
				w.admit("127.0.0.1", private("lazy.test", "127.0.0.1", uint16(site.(*net.TCPAddr).Port)))
				inner := "POST /inner HTTP/1.1\r\nHost: lazy.test\r\nContent-Length: 0\r\n\r\n"
				frame, body := fmt.Sprintf("Content-Length: %d", len(inner)), inner
				if chunked {
					frame, body = "Transfer-Encoding: chunked", fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(inner), inner)
				}
				w.raw("127.0.0.1", fmt.Sprintf("%s http://lazy.test:%s/outer HTTP/1.1\r\nHost: lazy.test\r\n%s\r\n\r\n%s",
					method, port(site), frame, body))
				resp, err := w.client("127.0.0.1").Do(request(t, http.MethodGet, "http://lazy.test:"+port(site)+"/after", ""))
				if err != nil {
					t.Fatal(err)
				}
				finish(t, resp)
				inside := func() bool { return slices.Contains(seen(), "POST /inner HTTP/1.1") }
				if want && !chunked {
					testenv.Eventually(t, 5*time.Second, inside, "the body is not taken for a request: the others show nothing")
				}
				got := seen()
				if inside() != (want && !chunked) {
					t.Errorf("the server took for requests %q", got)
				}
				if !slices.Contains(got, method+" /outer HTTP/1.1") || !slices.Contains(got, "GET /after HTTP/1.1") && !want {
					t.Errorf("the server saw %q", got)
				}
			})
		}
	}
}
