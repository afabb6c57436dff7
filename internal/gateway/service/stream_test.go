package service

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestEventsArriveWhenTheyAreSent(t *testing.T) {
	for name, how := range map[string]egress.Injection{"scrubbed": bearer, "as it is, with a length": {Type: egress.InjectNone}} {
		t.Run(name, func(t *testing.T) { eventsArrive(t, how) })
	}
}

func eventsArrive(t *testing.T, how egress.Injection) {
	next := make(chan struct{})
	w := newFixture(t, how, nil)
	w.Upstream("api.example:80", http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "text/event-stream")
		if how.Type == egress.InjectNone {
			rw.Header().Set("Content-Type", "text/plain")
			rw.Header().Set("Content-Length", "27")
		}
		for i := range 3 {
			_, _ = fmt.Fprintf(rw, "data: %d\n\n", i)
			_ = http.NewResponseController(rw).Flush()
			<-next
		}
	}))
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.server.URL+"/svc/svc/x", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := w.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	buffer := make([]byte, 100)
	for i := range 3 {
		n, err := io.ReadAtLeast(resp.Body, buffer, 9)
		if err != nil || string(buffer[:n]) != fmt.Sprintf("data: %d\n\n", i) {
			t.Fatalf("event %d: %q %v", i, buffer[:n], err)
		}
		next <- struct{}{} // the next one is sent when this one has arrived
	}
	if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) > 0 {
		t.Errorf("%q %v", rest, err)
	}
}

