package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/template"
	"github.com/clawjail/clawjail/internal/testenv"
)

func sample() (now time.Time, all []session.Session) {
	now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(d time.Duration) *time.Time { when := now.Add(d); return &when }
	teardown, code := 31.25, 133
	all = []session.Session{
		{ID: "s_aaaaaaaaaaaaaaaa", State: session.StateOpening, Browser: "full", Template: "browser", Created: now.Add(-300 * time.Millisecond), Record: "off"},
		{ID: "s_bbbbbbbbbbbbbbbb", Label: "näher", State: session.StateReady, Browser: "shell", BrowserVersion: "HeadlessChrome/1.2", Template: "browser",
			Record: "transient", Jail: "bk3x900042", Address: "10.213.0.150", Warm: true, Created: now.Add(-61 * time.Minute),
			ExpiresAt: at(time.Hour), IdleUntil: at(time.Minute), Timing: session.Timing{Total: 4.1},
			Usage: &session.Usage{MemoryBytes: 70 << 20, MemoryPeak: 3 << 30, CPU: 1234, Tasks: 58, DiskBytes: 900, OpenFiles: 80,
				LimitsHit: []jail.LimitName{jail.LimitTasks, jail.LimitDisk}},
			Screenshots: []session.Shot{{Number: 1}}},
		{ID: "s_cccccccccccccccc", State: session.StateClosed, Browser: "shell", Template: "browser", Record: "transient", Jail: "bk3x900041",
			Address: "10.213.0.151", Created: now.Add(-50 * time.Hour),
			Timing: session.Timing{Clone: 0.4, Attach: 0.1, Start: 60, Verify: 1, Ready: 90, Total: 152.5},
			Ended: &session.Ended{Cause: session.CauseMemory, Message: "its browser ran out of memory", At: now.Add(-5 * time.Minute),
				LimitsHit: []jail.LimitName{jail.LimitMemory}, ExitCode: &code, Signal: "killed", Stderr: []string{"one", "two"}, Teardown: &teardown}},
		{ID: "s_dddddddddddddddd", State: session.StateFailed, Browser: "shell", Template: "browser", Record: "transient", Created: now.Add(-time.Minute),
			Ended: &session.Ended{Cause: session.CauseFailed, Message: "no OCI runtime works on this host", At: now}},
		{ID: "s_eeeeeeeeeeeeeeee", State: session.StateClosed, Browser: "shell", Template: "browser", Record: "transient", Jail: "bk3x900040",
			Address: "10.213.0.152", Created: now, Ended: &session.Ended{Cause: session.CauseClosed, Message: "it was closed", At: now,
				TeardownError: "the jail could not be removed; the host daemon tries again"}},
		{ID: "s_ffffffffffffffff", Label: "a\x1b[2Jb", State: session.StateReady, CredentialMode: session.ModeOperator, Access: "cdp", OpenedBy: "agent:abc",
			Domains: []string{"example.com", "example.org"}, Grant: "g_abcdefgh23456789abcd", Browser: "shell", Template: "browser", Record: "off",
			Jail: "bk3x900043", Address: "10.213.0.153", Created: now, NeedsRefresh: []session.Refresh{
				{Domain: "example.com", Reason: "expired_cookies", Cookies: []string{"sid", "a\x1bb"}, At: now}, {Domain: "example.org", Reason: "login_page", At: now}}},
	}
	for n := range all {
		all[n].Tenant = "default"
		if all[n].CredentialMode == "" {
			all[n].CredentialMode, all[n].Access, all[n].OpenedBy = session.ModeClean, "tools", "admin"
		}
	}
	return now, all
}

func TestSessionsAsPeopleReadThem(t *testing.T) {
	now, all := sample()
	var list, shown strings.Builder
	if err := table(&list, rowsOf(op.ListSessions().View(op.SessionList{Sessions: all})[0], now)); err != nil {
		t.Fatal(err)
	}
	testenv.Golden(t, "testdata/sessions.txt", list.String())
	list.Reset()
	two := slices.Clone(all[:2])
	two[1].Tenant = "acme"
	if err := table(&list, rowsOf(op.ListSessions().View(op.SessionList{Sessions: two})[0], now)); err != nil {
		t.Fatal(err)
	}
	testenv.Golden(t, "testdata/sessions-tenants.txt", list.String())
	cmd := &cobra.Command{}
	cmd.SetOut(&shown)
	for _, s := range all {
		if err := (&program{now: func() time.Time { return now }}).show(cmd, op.ShowSession().View(s)); err != nil {
			t.Fatal(err)
		}
		shown.WriteString("--\n")
	}
	testenv.Golden(t, "testdata/session-show.txt", shown.String())
}

func TestTemplatesAsPeopleReadThem(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	var b strings.Builder
	err := table(&b, templateRows([]template.Template{{Name: "browser", Source: "debian:bookworm", CreatedAt: now.Add(-26 * time.Hour), Size: 1009905575,
		Digest: "sha256:0123456789abcdef0123456789abcdef", Programs: map[string]template.Program{"shell": {}, "full": {}}}}, now))
	if err != nil {
		t.Fatal(err)
	}
	testenv.Golden(t, "testdata/templates.txt", b.String())
}

func TestErrorsAsPeopleReadThem(t *testing.T) {
	many := &problem.ValidationError{Code: problem.BadConfig, Source: "x.yml", Hint: "correct it"}
	many.AddFlaw(problem.Flaw{Field: "listen", Line: 2, Column: 3, Message: "is no address"})
	many.Add("user", "is root")
	var b strings.Builder
	for _, err := range []error{
		errors.New("plain\nin two lines\n"),
		problem.New(problem.NotFound, "look there", "there is none"),
		problem.Wrap(errors.New("the cause"), problem.Internal, "", "it went wrong"),
		many.Err(),
		withOutput(problem.New(problem.TemplateBuildFailed, "look above", "it could not be built").With("output", []string{"E: one", "E: two"})),
	} {
		report(&b, err)
		b.WriteString("--\n")
	}
	testenv.Golden(t, "testdata/errors.txt", b.String())
}

