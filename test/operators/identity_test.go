//go:build linux

package operators

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/secretscan"
	"github.com/clawjail/clawjail/internal/selftest/website"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// visited is a running instance whose jails reach a site with a login, and another one, which counts who comes.
type visited struct {
	*testkit.Installation
	site      *website.Site
	elsewhere *neighbour
	stored    string // by a page of the site, in storage states
}

// neighbour is a site of another domain, which a clean session reaches as the first one.
type neighbour struct {
	url    string
	visits atomic.Int64
}

const (
	elsewhereDomain = "elsewhere.test"
	elsewhereTitle  = "somewhere else"
)

func newNeighbour(t *testing.T) *neighbour {
	t.Helper()
	n := &neighbour{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			n.visits.Add(1)
		}
		w.Header().Set("Content-Type", "text/html")
		// An error here is a browser that has left.
		_, _ = io.WriteString(w, "<!doctype html><title>"+elsewhereTitle+"</title><script>if (localStorage.token) document.title = 'signed in with ' + localStorage.token</script>")
	}))
	t.Cleanup(server.Close)
	n.url = fmt.Sprintf("http://%s:%d/", elsewhereDomain, server.Listener.Addr().(*net.TCPAddr).Port)
	return n
}

func (n *neighbour) port() string { return strings.Trim(n.url[strings.LastIndex(n.url, ":"):], ":/") }

// visiting starts an instance beside a site. The settings are added to those that let jails reach it.
func visiting(t *testing.T, o instance.Options) *visited {
	t.Helper()
	testenv.Root(t)
	site, err := website.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(site.Close)
	elsewhere := newNeighbour(t)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	for dir := filepath.Dir(ca); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		// The control plane's user reads the certificate.
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(ca, site.CA, 0o644); err != nil {
		t.Fatal(err)
	}
	o.Settings += fmt.Sprintf("extra_ca: [%s]\nlogins:\n  - {domain: %s, urls: [\"https://%s:*/login*\"]}\n"+
		"gateway:\n  private_destinations:\n    - {host: %s, address: 127.0.0.1, ports: [%d]}\n"+
		"    - {host: %s, address: 127.0.0.1, ports: [%s]}\n",
		ca, website.Domain, website.Host, website.Host, site.Port, elsewhereDomain, elsewhere.port())
	return &visited{Installation: testkit.Start(t, o), site: site, elsewhere: elsewhere, stored: "stored-" + rand.Text()}
}

// run runs a command that must succeed.
func (v *visited) run(args ...string) string {
	v.T.Helper()
	out, err := v.Run(v.T.Context(), args...)
	if err != nil {
		v.T.Fatalf("%v\nlog of the instance:\n%s", err, v.Log())
	}
	return strings.TrimSpace(out)
}

// storageState logs in at the site without a jail, and writes what the browser would have as a storage state of
// Playwright.
func (v *visited) storageState(user string) string {
	v.T.Helper()
	set := v.site.LogIn(user)
	type cookie struct {
		Name         string  `json:"name"`
		Value        string  `json:"value"`
		Domain       string  `json:"domain"`
		Path         string  `json:"path"`
		Expires      float64 `json:"expires"`
		HTTPOnly     bool    `json:"httpOnly"`
		Secure       bool    `json:"secure"`
		SameSite     string  `json:"sameSite"`
		PartitionKey string  `json:"partitionKey,omitempty"`
	}
	state := struct {
		Cookies []cookie `json:"cookies"`
		Origins []any    `json:"origins"`
	}{Origins: []any{stored(strings.TrimSuffix(v.site.URL(""), "/"), v.stored)}}
	for _, c := range set {
		one := cookie{Name: c.Name, Value: c.Value, Domain: website.Host, Path: c.Path, Expires: -1, HTTPOnly: c.HttpOnly, Secure: c.Secure, SameSite: "Lax"}
		if c.Domain != "" {
			one.Domain = "." + c.Domain
		}
		if c.MaxAge > 0 {
			one.Expires = float64(time.Now().Add(time.Duration(c.MaxAge) * time.Second).Unix())
		}
		switch c.SameSite {
		case http.SameSiteStrictMode:
			one.SameSite = "Strict"
		case http.SameSiteNoneMode:
			one.SameSite = "None"
		}
		if c.Partitioned {
			one.PartitionKey = "https://" + website.Domain
		}
		state.Cookies = append(state.Cookies, one)
	}
	text, err := json.Marshal(state)
	if err != nil {
		v.T.Fatal(err)
	}
	file := filepath.Join(v.T.TempDir(), "state.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		v.T.Fatal(err)
	}
	return file
}