func TestRequestsStreamBeforeTheyAreWhole(t *testing.T) {
	arrived := make(chan string)
	w := newFixture(t, bearer, nil)
	w.Upstream("api.example:80", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		first := make([]byte, 5)
		_, _ = io.ReadFull(r.Body, first)
		arrived <- string(first)
		rest, _ := io.ReadAll(r.Body)
		arrived <- string(rest) + r.Header.Get("Content-Encoding") + fmt.Sprint(r.TransferEncoding)
	}))
	pr, pw := io.Pipe()
	done := make(chan error, 1)
	go func() {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.server.URL+"/svc/svc/x", pr)
		if err == nil {
			r.Header.Set("Content-Encoding", "gzip") // bytes are passed on as they are
			var resp *http.Response
			if resp, err = w.client.Do(r); err == nil {
				err = resp.Body.Close()
			}
		}
		done <- err
	}()
	_, _ = io.WriteString(pw, "first")
	if got := <-arrived; got != "first" {
		t.Errorf("%q", got)
	}
	_, _ = io.WriteString(pw, " second")
	pw.Close()
	if got := <-arrived; got != " secondgzip[chunked]" {
		t.Errorf("%q", got)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestClientsThatWaitForContinueAreToldSoOnceTheyMay(t *testing.T) {
	w := newFixture(t, bearer, func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, "done") })
	ask := func(path string) (string, *bufio.Reader, net.Conn) {
		c, err := net.Dial("tcp", w.server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_, _ = io.WriteString(c, "POST "+path+" HTTP/1.1\r\nHost: gateway\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
		reader := bufio.NewReader(c)
		line, err := reader.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return line, reader, c
	}
	line, reader, c := ask("/svc/svc/x")
	if !strings.HasPrefix(line, "HTTP/1.1 100") {
		t.Fatal(line)
	}
	if _, err := reader.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(c, "data")
	resp, err := http.ReadResponse(reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "done" {
		t.Errorf("%q %v", body, err)
	}
	if got := w.seen.Last(t); got.Body != "data" || got.Header.Get("Expect") != "" {
		t.Errorf("%+v", got)
	}
	if line, _, _ := ask("/svc/other/x"); !strings.HasPrefix(line, "HTTP/1.1 404") {
		t.Errorf("a refused client was asked for its body: %s", line)
	}
}

func TestRequestsHaveALargestSize(t *testing.T) {
	w := newFixture(t, bearer, nil)
	w.handler.largest = 1000
	for _, n := range []int{1000, 1001} {
		for _, chunked := range []bool{false, true} {
			var body io.Reader = bytes.NewReader(make([]byte, n))
			if chunked {
				body = struct{ io.Reader }{body}
			}
			resp, text := w.do("POST", "/svc/svc/x", body)
			if over := n > 1000; (resp.StatusCode == http.StatusRequestEntityTooLarge) != over || over && !strings.Contains(text, problem.TooLarge) {
				t.Errorf("%d bytes, chunked %v: %s %s", n, chunked, resp.Status, text)
			}
			if n > 1000 && !chunked && len(w.Sent()) != 2 {
				t.Error("what says that it is too large is sent all the same")
			}
		}
	}
	if n := len(w.seen.All()); n != 2 {
		t.Errorf("the upstream saw %d whole requests", n)
	}
}

func TestTrailersOfAnswersArriveScrubbed(t *testing.T) {
	w := newFixture(t, bearer, func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Trailer", "X-Sum, X-Echo")
		_, _ = io.WriteString(rw, "body")
		rw.Header().Set("X-Sum", "5")
		rw.Header().Set("X-Echo", r.Header.Get("Authorization"))
	})
	resp, body := w.do("GET", "/svc/svc/x", nil)
	if body != "body" || resp.Trailer.Get("X-Sum") != "5" || resp.Trailer.Get("X-Echo") != "Bearer [redacted]" {
		t.Errorf("%q %q", body, resp.Trailer)
	}
}

func TestAnAnswerThatBreaksOffIsNoShortSuccess(t *testing.T) {
	w := newFixture(t, bearer, func(rw http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(rw, "begins")
		_ = http.NewResponseController(rw).Flush()
		panic(http.ErrAbortHandler)
	})
	resp, err := w.client.Get(w.server.URL + "/svc/svc/x")
	if err != nil {
		return // broken before the header
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("%q is whole", body)
	}
}

func TestInterimAnswersStayHere(t *testing.T) {
	w := newFixture(t, bearer, func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Link", "</"+r.Header.Get("Authorization")+">")
		rw.WriteHeader(http.StatusEarlyHints)
		rw.Header().Del("Link")
		_, _ = io.WriteString(rw, "done")
	})
	c, err := net.Dial("tcp", w.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, "GET /svc/svc/x HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n\r\n")
	all, err := io.ReadAll(c)
	if err != nil || !bytes.HasPrefix(all, []byte("HTTP/1.1 200")) || bytes.Contains(all, []byte(token)) {
		t.Errorf("%q %v", all, err)
	}
}

func TestCompressedAnswersAreLookedThrough(t *testing.T) {
	w := newFixture(t, bearer, func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(rw)
		_, _ = io.WriteString(z, "you sent "+r.Header.Get("Authorization"))
		_ = z.Close()
	})
	if resp, body := w.do("GET", "/svc/svc/x", nil, "Accept-Encoding", "gzip"); body != "you sent Bearer [redacted]" || resp.Header.Get("Content-Encoding") != "" {
		t.Errorf("%q %q", resp.Header, body)
	}
	s := w.Services["svc"]
	s.Compressed = egress.CompressedRefuse
	w.Services["svc"] = s
	w.refused(problem.ResponseBlocked, "GET", "/svc/svc/x")
}

// git runs git as a jail has it: no configuration but what provisioning writes.
func git(t *testing.T, dir string, config []string, args ...string) string {
	t.Helper()
	all := append([]string{"-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main", "-c", "protocol.version=2"}, config...)
	cmd := exec.CommandContext(t.Context(), testenv.Tool(t, "git"), append(all, args...)...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0", "LC_ALL=C"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	if bytes.Contains(out, []byte("s3cr3t-git-token")) {
		t.Errorf("git %v shows the credential: %s", args, out)
	}
	return string(out)
}

