//go:build linux

package docs

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

const (
	// proxyName is the name in the examples, and foreignName one that leads to them without being theirs.
	proxyName   = "clawjail.example.com"
	foreignName = "evil.example.net"
	// clientGuesses are as many wrong keys as a client may send in a row, and enoughGuesses are more than all clients of a
	// proxy may together.
	clientGuesses, enoughGuesses = 10, 45
	// arrival bounds the wait for what must come, neverMind the wait for what cannot come.
	arrival   = 30 * time.Second
	neverMind = time.Second
	mib       = 1 << 20
	// largest is the largest body that the examples let through.
	largest = 33 * mib
)

// proxy is one of the programs that docs/proxy.md has an example for.
type proxy struct {
	name, file string
	// places are the ports, addresses and paths of the example, and what stands there in a test.
	places func(f *front) [][2]string
	// command runs the program with the example in file.
	command func(t *testing.T, f *front, file string) *exec.Cmd

	// These take one control away each.
	believing, anyName, telling, buffering, plain func(t *testing.T, text string) string
	// talkative turns on what the program itself has to log more; nil is nothing.
	talkative func(t *testing.T, text string) string
	// silence finds the lines that say how long clawjail, or its client, may be silent, and silences is their number.
	silence  *regexp.Regexp
	silences int
}

var proxies = []proxy{
	{
		name: "nginx", file: "nginx.conf", silence: regexp.MustCompile(`(?m)^\s*(?:proxy_read|proxy_send|send)_timeout (\S+);`), silences: 3,
		places: func(f *front) [][2]string {
			return [][2]string{{"192.0.2.10:443", "127.0.0.1:" + f.port}, {"127.0.0.1:18780", f.backend},
				{"/etc/ssl/", f.dir + "/"}, {"/var/log/nginx/", f.dir + "/"}}
		},
		command: func(t *testing.T, f *front, file string) *exec.Cmd {
			main := filepath.Join(f.dir, "main.conf")
			text := fmt.Sprintf("user root;\ndaemon off;\nworker_processes 1;\npid %[1]s/pid;\nevents {}\nhttp {\n", f.dir)
			for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
				text += fmt.Sprintf("%s_temp_path %s/%[1]s;\n", kind, f.dir)
			}
			testkit.WriteFile(t, main, text+"include "+file+";\n}\n")
			return exec.Command(testenv.Tool(t, "nginx"), "-p", f.dir, "-e", filepath.Join(f.dir, "error.log"), "-c", main)
		},
		believing: instead("X-Forwarded-For $remote_addr;", "X-Forwarded-For $http_x_forwarded_for;"),
		anyName: func(t *testing.T, text string) string {
			server := regexp.MustCompile(`(?ms)^server \{\n\tlisten \S+ ssl default_server;.*?^\}\n`).FindString(text)
			return instead(server, "")(t, text)
		},
		plain:   instead("proxy_set_header X-Forwarded-Proto https;", ""),
		telling: instead("'$remote_addr ", "'$http_x_admin_key $http_authorization $http_cookie "),
		buffering: func(t *testing.T, text string) string {
			return instead("proxy_request_buffering off;", "")(t, instead("proxy_buffering off;", "")(t, text))
		},
	}, {
		name: "caddy", file: "Caddyfile", silence: regexp.MustCompile(`(?m)^\s*(?:read|write)_timeout (\S+)$`), silences: 2,
		places: func(f *front) [][2]string {
			return [][2]string{{"192.0.2.10", "127.0.0.1"}, {":443 {", ":" + f.port + " {"}, {"127.0.0.1:18780", f.backend},
				{"/etc/ssl/", f.dir + "/"}, {"unix//var/lib/caddy/", "unix/" + f.dir + "/"}}
		},
		command: func(t *testing.T, f *front, file string) *exec.Cmd {
			cmd := exec.Command(testenv.Tool(t, "caddy"), "run", "--config", file, "--adapter", "caddyfile")
			cmd.Env = []string{"HOME=" + f.dir, "XDG_DATA_HOME=" + f.dir, "XDG_CONFIG_HOME=" + f.dir, "PATH=" + os.Getenv("PATH")}
			return cmd
		},
		believing: instead("flush_interval -1", "flush_interval -1\n\t\theader_up X-Forwarded-For {header.X-Forwarded-For}"),
		anyName: func(t *testing.T, text string) string {
			other := regexp.MustCompile(`(?ms)^https://:\d+ \{.*?^\}\n`).FindString(text)
			return instead("https://"+proxyName+":", "https://:")(t, instead(other, "")(t, text))
		},
		plain:     instead("flush_interval -1", "flush_interval -1\n\t\theader_up -X-Forwarded-Proto"),
		talkative: logCredentials,
		telling: func(t *testing.T, text string) string {
			for _, name := range []string{"X-Admin-Key", "Authorization", "Cookie"} {
				text = instead("request>headers>"+name+" delete", "")(t, text)
			}
			return logCredentials(t, text)
		},
		buffering: instead("flush_interval -1", ""),
	},
}

