package agentenv

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/testenv"
)

// behind is the address that only the proxy knows the way to: nothing listens there.
const behind = "127.0.0.9"

const (
	patience  = 10 * time.Second
	nodeLimit = 40 * time.Second
)

// outside is a server, in the clear and in TLS, behind a proxy that notes what goes through it.
type outside struct {
	t                  *testing.T
	plain, secure      *httptest.Server
	proxy              *httptest.Server
	ca                 string
	left               chan string // what clients left before its end
	acks               chan struct{}
	mu                 sync.Mutex // guards what follows
	tunnels, forwarded []string
	direct             atomic.Int32
}

func newOutside(t *testing.T) *outside {
	t.Helper()
	o := &outside{t: t, left: make(chan string, 10), acks: make(chan struct{}, 10)}
	mux := http.NewServeMux()
	mux.HandleFunc("/path", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Via-Test") == "" && r.Host == o.plain.Listener.Addr().String() {
			o.direct.Add(1)
		}
		fmt.Fprintf(w, "%s %s %s", r.Method, r.RequestURI, r.Host)
	})
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // what does not arrive is missing in the answer
		fmt.Fprintf(w, "%s %s", r.Method, body)
	})
	mux.HandleFunc("/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for n := range 3 {
			fmt.Fprintf(w, "data: e%d\n\n", n)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-o.acks:
			case <-r.Context().Done():
				return
			}
		}
	})
	mux.HandleFunc("/ack", func(http.ResponseWriter, *http.Request) { o.acks <- struct{}{} })
	mux.HandleFunc("/endless", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "first")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		o.left <- r.URL.Path
	})
	mux.HandleFunc("/gzip", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, "unpacked")
		_ = z.Close()
	})
	mux.HandleFunc("/redirect", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/path?q=2", http.StatusFound) })
	o.plain = httptest.NewServer(mux)
	o.secure = httptest.NewUnstartedServer(mux)
	certificate, ca := certify(t, behind)
	o.ca = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(o.ca, ca, 0o600); err != nil {
		t.Fatal(err)
	}
	o.secure.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	o.secure.Config.ErrorLog = log.New(io.Discard, "", 0) // clients that do not trust it
	o.secure.StartTLS()
	o.proxy = httptest.NewServer(http.HandlerFunc(o.serveProxy))
	t.Cleanup(func() {
		o.proxy.Close()
		o.plain.CloseClientConnections()
		o.secure.CloseClientConnections()
		o.plain.Close()
		o.secure.Close()
	})
	return o
}