// gitServer serves repositories to whoever has the token, as git's own program does.
func gitServer(t *testing.T, root string, chunked *atomic.Int64) http.Handler {
	t.Helper()
	where := strings.TrimSpace(git(t, root, nil, "--exec-path"))
	backend := &cgi.Handler{
		Path: filepath.Join(where, "git-http-backend"), Root: "/",
		Env: []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=agent", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "x-access-token" || password != "s3cr3t-git-token" {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if len(r.TransferEncoding) > 0 {
			// CGI wants a length.
			body, err := io.ReadAll(r.Body)
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			chunked.Add(1)
			r.Body, r.ContentLength, r.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
		}
		backend.ServeHTTP(w, r)
	})
}

func TestGitClonesAndPushesWithATokenThatItNeverSees(t *testing.T) {
	top := t.TempDir()
	root, jail := filepath.Join(top, "root"), filepath.Join(top, "jail")
	for _, dir := range []string{filepath.Join(root, "owner"), jail} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	git(t, root, nil, "init", "--bare", "owner/repo.git")
	git(t, filepath.Join(root, "owner/repo.git"), nil, "config", "http.receivepack", "true")

	var chunked atomic.Int64
	w := bareFixture(t)
	w.Upstream("git.example:80", gitServer(t, root, &chunked))
	w.Secret("git", "s3cr3t-git-token")
	w.Services["git"] = egress.Service{
		Name: "git", Upstream: egress.Upstream{BaseURL: "http://git.example"}, Inject: egress.Injection{Type: egress.InjectBasic, User: "x-access-token"},
	}
	w.Permits["git"] = w.Allow(w.Tool("http://git.example/owner/repo.git/**", "GET", "POST"))
	to := []string{"-c", "url." + w.server.URL + "/svc/git/.insteadOf=https://git.example/"}

	git(t, jail, to, "clone", "https://git.example/owner/repo.git", "one")
	one := filepath.Join(jail, "one")
	// More than git sends in one piece, so that the push is chunked; random, so that it stays so large.
	large := make([]byte, 3<<20)
	for i, x := 0, uint64(1); i < len(large); i++ {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		large[i] = byte(x)
	}
	if err := os.WriteFile(filepath.Join(one, "large"), large, 0o644); err != nil {
		t.Fatal(err)
	}
	git(t, one, to, "add", ".")
	git(t, one, to, "commit", "-m", "large")
	git(t, one, to, "push", "origin", "HEAD:main")
	git(t, jail, to, "clone", "-b", "main", "https://git.example/owner/repo.git", "two")
	if got, err := os.ReadFile(filepath.Join(jail, "two", "large")); err != nil || !bytes.Equal(got, large) {
		t.Errorf("%d bytes came back: %v", len(got), err)
	}
	// Many refs make git compress its request.
	for i := range 60 {
		git(t, one, to, "tag", fmt.Sprint("tag-", i))
	}
	git(t, one, to, "push", "--tags", "origin")
	git(t, filepath.Join(jail, "two"), to, "fetch", "--tags", "origin")

	if chunked.Load() == 0 {
		t.Error("no push was chunked")
	}
	surfaces := 0
	for _, e := range w.Sent() {
		if e.Surface == gateway.SurfaceService && e.Credential {
			surfaces++
		}
	}
	if surfaces < 8 {
		t.Errorf("%d requests went through the service", surfaces)
	}
	err := filepath.WalkDir(jail, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err == nil && bytes.Contains(data, []byte("s3cr3t-git-token")) {
			t.Errorf("%s has the credential", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	// Without the credential the same push is refused, so it was the credential that let it pass.
	clear(w.Secrets)
	cmd := exec.CommandContext(t.Context(), testenv.Tool(t, "git"), append(to, "ls-remote", "https://git.example/owner/repo.git")...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + jail, "GIT_TERMINAL_PROMPT=0", "GIT_CONFIG_NOSYSTEM=1"}
	if out, err := cmd.CombinedOutput(); err == nil {
		t.Errorf("git works without a credential: %s", out)
	}
}
