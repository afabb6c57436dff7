package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity/signin"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/internal/vault"
	"github.com/clawjail/clawjail/internal/weblogin"

	"github.com/spf13/cobra"
)

// hostile is what somebody may write where they can, to take over the terminal of whoever reads it.
const hostile = "a\x1b[2J\u009b31m\u202eb\nZ!"

// harmless says what in a text a terminal would obey.
func harmless(t *testing.T, text string) {
	t.Helper()
	for _, c := range []string{"\x1b", "\u009b", "\u202e", "\nZ!"} {
		if strings.Contains(text, c) {
			t.Errorf("a terminal gets %q in %q", c, text)
		}
	}
}

func TestListingsAsPeopleReadThem(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600)) // people read the time of their own zone
	at := func(d time.Duration) time.Time { return now.Add(d).UTC() }
	left := 3
	lists := []struct {
		name string
		rows [][]string
	}{
		{"audit", rowsOf(op.ListAudit().View(op.AuditRows{Rows: []op.AuditRow{
			{Node: "a", Seq: 1, Time: at(0), Phase: audit.PhaseIntent, Action: "grant.issue", Actor: "operator:abc", Tenant: "default",
				Target: "g_1",
				Detail: json.RawMessage(`{"domains":["example.com"]}`)},
			{Node: "a", Seq: 2, Time: at(time.Second), Phase: audit.PhaseOutcome, Action: "grant.issue", Result: "ok", Actor: "operator:abc",
				Tenant: "default"},
			{Node: "a", Seq: 3, Time: at(time.Minute), Phase: audit.PhaseEvent, Action: hostile, Result: hostile, Actor: hostile, Tenant: hostile,
				Session: hostile, Target: hostile, Detail: json.RawMessage(`"` + hostile + `"`)},
		}})[0], now)},
		{"cookie sets", setRows([]listedSet{
			{CookieSet: vault.CookieSet{Domain: "example.com", Tenant: "default", Count: 3, Scopes: []string{"tools"}, MaxLeases: 1,
				LastRefreshedAt: at(-time.Hour), ExpiresAt: at(time.Hour), Storage: []weblogin.OriginInfo{{Origin: "https://example.com", Items: 2, Bytes: 9000}}}, Agents: []string{"shopper", hostile}},
			{CookieSet: vault.CookieSet{Domain: "example.org", Tenant: "default", Count: 3, MaxLeases: 2, LastRefreshedAt: at(-time.Hour),
				LastInjectedAt: at(0), Problem: problem.VaultRowDamaged}, NeedsRefresh: "login_page"},
			{CookieSet: vault.CookieSet{Domain: "example.net", Tenant: "default", Count: 1, MaxLeases: 1, LastRefreshedAt: at(-time.Hour),
				ExpiresAt: at(-time.Minute)}, NeedsRefresh: "expired_cookies"},
		}, now)},
		{"permissions", rowsOf(op.ListPermissions().View(op.Permissions{Permissions: []grant.Permission{
			{Domain: "example.com", Tenant: "default", AgentName: "shopper", Access: "tools", CreatedAt: at(0), ExpiresAt: at(time.Hour), Left: &left,
				Hours: "08-18", Ask: "first", Used: 7, LastUsedAt: at(time.Minute), By: "operator:o", Declared: true},
			{Domain: hostile, Tenant: "default", AgentName: hostile, Access: "cdp", CreatedAt: at(0), Ask: "never", By: hostile},
		}})[0], now)},
		{"secrets", rowsOf(op.ListSecrets().View(op.Secrets{Secrets: []op.Secret{
			{Secret: vault.Secret{Service: "github", Tenant: "default", UpdatedAt: at(0)}},
			{Secret: vault.Secret{Service: "openai", Tenant: "default", Agent: "A1", UpdatedAt: at(0), UsedAt: at(0)}, AgentName: "writer"},
			{Secret: vault.Secret{Service: "gone", Tenant: "acme", Agent: "A2", UpdatedAt: at(0)}},
		}})[0], now)},
		{"grants", rowsOf(op.ListGrants().View(op.Grants{Grants: []op.Grant{
			{ID: "g_1", Tenant: "default", State: "active", Domains: []string{"example.com", "example.org"}, Access: "tools",
				ExpiresAt: at(time.Minute), Operator: "admin"},
			{ID: "g_2", Tenant: "acme", State: "used", Domains: []string{"example.com"}, Access: "cdp",
				ExpiresAt: at(-time.Minute), Operator: "operator:abc", UsedBy: "s_1"},
		}})[0], now)},
		{"grant keys", rowsOf(op.ListGrantKeys().View(op.GrantKeys{Keys: []op.GrantKey{
			{ID: "k4.pid.a", CreatedAt: at(0), Signs: true},
			{ID: "k4.pid.b", CreatedAt: at(-time.Hour), VerifiesUntil: at(time.Hour)},
		}})[0], now)},
		{"tenants", rowsOf(op.ListTenants().View(op.Tenants{Tenants: []op.Tenant{{ID: "acme", CreatedAt: at(0), ForbidOperatorMode: true}, {ID: "default", CreatedAt: at(0)}}})[0], now)},
		{"operators", rowsOf(op.ListOperators().View(op.Operators{Operators: []op.Operator{
			{ID: "o1", Name: hostile, Role: "admin", KeyHint: "cjop_abcd", CreatedAt: at(0)},
			{ID: "o2", Name: "Ada", Tenant: "acme", Role: "viewer", KeyHint: "cjop_efgh", CreatedAt: at(0), ExpiresAt: at(0)},
			{ID: "o3", Name: "Eve", Tenant: "acme", Role: "viewer", KeyHint: "cjop_ijkl", CreatedAt: at(0),
				ExpiresAt: at(time.Second), RevokedAt: at(0)},
		}})[0], now)},
		{"agents", rowsOf(op.ListAgents().View(op.Agents{Agents: []op.Agent{
			{ID: "A1", Name: "writer", Tenant: "default", CreatedAt: at(0)},
			{ID: "A2", Name: "reader", Tenant: "default", CreatedAt: at(0), RevokedAt: at(0)},
		}})[0], now)},
		{"agents in jails", rowsOf(op.ListAgents().View(op.Agents{Agents: []op.Agent{
			{ID: "A1", Name: "writer", Tenant: "default", CreatedAt: at(0), Jail: &op.AgentJail{Driver: "linux", Phase: jail.PhaseRunning, Since: at(0), Restarts: 4}},
			{ID: "A2", Name: "reader", Tenant: "default", CreatedAt: at(0), Jail: &op.AgentJail{Driver: "linux", Phase: jail.PhaseWaiting, Since: at(0), Restarts: 9,
				Crashes: 7, Exit: &op.AgentExit{Code: 3, Cause: jail.CauseExited}}},
		}})[0], now)},
		{"tokens", rowsOf(op.ListTokens().View(op.Tokens{Tokens: []op.Token{
			{ID: "T1", Hint: "cjagt_abcd", CreatedAt: at(0)},
			{ID: "T2", Hint: "cjagt_efgh", CreatedAt: at(0), ExpiresAt: at(-1), UsedAt: at(0)},
		}})[0], now)},
		{"programs", rowsOf(op.ListProcesses().View(op.ProcessList{Processes: []op.Process{
			{ID: "pr_1", Jail: "cj_1", OwnJail: true, Argv: []string{"/bin/sh", "-c", hostile}, StartedAt: at(-time.Hour), StartedBy: "admin"},
			{ID: "pr_2", Jail: "cj_2", Argv: []string{"/bin/false"}, StartedAt: at(0), StartedBy: "operator:o1", Exit: &jail.Exit{Code: 1, Cause: jail.CauseExited}},
		}})[0], now)},
		{"sign-ins", rowsOf(op.ListSignIns().View(op.SignIns{SignIns: []signin.SignIn{
			{ID: "si_1", Name: hostile, Method: "key", Remote: "192.0.2.1", UserAgent: hostile, CreatedAt: at(-time.Hour), UsedAt: at(0), ExpiresAt: at(time.Hour)},
			{ID: "si_2", Name: "Ada", Tenant: "acme", Method: "passkey", CreatedAt: at(-time.Hour), UsedAt: at(0), ExpiresAt: at(time.Hour)},
		}})[0], now)},
	}
	var b strings.Builder
	for _, l := range lists {
		fmt.Fprintf(&b, "-- %s\n", l.name)
		if err := table(&b, l.rows); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Fprintln(&b, "-- one cookie set")
	shown := op.ShowCookies().View(vault.CookieSet{Cookies: []vault.CookieInfo{
		{ID: cookies.ID{Name: "sid", Domain: ".example.com", Path: "/"}, Secure: true, HTTPOnly: true, SameSite: "Lax",
			ExpiresAt: at(time.Hour)},
		{ID: cookies.ID{Name: hostile, Domain: "www.example.com", Path: hostile, TopLevelSite: "https://example.org"},
			Session: true, DeviceBound: true},
		{ID: cookies.ID{Name: "old", Domain: ".example.com", Path: "/"}, ExpiresAt: at(-time.Hour), Expired: true},
	}, Storage: []weblogin.OriginInfo{{Origin: "https://a.example.com", Items: 14, Bytes: 9000, Databases: 2, Records: 200}, {Origin: hostile, Items: 1, Bytes: 7, LeftOut: []string{"a key", hostile}}}})
	p, cmd := &program{now: func() time.Time { return now }}, &cobra.Command{}
	cmd.SetOut(&b)
	cmd.SetErr(&b)
	if err := p.show(cmd, shown); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(&b, "-- what a grant permits")
	words := op.IssueGrant().View(op.IssuedGrant{Grant: op.Grant{ID: "g_1", Tenant: "default", Domains: []string{"example.com"}, EgressDomains: []string{"cdn.example.net"},
		Access: "tools", Origin: "s_1", ExpiresAt: at(10 * time.Minute)}})[1]
	if err := p.show(cmd, []op.Block{words}); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(&b, "-- tail")
	for _, row := range []op.AuditRow{
		{Time: at(0), Phase: audit.PhaseIntent, Action: "session.open", Actor: "admin", Tenant: "default", Session: "s_1"},
		{Time: at(0), Phase: audit.PhaseEvent, Action: hostile, Result: "ok", Actor: hostile, Target: hostile},
	} {
		if err := tailRow(&b, row, now, false); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Golden(t, "testdata/listings.txt", b.String())
	harmless(t, b.String())
}

func TestATailInJSONIsOneLineARowInUTC(t *testing.T) {
	var b strings.Builder
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	row := op.AuditRow{Node: "a", Seq: 7, Time: at, Phase: audit.PhaseEvent, Action: "x", Target: "<\n>"}
	if err := tailRow(&b, row, at.In(time.FixedZone("", 3600)), true); err != nil {
		t.Fatal(err)
	}
	if got := b.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `"2026-01-02T03:04:05.000006Z"`) ||
		!strings.Contains(got, `"<\n>"`) {
		t.Errorf("it is %q", got)
	}
}