// logCredentials turns off what Caddy itself hides.
var logCredentials = instead("protocols h1 h2", "protocols h1 h2\n\t\tlog_credentials")

// instead replaces a text that must be there.
func instead(before, after string) func(t *testing.T, text string) string {
	return func(t *testing.T, text string) string {
		t.Helper()
		if before == "" || !strings.Contains(text, before) {
			t.Fatalf("the example has no %q", before)
		}
		return strings.ReplaceAll(text, before, after)
	}
}

// front is a proxy that runs.
type front struct {
	t                  *testing.T
	dir, port, backend string
	pid                int
	roots              *x509.CertPool
}

// inFront starts a proxy with its example before a backend. The changes take controls away.
func (p proxy) inFront(t *testing.T, backend string, changes ...func(*testing.T, string) string) *front {
	t.Helper()
	f := &front{t: t, dir: t.TempDir(), port: strconv.Itoa(int(testenv.FreePort(t))), backend: backend}
	f.roots, _ = certificates(t, f.dir)
	data, err := os.ReadFile(filepath.Join(testenv.Repository(t), "packaging", "proxy", p.file))
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	var pairs []string
	for _, place := range p.places(f) {
		if !strings.Contains(text, place[0]) {
			t.Fatalf("packaging/proxy/%s has no %q to replace", p.file, place[0])
		}
		pairs = append(pairs, place[0], place[1])
	}
	text = strings.NewReplacer(pairs...).Replace(text)
	for _, change := range changes {
		text = change(t, text)
	}
	file := filepath.Join(f.dir, p.file)
	testkit.WriteFile(t, file, text)
	cmd := p.command(t, f, file)
	said, err := os.Create(filepath.Join(f.dir, "output.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close() // the process has its own
	cmd.Stdout, cmd.Stderr = said, said
	ended := testkit.Child(t, cmd)
	f.pid = cmd.Process.Pid
	testenv.Eventually(t, arrival, func() bool {
		select {
		case <-ended:
			t.Fatalf("%s ended:\n%s", p.name, f.logs())
		default:
		}
		c, err := f.dial(proxyName)
		if err != nil {
			return false
		}
		return c.Close() == nil
	}, "%s does not answer", p.name)
	return f
}

// logs is all that the proxy wrote.
func (f *front) logs() string {
	files, err := filepath.Glob(filepath.Join(f.dir, "*.log"))
	if err != nil {
		f.t.Fatal(err)
	}
	var out []byte
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.t.Fatal(err)
		}
		out = append(out, data...)
	}
	return string(out)
}

// listens are the sockets that wait for somebody: "tcp 443", and "udp 443".
func (f *front) listens() (out []string) {
	f.t.Helper()
	own := map[string]bool{}
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", f.pid))
	if err != nil || len(links) == 0 {
		f.t.Fatalf("the proxy has no descriptors: %v", err)
	}
	for _, link := range links {
		to, _ := os.Readlink(link) // one that has been closed is no socket
		own[strings.TrimSuffix(strings.TrimPrefix(to, "socket:["), "]")] = true
	}
	// proc_net_tcp(5): local address, remote address, state, and the inode as the tenth field.
	const inode, listening, unconnected = 9, "0A", "07"
	for table, state := range map[string]string{"tcp": listening, "tcp6": listening, "udp": unconnected, "udp6": unconnected} {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", f.pid, table))
		if err != nil && !errors.Is(err, os.ErrNotExist) { // without IPv6 there are two tables less
			f.t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			if field := strings.Fields(line); len(field) > inode && field[3] == state && own[field[inode]] {
				_, port, _ := strings.Cut(field[1], ":")
				n, err := strconv.ParseUint(port, 16, 16)
				if err != nil {
					f.t.Fatal(err)
				}
				out = append(out, fmt.Sprintf("%s %d", table, n))
			}
		}
	}
	return out
}

// dial opens a connection for HTTP/1.1.
func (f *front) dial(name string) (*tls.Conn, error) {
	return tls.Dial("tcp", "127.0.0.1:"+f.port, &tls.Config{RootCAs: f.roots, ServerName: name})
}

// client is a client with an address of its own.
func (f *front) client() *http.Client {
	return clientTo(f.t, "127.0.0.1:"+f.port, newAddress(), f.roots)
}

func (f *front) url(path string) string { return "https://" + proxyName + ":" + f.port + path }

var addresses atomic.Uint32

// newAddress is a loopback address that no other client of this run has, so that none pays for another's wrong keys.
func newAddress() string {
	n := addresses.Add(1)
	return fmt.Sprintf("127.77.%d.%d", n/200, n%200+1)
}

// clientTo makes a client whose requests all go to one place, whatever their URL says.
func clientTo(t *testing.T, to, from string, roots *x509.CertPool) *http.Client {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, to)
		},
		TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: proxyName}, ForceAttemptHTTP2: true,
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: arrival}
}

type answer struct {
	status int
	header http.Header
	body   string
	code   string // of a problem
}