// certify makes a certificate that is its own authority.
func certify(t *testing.T, address string) (tls.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.ParseIP(address)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func (o *outside) serveProxy(w http.ResponseWriter, r *http.Request) {
	host, _, _ := net.SplitHostPort(r.Host)
	if r.Method != http.MethodConnect {
		o.note(&o.forwarded, r.URL.String())
		r.RequestURI = ""
		r.Header.Set("Via-Test", "1")
		if r.URL.Hostname() == behind {
			r.URL.Host = o.plain.Listener.Addr().String()
		}
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		for name, values := range resp.Header {
			w.Header()[name] = values
		}
		w.WriteHeader(resp.StatusCode)
		buf := make([]byte, 1024)
		for {
			n, err := resp.Body.Read(buf)
			_, _ = w.Write(buf[:n])
			_ = http.NewResponseController(w).Flush()
			if err != nil {
				return
			}
		}
	}
	o.note(&o.tunnels, r.Host)
	if host != behind {
		w.Header().Set("Content-Type", "application/problem+json")
		w.Header().Set("Connection", "close") // Node 22 and 24 hold on to it, and do not end while it is open
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"code":"host_denied","hint":"ask the operator"}`)
		return
	}
	target := o.secure.Listener.Addr().String()
	if strings.HasSuffix(r.Host, ":"+port(o.plain)) {
		target = o.plain.Listener.Addr().String() // newer Nodes open tunnels for plain HTTP, too
	}
	up, err := net.Dial("tcp", target)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer up.Close()
	down, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer down.Close()
	_, _ = io.WriteString(down, "HTTP/1.1 200 Connection established\r\n\r\n")
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(up, buffered)
		_ = up.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(down, up)
	_ = down.Close()
	<-done
}

func (o *outside) note(list *[]string, what string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	*list = append(*list, what)
}

func port(s *httptest.Server) string {
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	return port
}

// node is a Node of one of the versions that scripts/clients.sh installs.
func node(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(testenv.Repository(t), "test", "clients", "node_modules", name)
	if _, err := os.Stat(path); err != nil {
		testenv.Missing(t, "Node of test/clients ("+name+")", "run `make setup`, or scripts/clients.sh")
	}
	return path
}

type answered struct{ Step, Answer, Error string }

// ask runs the requests of testdata/requests.mjs with a payload's environment.
func (o *outside) ask(node, steps string, without ...string) map[string]answered {
	o.t.Helper()
	dir := o.t.TempDir()
	p, err := For(Options{Gateway: o.proxy.URL, AgentName: "writer", Dir: dir, CABundle: o.ca})
	if err != nil {
		o.t.Fatal(err)
	}
	for _, f := range p.Files {
		if err := os.WriteFile(f.Path, []byte(f.Content), f.Mode); err != nil {
			o.t.Fatal(err)
		}
	}
	for _, name := range without {
		delete(p.Env, name)
	}
	ctx, cancel := context.WithTimeout(o.t.Context(), nodeLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, node, filepath.Join("testdata", "requests.mjs"))
	cmd.Env = append(p.Env.List(), "PATH="+os.Getenv("PATH"), "HOME="+dir, "STEPS="+steps,
		"PLAIN=http://"+net.JoinHostPort(behind, port(o.plain)), "SECURE=https://"+net.JoinHostPort(behind, port(o.secure)),
		"REFUSED=https://refused.example/", "DIRECT="+o.plain.URL)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.WaitDelay = patience
	out, err := cmd.Output()
	// Node 22 says that its own agent for proxies is experimental.
	if err != nil || stderr.Len() > 0 && !strings.Contains(stderr.String(), "UNDICI-EHPA") {
		o.t.Errorf("node: %v\n%s", err, stderr.String())
	}
	answers := map[string]answered{}
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		var a answered
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			o.t.Errorf("node printed %q", lines.Text())
			continue
		}
		answers[a.Step] = a
	}
	return answers
}

func TestEveryNodeUsesTheProxy(t *testing.T) {
	for _, name := range []string{".node20", ".node22", ".node"} {
		t.Run(name, func(t *testing.T) {
			path := node(t, name)
			o := newOutside(t)
			got := o.ask(path, "")
			plain, secure := net.JoinHostPort(behind, port(o.plain)), net.JoinHostPort(behind, port(o.secure))
			want := map[string]string{
				"fetch http": "200 GET /path?q=1 " + plain, "fetch https": "200 GET /path?q=1 " + secure,
				"http.get": "200 GET /path?q=1 " + plain, "https.get": "200 GET /path?q=1 " + secure, "named get": "200 GET /path?q=1 " + secure,
				"post": "200 POST hello", "post plain": "200 POST hello", "post stream": "200 POST abc", "post stream plain": "200 POST abc",
				"events http": "data: e0 data: e1 data: e2", "events https": "data: e0 data: e1 data: e2",
				"abort http": "AbortError", "abort https": "AbortError", "head": "200 ", "gzip": "200 unpacked", "redirect": "200 GET /path?q=2 " + plain,
				"many": "2", "many http": "1",
				"fetch direct":    "200 GET /path?q=1 " + o.plain.Listener.Addr().String(),
				"http.get direct": "200 GET /path?q=1 " + o.plain.Listener.Addr().String(),
				"expect":          "200 POST hello",
			}
			// Newer Nodes leave agents that programs make to those; the file does not.
			for _, step := range []string{"own https agent", "own http agent", "no agent"} {
				if name == ".node20" {
					want[step] = got["https.get"].Answer
				}
			}
			if name == ".node20" {
				want["own http agent"], want["raw headers"] = want["http.get"], want["http.get"]
			}
			for step, answer := range want {
				if got[step].Answer != answer {
					t.Errorf("%s: %q %s, want %q", step, got[step].Answer, got[step].Error, answer)
				}
			}
			for _, step := range []string{"fetch refused", "https.get refused"} {
				if got[step].Error == "" {
					t.Errorf("%s: %q", step, got[step].Answer)
				}
				if name == ".node20" && !strings.Contains(got[step].Error, "ask the operator") {
					t.Errorf("%s does not say what to do: %s", step, got[step].Error)
				}
			}
			for range 2 {
				select {
				case <-o.left:
				case <-time.After(patience):
					t.Error("an aborted request goes on at the server")
				}
			}
			if o.direct.Load() != 2 {
				t.Errorf("%d requests came without the proxy, want the 2 that are for what is not behind it", o.direct.Load())
			}
		})
	}
}

// Each Node needs its own piece, and each piece alone is enough.
func TestNodeDoesNotFindTheProxyWithoutItsPiece(t *testing.T) {
	for _, c := range []struct {
		node    string
		without []string
		works   bool
	}{
		{".node20", []string{"NODE_OPTIONS"}, false}, {".node20", []string{"NODE_USE_ENV_PROXY"}, true},
		{".node22", []string{"NODE_USE_ENV_PROXY"}, false}, {".node22", []string{"NODE_OPTIONS"}, true},
		{".node", []string{"NODE_USE_ENV_PROXY"}, false}, {".node", []string{"NODE_OPTIONS"}, true},
		{".node20", []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"}, false},
		{".node", []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"}, false},
		{".node20", []string{"NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE"}, false},
		{".node", []string{"NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE"}, false},
	} {
		t.Run(c.node+" without "+strings.Join(c.without, " "), func(t *testing.T) {
			o := newOutside(t)
			got := o.ask(node(t, c.node), "fetch https,https.get", c.without...)
			for _, step := range []string{"fetch https", "https.get"} {
				if works := got[step].Error == "" && got[step].Answer != ""; works != c.works {
					t.Errorf("%s: %q %s, want that it works: %v", step, got[step].Answer, got[step].Error, c.works)
				}
			}
		})
	}
}

// No Node may fail to start because of what it is given, and this is the oldest that programs are still made with.
func TestTheOldestNodeFindsTheProxy(t *testing.T) {
	path := node(t, ".node12")
	o := newOutside(t)
	dir := t.TempDir()
	p, err := For(Options{Gateway: o.proxy.URL, AgentName: "writer", Dir: dir, CABundle: o.ca})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range p.Files {
		if err := os.WriteFile(f.Path, []byte(f.Content), f.Mode); err != nil {
			t.Fatal(err)
		}
	}
	const script = `for (const at of process.argv.slice(1)) require(at.split(':')[0])
		.get(at + '/path', (answer) => answer.on('data', (text) => console.log(String(text)))).on('error', (err) => console.log(String(err)))`
	plain, secure := net.JoinHostPort(behind, port(o.plain)), net.JoinHostPort(behind, port(o.secure))
	run := func(env Env) string {
		ctx, cancel := context.WithTimeout(t.Context(), nodeLimit)
		defer cancel()
		cmd := exec.CommandContext(ctx, path, "-e", script, "http://"+plain, "https://"+secure)
		cmd.Env = append(env.List(), "PATH="+os.Getenv("PATH"), "HOME="+dir)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("node: %v\n%s", err, out)
		}
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		slices.Sort(lines)
		return strings.Join(lines, "|")
	}
	want := []string{"GET /path " + plain, "GET /path " + secure}
	slices.Sort(want)
	if got := run(p.Env); got != strings.Join(want, "|") {
		t.Errorf("it hears %q, want %q", got, want)
	}
	delete(p.Env, "NODE_OPTIONS")
	if got := run(p.Env); strings.Contains(got, "GET") {
		t.Errorf("without NODE_OPTIONS it hears %q: nothing is behind the proxy alone", got)
	}
}

// Hosts that NO_PROXY names are not asked for at the proxy, and only those.
func TestOldNodeReadsTheListOfExceptions(t *testing.T) {
	path := node(t, ".node20")
	o := newOutside(t)
	got := o.ask(path, "fetch direct,http.get direct", "NO_PROXY", "no_proxy")
	for _, step := range []string{"fetch direct", "http.get direct"} {
		if got[step].Error != "" {
			t.Errorf("%s: %s", step, got[step].Error)
		}
	}
	if o.direct.Load() != 0 || len(o.forwarded) != 2 {
		t.Errorf("without NO_PROXY, %d requests went past the proxy and %d through it", o.direct.Load(), len(o.forwarded))
	}
}