func TestProgressWithoutATerminalIsALinePerStage(t *testing.T) {
	var b strings.Builder
	now := time.Unix(0, 0)
	p := newProgress(&b, func() time.Time { now = now.Add(time.Second); return now })
	for _, s := range []step{{Stage: "download", Total: 2}, {Stage: "download", Done: 1, Total: 2, Line: "a"}, {Stage: "install"}} {
		p.step(s)
	}
	p.end()
	if got := b.String(); got != "download\ninstall\n" {
		t.Errorf("it wrote %q", got)
	}
}

func TestProgressOnATerminalStaysOnOneLine(t *testing.T) {
	var b strings.Builder
	now := time.Unix(0, 0)
	p := newProgress(&b, func() time.Time { now = now.Add(time.Second); return now })
	p.width = 40
	p.step(step{Stage: "download"})
	p.step(step{Stage: "download", Done: 1 << 20, Total: 3 << 20, Unit: "bytes", Line: "Get:1 \x1b[31m" + strings.Repeat("x", 100)})
	p.end()
	got := b.String()
	for line := range strings.SplitSeq(got, "\r\x1b[K") {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n >= 40 {
			t.Errorf("%q has %d characters", line, n)
		}
	}
	if !strings.Contains(got, "download  1 MiB of 3 MiB") || strings.Contains(got, "\x1b[31m") || !strings.HasSuffix(got, "s\n") {
		t.Errorf("it wrote %q", got)
	}
}

func TestABarSaysHowMuchIsDone(t *testing.T) {
	for done, want := range map[int64]string{
		0: "[........................]   0 %", 50: "[############............]  50 %", 100: "[########################] 100 %", 120: "[########################] 100 %",
	} {
		if got := bar(done, 100); got != want {
			t.Errorf("%d of 100 is %q, want %q", done, got, want)
		}
	}
	var b strings.Builder
	now := time.Unix(0, 0)
	p := newProgress(&b, func() time.Time { now = now.Add(time.Second); return now })
	p.width = 80
	p.step(step{Stage: "install", Done: 30, Total: 120, Unit: "packages"})
	if want := "install   [######..................]  25 % 30 packages of 120 packages"; !strings.HasSuffix(b.String(), want) {
		t.Errorf("it wrote %q, want %q", b.String(), want)
	}
}

func TestNumbersAsPeopleReadThem(t *testing.T) {
	for d, want := range map[time.Duration]string{-time.Second: "0s", 59 * time.Second: "59s", 61 * time.Second: "1m01s", 61 * time.Minute: "1h01m",
		25 * time.Hour: "1d01h"} {
		if got := age(d); got != want {
			t.Errorf("%s is shown as %s, want %s", d, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1 KiB", 5 << 20: "5 MiB", 3 << 29: "1.5 GiB"} {
		if got := size(n); got != want {
			t.Errorf("%d is shown as %s, want %s", n, got, want)
		}
	}
}

// JSON holds texts of agents, pages and servers. It is the same for a program that reads it.
func TestJSONCommandsNoTerminal(t *testing.T) {
	const hostile = "a\u009b31m\u009d0;title\u009c\x1b[2J\x7f\u202eesrever\u2066\u200b\u2028\ufeff\U000e0041 plain: äöü 中 \U0001f980 <&>"
	for name, write := range map[string]func(io.Writer) error{
		"a result": func(w io.Writer) error { return writeJSON(w, map[string]string{hostile: hostile}) },
		"a line":   func(w io.Writer) error { return encoder(w).Encode(map[string]string{hostile: hostile}) },
		"as it came": func(w io.Writer) error {
			return encoder(w).Encode(map[string]json.RawMessage{"x": json.RawMessage(`"\u009b` + "\u009b\u202e" + `"`)})
		},
	} {
		var out bytes.Buffer
		if err := write(&out); err != nil {
			t.Fatal(err)
		}
		for _, r := range out.String() {
			if r != '\n' && unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) {
				t.Errorf("%s has %U: %q", name, r, out.String())
			}
		}
		var got map[string]string
		if err := json.Unmarshal(out.Bytes(), &got); err != nil {
			t.Errorf("%s is no JSON: %v", name, err)
		}
		if name != "as it came" && (got[hostile] != hostile || !strings.Contains(out.String(), "äöü 中 \U0001f980 <&>")) {
			t.Errorf("%s has become %q", name, out.String())
		}
		if name == "as it came" && got["x"] != "\u009b\u009b\u202e" {
			t.Errorf("%s has become %q", name, out.String())
		}
	}
}

func TestJSONIsPrintedInOnePlace(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) < 50 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	found := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, call := range []string{"json.NewEncoder(", "json.Marshal(", "json.MarshalIndent(", "json.Indent("} {
			switch n := strings.Count(string(text), call); {
			case n > 0 && file == "output.go":
				found += n
			case n > 0:
				t.Errorf("%s has %s…): use encoder or writeJSON, which escape what terminals obey", file, call)
			}
		}
	}
	if found == 0 {
		t.Error("output.go has no encoder: this test looks for the wrong thing")
	}
}

func TestNounsAreCounted(t *testing.T) {
	for want, got := range map[string]string{"1 entry": count(1, "entry"), "2 entries": count(2, "entry"), "2 keys": count(2, "key")} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