// stored is an origin of a storage state, whose pages have stored a token.
func stored(origin, token string) any {
	return map[string]any{"origin": origin, "localStorage": []any{map[string]string{"name": "token", "value": token}}}
}

// operator opens an operator session with a new grant.
func (v *visited) operator() (session.Session, error) {
	v.T.Helper()
	issued, err := client.Call(v.T.Context(), v.API, op.IssueGrant(), op.NewGrant{Body: op.With(op.GrantRequest{Domains: []string{website.Domain}})})
	if err != nil {
		v.T.Fatal(err)
	}
	return v.API.Open(v.T.Context(), session.OpenRequest{CredentialMode: session.ModeOperator, Domains: []string{website.Domain}, Grant: grant.ParseToken(issued.Token)})
}

// TestLogAnAgentInWithoutGivingItThePassword is the README's way, word for word but for the names.
func TestLogAnAgentInWithoutGivingItThePassword(t *testing.T) {
	v := visiting(t, instance.Options{Settings: testkit.NoPool})
	v.run("cookies", "import", v.storageState("alice"), "--domain", website.Domain)
	grant := v.run("grant", "issue", "--domain", website.Domain)
	if strings.ContainsAny(grant, " \n") || !strings.HasPrefix(grant, "v4.public.") {
		t.Fatalf("`grant issue` printed more than the token: %q", grant)
	}
	cmd := v.Command(t.Context(), "session", "open", "--mode", "operator", "--domain", website.Domain, "--json", v.site.URL("/account"))
	cmd.Env = append(os.Environ(), "CLAWJAIL_GRANT="+grant)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s\n%s", err, stderr(err), v.Log())
	}
	var opened struct {
		session.Session
		Page struct{ Title string }
	}
	if err := json.Unmarshal(out, &opened); err != nil {
		t.Fatal(err)
	}
	if opened.Page.Title != website.TitleOf("alice") || opened.CredentialMode != session.ModeOperator || opened.Injected != website.Cookies() {
		t.Errorf("the session is %+v and shows %q", opened.Session, opened.Page.Title)
	}
	// The grant is gone.
	cmd = v.Command(t.Context(), "session", "open", "--mode", "operator", "--domain", website.Domain)
	cmd.Env = append(os.Environ(), "CLAWJAIL_GRANT="+grant)
	if _, err := cmd.Output(); err == nil || !strings.Contains(stderr(err), "has been used") {
		t.Errorf("a second session with the same grant: %v %s", err, stderr(err))
	}
	v.Close(opened.ID)
	v.Clean(20 * time.Second)

	// The site forgets its visitors: the next session says that somebody has to log in again.
	v.site.LogOut()
	s, err := v.operator()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.API.Navigate(t.Context(), s.ID, browser.Navigate{URL: v.site.URL("/account")}); problem.CodeOf(err) != problem.LoginNeeded {
		t.Fatalf("the page that asks to log in: %v", err)
	}
	if s, err = v.API.Get(t.Context(), s.ID); err != nil || len(s.NeedsRefresh) != 1 || s.NeedsRefresh[0].Reason != session.ReasonLogin {
		t.Errorf("after the site asked to log in: %+v, %v", s.NeedsRefresh, err)
	}
	v.Close(s.ID)
	if rows := v.run("audit", "ls", "--action", "session.needs_refresh", "--session", s.ID, "--json"); !strings.Contains(rows, website.Domain) {
		t.Errorf("the audit log does not say that the account needs a refresh: %s", rows)
	}
	if out := v.run("audit", "verify"); out == "" {
		t.Error("`audit verify` says nothing")
	}
}

func stderr(err error) string {
	if exit, ok := err.(*exec.ExitError); ok {
		return string(exit.Stderr)
	}
	return ""
}

