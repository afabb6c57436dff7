package cli

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// canary is in the values of cookies and secrets of tests.
const canary = "canary-7f3a91c4e8b2"

// shows says whether a text has the value, in a form in which it could have been printed.
func shows(text, value string) bool {
	for _, form := range []string{value, url.QueryEscape(value), hex.EncodeToString([]byte(value)), base64.StdEncoding.EncodeToString([]byte(value)),
		base64.RawURLEncoding.EncodeToString([]byte(value))} {
		if strings.Contains(text, form) {
			return true
		}
	}
	return false
}

// run runs a command as a user does.
func run(t *testing.T, stdin string, args ...string) (status int, out, errs string) {
	t.Helper()
	root := New("v1.2.3")
	var stdout, stderr bytes.Buffer
	root.SetArgs(args)
	root.SetIn(strings.NewReader(stdin))
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	err := root.ExecuteContext(t.Context())
	status = exitStatus(&stderr, err)
	return status, stdout.String(), stderr.String()
}

func TestNoValueOfACookieIsInAnyOutput(t *testing.T) {
	newFixture(t)
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	netscape := "# Netscape HTTP Cookie File\n"
	for _, row := range [][]string{
		{".example.com", "TRUE", "/", "TRUE", "4102444800", "sid", canary},
		{".example.com", "TRUE", "/", "TRUE", "1000000000", "expired", canary},
		{".example.com", "TRUE", "/", "FALSE", "4102444800", "__Secure-invalid", canary},
		{".google.com", "TRUE", "/", "TRUE", "4102444800", "__Secure-1PSIDTS", canary},
		{"not a domain", "TRUE", "/", "TRUE", "never", "broken", canary},
		{".example.com", "TRUE", "/", "TRUE", "4102444800", "short"},
	} {
		netscape += strings.Join(row, "\t") + "\n"
	}
	file := write("cookies.txt", netscape)
	json := write("state.json", `{"cookies":[{"name":"sid","value":"`+canary+`","domain":".example.org","path":"/","expires":-1,"secure":true},
		{"name":"odd","value":"`+canary+`","domain":".example.org","path":"/","expires":"`+canary+`"}]}`)
	torn := write("torn.json", `{"cookies":[{"name":"sid","value":"`+canary)
	text := write("plain.txt", canary+"\n")

	open := []string{"session", "open"}
	for n, c := range []struct {
		stdin string
		args  []string
	}{
		{"", []string{"cookies", "import", file}},
		{"", []string{"cookies", "import", file, "--domain", "example.com", "--dry-run"}},
		{"", []string{"cookies", "import", file, "--domain", "example.com", "--dry-run", "--json"}},
		{"", []string{"cookies", "import", file, "--domain", "example.com", "--domain", "google.com"}},
		{"", []string{"cookies", "import", file, "--domain", "example.com", "--json", "--scope", "cdp", "--max-sessions", "2"}},
		{"", []string{"cookies", "import", file, "--domain", "example.com", "--max-sessions", "0"}},
		{"", []string{"cookies", "import", file, "--domain", "example.com", "--tenant", "nobody"}},
		{"", []string{"cookies", "import", file, "--domain", "example.net"}},
		{"", []string{"cookies", "import", json, "--domain", "example.org"}},
		{"", []string{"cookies", "import", torn, "--domain", "example.org"}},
		{"", []string{"cookies", "import", text, "--domain", "example.org"}},
		{netscape, []string{"cookies", "import", "-", "--domain", "example.com"}},
		{netscape, []string{"cookies", "import", "-"}},
		{"", open},
		{"", []string{"cookies", "capture", "s_0000000000000001", "--domain", "example.com"}},
		{"", []string{"cookies", "capture", "s_0000000000000001", "--domain", "example.com", "--domain", "example.org"}},
		{"", []string{"cookies", "ls"}}, {"", []string{"cookies", "ls", "--json"}},
		{"", []string{"cookies", "ls", "example.com"}}, {"", []string{"cookies", "ls", "example.com", "--json"}},
		{"", []string{"cookies", "set", "example.com", "--scope", "tools"}},
		{canary + "\n", []string{"secret", "set", "github"}}, {canary, []string{"secret", "set", "Not A Service"}},
		{canary, []string{"secret", "set", "github", "--tenant", "nobody"}},
		{"", []string{"secret", "ls"}}, {"", []string{"secret", "ls", "--json"}},
		{"", []string{"vault", "status", "--json"}}, {"", []string{"vault", "rotate"}},
		{"", []string{"cookies", "rm", "example.com"}}, {"", []string{"secret", "rm", "github"}},
		{canary, []string{"session", "open", "--mode", "operator", "--domain", "example.com", "--grant", "-"}},
		{"", []string{"audit", "ls", "--limit", "1000"}}, {"", []string{"audit", "tail", "--json", "-n", "1000"}},
		{"", []string{"audit", "export", "--jsonl"}},
	} {
		status, out, errs := run(t, c.stdin, c.args...)
		if out+errs == "" && c.args[0] != "secret" && c.args[1] != "rm" {
			t.Errorf("%d: %q printed nothing", n, c.args)
		}
		if status == exitUsage && c.args[1] != "import" {
			t.Errorf("%d: %q was not tried: %s", n, c.args, errs)
		}
		if shows(out+errs, canary) {
			t.Errorf("%d: %q shows a value: %s%s", n, c.args, out, errs)
		}
	}
	// The same look finds the value where it is.
	for _, path := range []string{file, json, torn, text} {
		if data, err := os.ReadFile(path); err != nil || !shows(string(data), canary) {
			t.Errorf("the value is not found in %s (%v)", path, err)
		}
	}
	if !shows(base64.StdEncoding.EncodeToString([]byte(canary)), canary) || shows("nothing", canary) {
		t.Error("the look does not tell a value from none")
	}
}

