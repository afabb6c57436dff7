package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
)

func TestTargetsAreShownAsTheyAreRead(t *testing.T) {
	for given, want := range map[string]string{
		"example.com":                "example.com",
		"*.Example.com.":             "*.example.com",
		"example.com:8443":           "example.com:8443",
		"example.com:8000-8080":      "example.com:8000-8080",
		"example.com:*":              "example.com:*",
		"https://example.com":        "https://example.com",
		"http://example.com:80/a/**": "http://example.com/a/**",
		"https://example.com:80":     "https://example.com:80",
		"ws://example.com/x":         "ws://example.com/x",
		"[2001:db8::1]:443":          "[2001:db8::1]:443",
		"*":                          "*",
	} {
		rule, err := policy.ParseURL(given)
		if err != nil {
			t.Fatalf("%s: %v", given, err)
		}
		got := op.Rule{Rule: egress.Rule{Rule: rule}}.Subject()
		again, err := policy.ParseURL(got)
		if diff := cmp.Diff(rule, again, cmp.Comparer(func(a, b policy.Pattern) bool { return a == b }), cmp.Comparer(func(a, b policy.Path) bool { return a == b }),
			cmpopts.EquateComparable(netip.Addr{})); got != want || err != nil || diff != "" {
			t.Errorf("%s is shown as %s, and read again, %v: %s", given, got, err, diff)
		}
	}
}

func TestWhatAgentsWriteIsForNoTerminal(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	asked := egress.AccessRequest{Meta: egress.Meta{ID: "a", Tenant: "t"}, AgentName: hostile, Kind: hostile, Target: hostile, Reason: hostile, State: hostile, Answer: hostile}
	var b bytes.Buffer
	cmd := &cobra.Command{}
	cmd.SetOut(&b)
	if err := errors.Join(table(&b, rowsOf(op.ListAccess().View(op.AccessRequests{Requests: []egress.AccessRequest{asked}})[0], now)), watchedLine(&b, asked, now, false),
		table(&b, rowsOf(op.ListUsage().View(op.ModelUsages{Usage: []op.ModelUsage{{Usage: egress.Usage{Agent: hostile, Model: hostile, Provider: hostile, Day: hostile}}}})[0], now)),
		table(&b, rowsOf(op.ListRules().View(op.Rules{Rules: []op.Rule{{Rule: egress.Rule{Session: hostile, Rule: policy.Rule{Name: hostile, Methods: []string{hostile}}}, AgentName: hostile}}})[0], now)),
		table(&b, rowsOf(op.ListServices().View(op.Services{Services: []op.Service{{Service: egress.Service{Name: hostile, Upstream: egress.Upstream{BaseURL: hostile, Secret: hostile},
			Allow: []egress.Allowance{{Path: hostile}}, Inject: egress.Injection{Name: hostile}}, AgentName: hostile}}})[0], now)),
		(&program{now: func() time.Time { return now }}).show(cmd, op.Service{Service: egress.Service{Meta: egress.Meta{Note: hostile}, Name: hostile, Git: hostile,
			Env: map[string]string{"A": hostile}}}.View()),
		table(&b, rowsOf(op.ListProviders().View(op.Providers{Providers: []op.Provider{{Provider: egress.Provider{Name: hostile, Models: []string{hostile}, Prices: []egress.Price{{Model: hostile}}}}}})[0], now)),
		table(&b, toolRows(op.SettingsShown{Effective: egress.Settings{Tools: []egress.Tool{{URL: hostile, Methods: []string{hostile}, Services: []string{hostile}}}}})),
	); err != nil {
		t.Fatal(err)
	}
	harmless(t, b.String())
}

// The same question again is not shown again; one that was answered is forgotten, and a new one is shown.
func TestWatchShowsEachRequestOnce(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	of := func(ids ...string) (out []egress.AccessRequest) {
		for _, id := range ids {
			out = append(out, egress.AccessRequest{Meta: egress.Meta{ID: id}})
		}
		return out
	}
	answers := [][]egress.AccessRequest{of("a"), of("a", "b"), of("b"), of("b", "c", "a")}
	var shown []string
	err := watchAccess(ctx, func(context.Context) ([]egress.AccessRequest, error) {
		if len(answers) == 0 {
			cancel()
			return nil, context.Canceled
		}
		next := answers[0]
		answers = answers[1:]
		return next, nil
	}, time.Millisecond, func(r egress.AccessRequest) error {
		shown = append(shown, r.ID)
		return nil
	})
	if err != nil || !slices.Equal(shown, []string{"a", "b", "c", "a"}) {
		t.Errorf("%v, %v", shown, err)
	}
	broken := errors.New("gone")
	if err := watchAccess(t.Context(), func(context.Context) ([]egress.AccessRequest, error) { return nil, broken }, time.Hour, nil); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
}

func TestAVerdictIsWhatTheRulesSay(t *testing.T) {
	// In report mode everything passes; what is replayed is the verdict.
	yes, no := true, false
	rule := "r"
	for name, c := range map[string]struct {
		want    recorded
		got     egress.Explanation
		changed bool
	}{
		"the same":                  {recorded{Allowed: &yes}, egress.Explanation{Allowed: true, Rule: "x"}, false},
		"denied now":                {recorded{Allowed: &yes}, egress.Explanation{}, true},
		"allowed now":               {recorded{Allowed: &no}, egress.Explanation{Allowed: true}, true},
		"only reported":             {recorded{Allowed: &no}, egress.Explanation{Allowed: true, Reported: true}, false},
		"only reported, was let by": {recorded{Allowed: &yes}, egress.Explanation{Allowed: true, Reported: true}, true},
		"by the rule":               {recorded{Allowed: &yes, Rule: &rule}, egress.Explanation{Allowed: true, Rule: "r"}, false},
		"by another":                {recorded{Allowed: &yes, Rule: &rule}, egress.Explanation{Allowed: true, Rule: "x"}, true},
	} {
		cmd := newRulesTest(&program{})
		var out bytes.Buffer
		cmd.SetOut(&out)
		err := showReplay(cmd, "f", []int{7}, []recorded{c.want}, []egress.Explanation{c.got}, false)
		if (problem.CodeOf(err) == problem.Conflict) != c.changed || strings.Contains(out.String(), "line 7") != c.changed {
			t.Errorf("%s: %v, %s", name, err, &out)
		}
	}
}