func (a answer) want(t *testing.T, what string, status int, code string) {
	t.Helper()
	if a.status != status || a.code != code {
		t.Errorf("%s: %d %q, want %d %q; the body is %.200q", what, a.status, a.code, status, code, a.body)
	}
}

// ask sends a GET. Headers are pairs; Host is one of them.
func ask(t *testing.T, c *http.Client, url string, headers ...string) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; n < len(headers); n += 2 {
		r.Header.Add(headers[n], headers[n+1])
	}
	if host := r.Header.Get("Host"); host != "" {
		r.Host = host
		r.Header.Del("Host")
	}
	return send(t, c, r)
}

func send(t *testing.T, c *http.Client, r *http.Request) answer {
	t.Helper()
	response, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	var p struct {
		Code string `json:"code"`
	}
	_ = json.Unmarshal(body, &p) // what is no problem has no code
	return answer{response.StatusCode, response.Header, string(body), p.Code}
}

// guess sends wrong keys until one is answered with 429, and says how many that were; 0 is never. Every request says
// of itself that it comes from elsewhere, when it is forged.
func guess(t *testing.T, c *http.Client, url string, forged bool, limit int) int {
	t.Helper()
	for n := range limit {
		headers := []string{api.KeyHeader, "cjadm_wrong"}
		if forged {
			headers = append(headers, "X-Forwarded-For", fmt.Sprintf("198.51.100.%d, 127.0.0.1", n+1))
		}
		a := ask(t, c, url, headers...)
		if a.status != http.StatusTooManyRequests {
			a.want(t, "a wrong key", http.StatusUnauthorized, problem.Unauthorized)
			continue
		}
		a.want(t, "too many wrong keys", http.StatusTooManyRequests, problem.RateLimited)
		if s, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || s < 1 {
			t.Errorf("Retry-After is %q", a.header.Get("Retry-After"))
		}
		return n + 1
	}
	return 0
}

// behind is a backend that does what the control plane does not do yet.
type behind struct {
	*httptest.Server
	seen  chan http.Header // of requests for /headers
	acked chan struct{}    // the client has read the first line of /lines, or written the first part of /body
	begun chan struct{}    // the first byte of /body is there
	wait  time.Duration    // for acked
}

func newBehind(t *testing.T, wait time.Duration) *behind {
	s := &behind{seen: make(chan http.Header, 1), acked: make(chan struct{}, 1), begun: make(chan struct{}, 1), wait: wait}
	mux := http.NewServeMux()
	mux.HandleFunc("/headers", func(w http.ResponseWriter, r *http.Request) {
		h := r.Header.Clone()
		h.Set("Proto", r.Proto)
		s.seen <- h
	})
	mux.HandleFunc("/lines", func(w http.ResponseWriter, r *http.Request) {
		first, second := "1\n", "2\n"
		if r.URL.RawQuery == "length" {
			w.Header().Set("Content-Length", strconv.Itoa(len(first+second)))
		}
		w.Header().Set("Content-Type", "application/x-ndjson")
		_, _ = io.WriteString(w, first) // the client says what it got
		_ = http.NewResponseController(w).Flush()
		select {
		case <-s.acked:
		case <-time.After(s.wait):
			second = "0\n"
		}
		_, _ = io.WriteString(w, second)
	})
	mux.HandleFunc("/body", func(w http.ResponseWriter, r *http.Request) {
		one := make([]byte, 1)
		n, _ := io.ReadFull(r.Body, one) // what is missing shows in the sum
		s.begun <- struct{}{}
		rest, _ := io.Copy(io.Discard, r.Body)
		_, _ = fmt.Fprint(w, int64(n)+rest)
	})
	mux.HandleFunc("/upgrade", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "websocket" || !strings.EqualFold(r.Header.Get("Connection"), "upgrade") {
			http.Error(w, "no upgrade", http.StatusUpgradeRequired)
			return
		}
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
		_, _ = io.Copy(conn, buffered) // an echo
	})
	mux.HandleFunc("/broken", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	mux.HandleFunc("/silent", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

func (s *behind) address() string { return s.Listener.Addr().String() }

// certificates makes an authority, and clawjail.crt and clawjail.key in dir. file is the authority's certificate.
func certificates(t *testing.T, dir string) (roots *x509.CertPool, file string) {
	t.Helper()
	caKey, leafKey := newKey(t), newKey(t)
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of a test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: proxyName},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{proxyName, "localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		t.Fatal(err)
	}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, ca, leafKey.Public(), caKey)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(leafKey)
	if err != nil {
		t.Fatal(err)
	}
	text := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	file = filepath.Join(dir, "authority.crt")
	testkit.WriteFile(t, file, text("CERTIFICATE", caDER))
	testkit.WriteFile(t, filepath.Join(dir, "clawjail.crt"), text("CERTIFICATE", leafDER))
	testkit.WriteFile(t, filepath.Join(dir, "clawjail.key"), text("PRIVATE KEY", keyDER))
	roots = x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(text("CERTIFICATE", caDER)))
	return roots, file
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}