func TestIssuingAGrantPrintsTheTokenAlone(t *testing.T) {
	newFixture(t)
	if status, _, errs := run(t, "# Netscape HTTP Cookie File\n.example.com\tTRUE\t/\tTRUE\t4102444800\tsid\tv\n", "cookies", "import", "-", "--domain", "example.com"); status != exitDone {
		t.Fatal(errs)
	}
	status, out, errs := run(t, "", "grant", "issue", "--domain", "example.com")
	if status != exitDone || !regexp.MustCompile(`\Av4\.public\.[A-Za-z0-9_.-]+\n\z`).MatchString(out) {
		t.Errorf("it ended with %d and printed %q", status, out)
	}
	if token := strings.TrimSpace(out); token == "" || strings.Contains(errs, token) || !strings.Contains(errs, "example.com") {
		t.Errorf("on standard error it said %q", errs)
	}
}

func TestCookiesAreWipedWhenTheyHaveBeenSent(t *testing.T) {
	newFixture(t)
	path := filepath.Join(t.TempDir(), "cookies.txt")
	row := strings.Join([]string{".example.com", "TRUE", "/", "TRUE", "4102444800", "sid", canary}, "\t")
	if err := os.WriteFile(path, []byte("# Netscape HTTP Cookie File\n"+row+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*importing){
		"sent": func(*importing) {}, "not sent": func(i *importing) { i.dryRun = true }, "refused": func(i *importing) { i.tenant = "nobody" },
		"not enough": func(i *importing) { i.domains = append(i.domains, "example.org") },
	} {
		t.Run(name, func(t *testing.T) {
			p := &program{version: "v1.2.3", getenv: os.Getenv, lookupEnv: os.LookupEnv, now: time.Now}
			cmd := newCookiesImport(p)
			cmd.SetOut(&bytes.Buffer{})
			cmd.SetContext(t.Context())
			i := importing{file: path, domains: []string{"example.com"}}
			change(&i)
			read, err := p.readCookies(cmd, i.file, i.domains)
			if err != nil {
				t.Fatal(err)
			}
			held := read.Cookies[0].Value // shares the bytes
			if string(held.Append(nil)) != canary {
				t.Fatal("the value was not read")
			}
			_ = p.importRead(cmd, i, read) // some are meant to fail
			if strings.Trim(string(held.Append(nil)), "\x00") != "" {
				t.Error("the value is still there")
			}
		})
	}
}