// controlPlane is a client of a handler.
func controlPlane(t *testing.T, handler http.HandlerFunc) *client.Client {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	base, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := client.New(base, "key")
	t.Cleanup(c.CloseIdle)
	return c
}

// Rows of one time may be on two pages: each is read, and the newest verdict of a request counts.
func TestAllPagesOfTheLogAreRecorded(t *testing.T) {
	const rows = 2*pageRows + 500
	from := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	all := make([]op.AuditRow, rows)
	for n := range all {
		all[n] = op.AuditRow{Node: "n", ID: fmt.Sprint(n), Time: from.Add(time.Duration(n/7) * time.Microsecond), Action: "gateway.connect", Phase: "intent",
			Target: fmt.Sprintf("h%d.test:443", n), Tenant: "default", Detail: json.RawMessage(`{"allowed":true,"scheme":"https"}`)}
	}
	all[0].Target, all[rows-1].Target = "same.test:443", "same.test:443"
	all[0].Detail = json.RawMessage(`{"allowed":false,"scheme":"https","code":"host_denied"}`)
	// The domains of a grant are over with its session, and nobody can decide this again.
	all[2].Detail = json.RawMessage(`{"allowed":false,"confined":true,"scheme":"https","code":"host_denied"}`)
	asked := 0
	c := controlPlane(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/audit" {
			_, _ = w.Write([]byte("{}"))
			return
		}
		asked++
		page := all
		if until := r.URL.Query().Get("until"); until != "" {
			at, err := time.Parse(time.RFC3339Nano, until)
			if err != nil {
				t.Error(err)
			}
			page = all[:slices.IndexFunc(append(slices.Clone(all), op.AuditRow{Time: at}), func(row op.AuditRow) bool { return !row.Time.Before(at) })]
		}
		_ = json.NewEncoder(w).Encode(op.AuditRows{Rows: page[max(0, len(page)-pageRows):]})
	})
	r := recorder{client: c, seen: map[egress.Question]bool{}}
	got, err := r.record(t.Context(), "", from)
	if err != nil || len(got) != rows-2 || asked != 3 || r.cut {
		t.Fatalf("%d requests after %d pages, %v", len(got), asked, err)
	}
	if last := got[len(got)-1]; last.URL != "https://same.test" || !*last.Allowed || got[0].URL != "https://h1.test" {
		t.Errorf("%+v is last, %+v first", last, got[0])
	}
}

// A setting that somebody else has stored in between is not lost.
func TestSettingsAreChangedAsTheyWereSeen(t *testing.T) {
	var stored string
	c := controlPlane(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			data, _ := io.ReadAll(r.Body) // what is missing is seen below
			stored = string(data)
			_, _ = w.Write([]byte("{}"))
			return
		}
		_, _ = w.Write([]byte(`{"set":{"version":4,"mode":"report","tools":[],"rates":{"llm":3},"budget":{"tokens_per_day":5},"hold":"1m","note":"n"},"effective":{}}`))
	})
	cmd := newAgentLimits(&program{})
	cmd.SetContext(t.Context())
	if err := changeSettings(cmd, c, op.Whose{Agent: "w"}, func(s *egress.Settings) error { s.Hold = "2m"; return nil }); err != nil {
		t.Fatal(err)
	}
	var got op.SettingsRequest
	if err := json.Unmarshal([]byte(stored), &got); err != nil || got.Version != 4 || got.Mode != "report" || got.Tools == nil || got.Rates.LLM != 3 ||
		got.Budget.TokensPerDay != 5 || got.Hold != "2m" || got.Note != "n" {
		t.Errorf("%s, %v", stored, err)
	}
}

func FuzzRecorded(f *testing.F) {
	f.Add([]byte(`{"agent":"w","method":"GET","url":"https://a.test/","allowed":true,"rule":"x"}` + "\n\n# no\n"))
	f.Add([]byte(`{"method":"GET","url":"u","allowed":null}`))
	f.Add([]byte(`{"method":"GET","url":"u","allowed":true} {}`))
	f.Add([]byte("{\n}"))
	f.Add(fmt.Appendf(nil, "{%70000s}", ""))
	f.Fuzz(func(t *testing.T, data []byte) {
		all, lines, err := parseRecorded(bytes.NewReader(data), "f")
		if err != nil {
			if problem.CodeOf(err) == problem.Internal || strings.Contains(err.Error(), "\x1b") {
				t.Fatalf("%v", err)
			}
			return
		}
		if len(all) != len(lines) || len(all) > maxRecorded {
			t.Fatalf("%d requests on %d lines", len(all), len(lines))
		}
		// Requests that were read are written, and read again the same.
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		for _, one := range all {
			if one.Allowed == nil || one.URL == "" || one.Method == "" {
				t.Fatalf("%+v is no request", one)
			}
			if err := e.Encode(one); err != nil {
				t.Fatal(err)
			}
		}
		again, _, err := parseRecorded(&b, "f")
		if err != nil || cmp.Diff(all, again) != "" {
			t.Fatalf("%v: %s", err, cmp.Diff(all, again))
		}
	})
}