func TestABrokenCookieSetIsAnError(t *testing.T) {
	err := op.ShowCookies().Fails(vault.CookieSet{Domain: "example.com", Problem: problem.VaultKeyWrong})
	if problem.CodeOf(err) != problem.VaultKeyWrong {
		t.Errorf("it is %v", err)
	}
}

func TestAReportNamesTheFirstBadRow(t *testing.T) {
	bad := audit.Finding{Kind: audit.Edited, Node: hostile, Seq: 7, Why: hostile}
	r := audit.Report{Nodes: []audit.NodeReport{{Node: "a", Rows: 3, From: 1, To: 3},
		{Node: hostile, Rows: 9, From: 1, To: 9, Findings: 2, Bad: &bad}},
		Damaged: []int{4}}
	var b strings.Builder
	err := showReport(&b, r, false, false)
	if problem.CodeOf(err) != problem.AuditBroken {
		t.Fatalf("it is %v", err)
	}
	fmt.Fprintln(&b, err)
	for _, want := range []string{"row 7 of a", "(the first of 2 findings)", "line 4 of the checkpoints"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("it does not say %q: %s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "nothing is wrong") {
		t.Errorf("it says that nothing is wrong: %s", b.String())
	}
	harmless(t, b.String())
	b.Reset()
	if err := showReport(&b, audit.Report{Nodes: []audit.NodeReport{{Node: "a", Rows: 3, Uncovered: 2}}}, false, false); err != nil {
		t.Errorf("a log in which nothing is wrong: %v", err)
	}
	if !strings.Contains(b.String(), "nothing is wrong; 2 rows behind the last checkpoint") {
		t.Errorf("it says %q", b.String())
	}
}

func TestWhatAnImportSaysIsHarmlessAndBounded(t *testing.T) {
	var file strings.Builder
	fmt.Fprintln(&file, "# Netscape HTTP Cookie File")
	for n := range 3 * maxNamed {
		fmt.Fprintf(&file, ".example.com\tTRUE\t/\tTRUE\t1000000000\texpired%d\t%s\n", n, canary)
	}
	fmt.Fprintf(&file, ".example.com\tTRUE\t/\u009b31m\tTRUE\t1000000000\ta\u202eb\t%s\n", canary)
	for n := range 3 * maxDomains {
		fmt.Fprintf(&file, ".example%d.com\tTRUE\t/\tTRUE\t4102444800\tsid\t%s\n", n, canary)
	}
	fmt.Fprintf(&file, ".\u202e.com\tTRUE\t/\tTRUE\t4102444800\tsid\t%s\n", canary)
	path := filepath.Join(t.TempDir(), "cookies.txt")
	if err := os.WriteFile(path, []byte(file.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	status, out, errs := run(t, "", "cookies", "import", path, "--domain", "example.com")
	if status != exitFailure || strings.Count(out, "\n") > maxNamed+5 || !strings.Contains(out, "and 40 more") {
		t.Errorf("it ended with %d and said: %s%s", status, out, errs)
	}
	harmless(t, out+errs)
	status, out, errs = run(t, "", "cookies", "import", path)
	if status != exitUsage || out != "" || strings.Count(errs, "\n") != maxDomains+3 || !strings.Contains(errs, "and 82 more") {
		t.Errorf("it ended with %d and said: %s%s", status, out, errs)
	}
	harmless(t, errs)
}

func TestAFileIsWrittenWholeOrNotAtAll(t *testing.T) {
	newFixture(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.jsonl")
	if err := os.WriteFile(path, []byte("before"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	root := New("v1.2.3")
	root.SetArgs([]string{"audit", "export", "--jsonl", "-o", path})
	if err := root.ExecuteContext(ctx); err == nil {
		t.Error("an export that was interrupted is no error")
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "before" || len(left) != 1 {
		t.Errorf("the file has %q (%v), and the folder %v", data, err, left)
	}
	if status, _, errs := run(t, "", "tenant", "create", "acme"); status != exitDone {
		t.Fatal(errs)
	}
	if status, _, errs := run(t, "", "audit", "export", "--jsonl", "-o", path); status != exitDone {
		t.Fatal(errs)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 || info.Size() < 10 {
		t.Errorf("the file has the mode %o and %d bytes", info.Mode().Perm(), info.Size())
	}
}

func TestFollowingEndsWithoutAnErrorWhenItIsInterrupted(t *testing.T) {
	newFixture(t)
	if status, _, errs := run(t, "", "tenant", "create", "acme"); status != exitDone {
		t.Fatal(errs)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	root := New("v1.2.3")
	root.SetArgs([]string{"audit", "tail", "-f", "--action", "tenant.create"})
	var seen strings.Builder
	root.SetOut(writerFunc(func(b []byte) (int, error) {
		seen.Write(b)
		cancel() // as soon as there is a row
		return len(b), nil
	}))
	if err := root.ExecuteContext(ctx); err != nil {
		t.Errorf("it ended with %v", err)
	}
	if !strings.Contains(seen.String(), "tenant.create") {
		t.Errorf("it showed %q", seen.String())
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestTimesOfTheCommandLine(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600))
	cmd := &cobra.Command{}
	for text, want := range map[string]string{
		"1h": "2026-01-02T01:04:05Z", "2026-01-01T00:00:00+02:00": "2025-12-31T22:00:00Z", "0s": "2026-01-02T02:04:05Z",
	} {
		got, err := moment(cmd, "since", text, now)
		if err != nil || got.Format(time.RFC3339) != want {
			t.Errorf("%s is %s (%v), want %s", text, got.Format(time.RFC3339), err, want)
		}
	}
	if got, err := moment(cmd, "since", "", now); err != nil || !got.IsZero() {
		t.Errorf("no time is %s (%v)", got, err)
	}
	for _, text := range []string{"-1h", "yesterday", "2026-01-01", "1"} {
		if _, err := moment(cmd, "since", text, now); problem.CodeOf(err) != problem.BadUsage {
			t.Errorf("%q: %v", text, err)
		}
	}
}
