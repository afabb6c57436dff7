package cli

import (
	"bufio"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/testenv"
)

type lockedText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lockedText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// The server here answers, and then once more what it was sent.
func TestTheStandardLibraryLogsNothingThatAServerSent(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		r, err := http.ReadRequest(bufio.NewReader(c))
		if err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"+r.Header.Get("Authorization")+"\r\n\r\n")
		}
	}()
	var out lockedText
	before := log.Writer()
	log.SetOutput(Unquoted(&out))
	defer log.SetOutput(before)
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+ln.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer sk-canary-1234")
	resp, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	<-done
	testenv.Eventually(t, 10*time.Second, func() bool { return strings.Contains(out.String(), "\n") }, "the library logs nothing")
	if got := out.String(); strings.Contains(got, "canary") || !strings.Contains(got, "Unsolicited response") {
		t.Errorf("the log says %q", got)
	}
}