// A site that keeps its login in localStorage alone knows the session, and was asked for nothing before its first page.
func TestAnAgentIsLoggedInByWhatPagesHadStored(t *testing.T) {
	v := visiting(t, instance.Options{Settings: testkit.NoPool})
	origin := strings.TrimSuffix(v.elsewhere.url, "/")
	const token = "stored-0f6b2c9d8e7a41"
	text, err := json.Marshal(map[string]any{"cookies": []any{}, "origins": []any{stored(origin, token), stored("https://other.test", "another's")}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "state.json")
	testkit.WriteFile(t, file, string(text))
	if said := v.run("cookies", "import", file, "--domain", elsewhereDomain); !strings.Contains(said, "storage of 1 origin") || strings.Contains(said, token) {
		t.Errorf("it says %s", said)
	}
	for _, build := range []string{"shell", "full"} {
		before := v.elsewhere.visits.Load()
		issued, err := client.Call(t.Context(), v.API, op.IssueGrant(), op.NewGrant{Body: op.With(op.GrantRequest{Domains: []string{elsewhereDomain}})})
		if err != nil {
			t.Fatal(err)
		}
		s, err := v.API.Open(t.Context(), session.OpenRequest{Browser: build, CredentialMode: session.ModeOperator, Domains: []string{elsewhereDomain}, Grant: grant.ParseToken(issued.Token)})
		if err != nil {
			t.Fatal(err)
		}
		if rows := v.Rows("--action", "gateway.", "--session", s.ID); len(rows) > 0 || v.elsewhere.visits.Load() != before {
			t.Errorf("%s: before its first page it has asked for %+v", build, rows)
		}
		page, err := v.API.Navigate(t.Context(), s.ID, browser.Navigate{URL: v.elsewhere.url})
		if err != nil || page.Title != "signed in with [redacted]" || s.Storage != 1 || s.Injected != 0 {
			t.Errorf("%s: %+v shows %+v, %v", build, s, page, err)
		}
		if rows := v.Rows("--action", "gateway.", "--session", s.ID); len(rows) == 0 {
			t.Errorf("%s: the search for what it asks for finds nothing", build)
		}
		v.Close(s.ID)
		clean := v.Open(session.OpenRequest{Browser: build})
		if page, err := v.API.Navigate(t.Context(), clean, browser.Navigate{URL: v.elsewhere.url}); err != nil || page.Title != elsewhereTitle {
			t.Errorf("%s: a session without the account shows %+v, %v", build, page, err)
		}
		v.Close(clean)
	}
}

// TestNoValueIsAnywhere searches everything that a run leaves behind for the cookies that were injected, and first
// finds a canary in every kind of place.
func TestNoValueIsAnywhere(t *testing.T) {
	// Made as the test runs: the program of the test and its source are among the files that are searched.
	canaryName := strings.Join([]string{"canary", "7f3e9a1c"}, "-")
	canaryText := canaryName + "/+=%5d"
	var log testkit.Transcript
	v := visiting(t, instance.Options{Settings: "log: {level: debug}\nwarm_pool:\n  size: 1\n", Output: &log})
	var answers bytes.Buffer
	ask := func(path string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+v.Config.Listen.String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		key, err := os.ReadFile(hostd.AdminKeyPath(v.Config))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(key)))
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		if err := answer.Header.Write(&answers); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(&answers, answer.Body); err != nil {
			t.Fatal(err)
		}
	}

	// These things happen to an account in its life.
	file := v.storageState("alice")
	var spoken []string
	say := func(args ...string) { spoken = append(spoken, v.run(args...)) }
	say("cookies", "import", file, "--domain", website.Domain, "--json")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	// A captured jar replaces the imported one.
	clean := v.Open(session.OpenRequest{})
	if _, err := v.API.Navigate(t.Context(), clean, browser.Navigate{URL: v.site.URL("/welcome?user=bob")}); err != nil {
		t.Fatal(err)
	}
	pageToken := "stored-" + rand.Text()
	if _, err := v.API.Drive(t.Context(), clean, browser.Eval{JS: "localStorage.token = '" + pageToken + "'"}); err != nil {
		t.Fatal(err)
	}
	say("cookies", "capture", clean, "--domain", website.Domain, "--json")
	v.Close(clean)
	s, err := v.operator()
	if err != nil {
		t.Fatal(err)
	}
	if s.Storage != 1 {
		t.Errorf("it has what pages of %d origins have stored", s.Storage)
	}
	page, err := v.API.Navigate(t.Context(), s.ID, browser.Navigate{URL: v.site.URL("/account")})
	if err != nil || page.Title != website.TitleOf("bob") {
		t.Fatalf("the site does not know the browser: %+v, %v", page, err)
	}
	if _, err := v.API.Picture(t.Context(), s.ID, browser.Screenshot{}); err != nil {
		t.Fatal(err)
	}
	say("cookies", "ls", website.Domain, "--json")
	say("cookies", "ls", website.Domain)
	say("session", "show", s.ID, "--json")
	say("vault", "rotate", "--json")
	for _, path := range []string{"/v1/sessions?all=true", "/v1/sessions/" + s.ID, "/v1/cookies", "/v1/cookies/" + website.Domain, "/v1/grants", "/v1/audit?limit=1000",
		"/v1/audit/export", "/v1/vault", "/v1/info", "/openapi.json"} {
		ask(path)
	}
	values := v.site.Values()
	if len(values) != 2*website.Cookies() {
		t.Fatalf("the site has given out %d values", len(values))
	}
	secrets := map[string]string{"canary": canaryText, "of the storage state": v.stored, "of a page's storage": pageToken}
	for n, value := range values {
		secrets[fmt.Sprintf("cookie-%d", n)] = value
	}
	set := secretscan.New(t, secrets)

	// The browser has them while it lives, in its own memory and in a file system that nobody else sees: the processes'
	// arguments and environments and all files of the host are searched while it does.
	roots := []string{v.Config.DataDir, v.Config.RunDir, filepath.Dir(v.ConfigFile), "/tmp", "/var/tmp", "/var/log", "/dev/shm"}
	if home, err := os.UserHomeDir(); err == nil {
		roots = append(roots, filepath.Join(home, ".config"), filepath.Join(home, ".local"))
	}
	roots = slices.DeleteFunc(roots, func(root string) bool { _, err := os.Stat(root); return err != nil })
	own := v.T.TempDir() // this test's own files
	look := func(when string, planted ...string) {
		t.Helper()
		hits, files, err := set.Files(roots, func(path string) bool { return path == own })
		if err != nil || files < 20 {
			t.Errorf("%s: search %d files: %v", when, files, err)
		}
		all, err := secretscan.AllProcesses()
		if err != nil {
			t.Error(err)
		}
		more, processes, err := set.Processes(all)
		if err != nil && !errors.Is(err, fs.ErrPermission) || processes < 3 { // the first process of a container may be closed even to root
			t.Errorf("%s: search %d processes: %v", when, processes, err)
		}
		hits = slices.Concat(hits, more, set.In("log", log.Bytes()), set.In("answers", answers.Bytes()), set.In("output", []byte(strings.Join(spoken, "\n"))))
		for _, h := range hits {
			if h.Name != "canary" || !slices.Contains(planted, h.Where) {
				t.Errorf("%s: %s", when, h)
			}
		}
		for _, path := range planted {
			if !slices.ContainsFunc(hits, func(h secretscan.Hit) bool { return h.Where == path }) {
				t.Errorf("%s: the canary in %s is not found", when, path)
			}
		}
	}
	// The same search finds what is there.
	planted := []string{filepath.Join(v.Config.DataDir, "control", "canary"), filepath.Join(v.Config.RunDir, "canary")}
	for _, path := range planted {
		testkit.WriteFile(t, path, "x"+canaryText)
	}
	look("while the session is open", planted...)
	for _, path := range planted {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
	v.Close(s.ID)
	look("after it was closed")

	// The template and the host hold no jar.
	for _, root := range []string{v.Config.DataDir, v.Config.TemplatesDir, v.Config.RunDir} {
		err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
			if err == nil && !d.IsDir() && slices.Contains([]string{"Cookies", "Cookies-journal", "cookies.sqlite"}, d.Name()) {
				t.Errorf("there is a jar: %s", path)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	for _, place := range []string{"log", "answers"} {
		size := map[string]int{"log": len(log.Bytes()), "answers": answers.Len()}[place]
		if size < 1000 {
			t.Errorf("the %s have %d bytes: a search of nothing finds nothing", place, size)
		}
	}

	sleeping := exec.CommandContext(t.Context(), "sleep", "60")
	sleeping.Args[0] = canaryText
	sleeping.Env = []string{"A=" + canaryText}
	if err := sleeping.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sleeping.Process.Kill(); _ = sleeping.Wait() }()
	testenv.Eventually(t, 10*time.Second, func() bool {
		hits, _, err := set.Processes([]int{sleeping.Process.Pid})
		return err == nil && len(hits) >= 2
	}, "the canary in arguments and environment is not found")
	// In the database, as a row that is not encrypted: the names of operators are. The command prints the name, too.
	plain := secretscan.New(t, map[string]string{"canary": canaryName})
	say("operator", "create", canaryName, "--role", "viewer", "--tenant", "default")
	say("operator", "ls", "--json")
	if len(plain.In("output", []byte(strings.Join(spoken, "\n")))) == 0 {
		t.Error("the canary in the output of a command is not found")
	}
	// In the log that was searched above, and not in one of its own: it has the tenant of a session.
	if len(plain.In("log", log.Bytes())) > 0 {
		t.Error("the canary is in the log before anything was said about it")
	}
	v.run("tenant", "create", canaryName)
	v.Close(v.Open(session.OpenRequest{Tenant: canaryName}))
	testenv.Eventually(t, 10*time.Second, func() bool { return len(plain.In("log", log.Bytes())) > 0 },
		"the canary in the log is not found")
	hits, _, err := plain.Files([]string{hostd.DatabaseDir(v.Config)}, nil)
	if err != nil || len(hits) == 0 {
		t.Errorf("the canary in the database is not found: %v", err)
	}
	answers.Reset()
	ask("/v1/operators")
	if len(plain.In("answers", answers.Bytes())) == 0 {
		t.Error("the canary in an answer is not found")
	}
}

// TestAnActionThatDiedHasAnOutcome kills the control plane between the intent of an action and its outcome.
func TestAnActionThatDiedHasAnOutcome(t *testing.T) {
	v := visiting(t, instance.Options{Settings: testkit.NoPool})
	barriers := filepath.Join(v.Config.RunDir, "barriers")
	if err := os.Mkdir(barriers, 0o700); err != nil {
		t.Fatal(err)
	}
	armed := filepath.Join(barriers, "start")
	if err := os.WriteFile(armed, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	opened := make(chan error, 1)
	go func() { _, err := v.API.Open(ctx, session.OpenRequest{Label: "dies"}); opened <- err }()
	testenv.Eventually(t, 30*time.Second, func() bool { _, err := os.Stat(armed + ".reached"); return err == nil }, "the jail is not being made")
	for _, pid := range v.Victims("serve") {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-opened; err == nil {
		t.Error("a session was opened by a control plane that is dead")
	}
	for _, f := range []string{armed, armed + ".reached"} {
		if err := os.Remove(f); err != nil && !os.IsNotExist(err) {
			t.Error(err)
		}
	}
	v.Ready()
	list := v.Rows("--action", "session.open")
	if len(list) != 2 || list[0].Phase != "intent" || list[1].Phase != "outcome" || list[1].Result != "unknown" || list[1].Ref != list[0].ID {
		t.Errorf("the rows are %+v", list)
	}
	v.run("audit", "verify")
}

// TestWhatWasReapedIsOnRecord kills the control plane while a session is open. The host daemon removes the jail by
// itself, and the next control plane writes that down.
func TestWhatWasReapedIsOnRecord(t *testing.T) {
	b := testkit.Start(t, instance.Options{Settings: testkit.NoPool})
	s, err := b.API.Open(t.Context(), session.OpenRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range b.Victims("serve") {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	b.Ready()
	testenv.Eventually(t, 60*time.Second, func() bool {
		return slices.ContainsFunc(b.Rows("--action", "jail.reap"), func(r op.AuditRow) bool {
			return r.Result == "ok" && r.Actor == "system" && r.Jail == s.Jail
		})
	}, "what was reaped is not in the audit log")
	b.Clean(20 * time.Second)
}

// TestARevokedTokenEndsWhatIsOpen revokes an agent's token while its session is open.
func TestARevokedTokenEndsWhatIsOpen(t *testing.T) {
	v := visiting(t, instance.Options{Settings: testkit.NoPool})
	token := v.run("agent", "create", "worker")
	as := func(args ...string) (string, error) {
		cmd := v.Command(t.Context(), args...)
		cmd.Env = append(os.Environ(), "CLAWJAIL_KEY="+token)
		out, err := cmd.Output()
		return strings.TrimSpace(string(out)), err
	}
	id, err := as("session", "open")
	if err != nil {
		t.Fatalf("%v: %s", err, stderr(err))
	}
	// An agent sees its own, and nothing of others.
	other := v.Open(session.OpenRequest{})
	if _, err := as("session", "show", other); err == nil || !strings.Contains(stderr(err), "there is no session") {
		t.Errorf("an agent looks at another's session: %v %s", err, stderr(err))
	}
	if out, err := as("session", "ls", "--json"); err != nil || !strings.Contains(out, id) || strings.Contains(out, other) {
		t.Errorf("an agent's list of sessions: %s, %v", out, err)
	}
	if _, err := as("cookies", "ls"); err == nil {
		t.Error("an agent lists accounts")
	}
	if _, err := v.Run(t.Context(), "cookies", "capture", id, "--domain", website.Domain); err == nil || !strings.Contains(err.Error(), "an agent") {
		t.Errorf("capture from an agent's session: %v", err)
	}
	v.run("agent", "revoke", "worker")
	testenv.Eventually(t, 20*time.Second, func() bool {
		s, err := v.API.Get(t.Context(), id)
		return err == nil && s.State == session.StateClosed && s.Ended.Cause == session.CauseRevoked
	}, "the session of a revoked agent goes on")
	if _, err := as("session", "ls"); err == nil {
		t.Error("a revoked token is still good")
	}
	v.Close(other)
	v.Clean(20 * time.Second)
}
