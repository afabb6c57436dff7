package clawbots

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/agentenv"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv/property"
)

func TestSplitCommand(t *testing.T) {
	for text, want := range map[string][]string{
		"/bin/true":                       {"/bin/true"},
		"  /bin/echo  a\tb\n c ":          {"/bin/echo", "a", "b", "c"},
		`/bin/echo 'a  b' "c d" e\ f`:     {"/bin/echo", "a  b", "c d", "e f"},
		`/bin/echo ''  ""`:                {"/bin/echo", "", ""},
		`/bin/echo a'b'"c"d`:              {"/bin/echo", "abcd"},
		`/bin/echo "a\"b\\c\d\$\` + "`\"": {"/bin/echo", `a"b\c\d$` + "`"},
		`/bin/sh -c 'echo $HOME | cat'`:   {"/bin/sh", "-c", "echo $HOME | cat"},
		"/bin/echo a\\\nb":                {"/bin/echo", "ab"},
		`/bin/echo \* a#b a~b --x=1,2`:    {"/bin/echo", "*", "a#b", "a~b", "--x=1,2"},
		`/bin/echo ünïcode`:               {"/bin/echo", "ünïcode"},
	} {
		got, err := splitCommand(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
	for _, text := range []string{
		"", " ", `a 'b`, `a "b`, `a \`, "a | b", "a & b", "a; b", "a > b", "a < b", "(a)", "a $b", "a `b`", `a "$b"`, "a \"`b`\"", "a *", "a ?", "a [b]",
		"a ~/b", "a # b", strings.Repeat("x", maxCommand+1), strings.Repeat("x ", maxWords+1),
	} {
		if got, err := splitCommand(text); err == nil {
			t.Errorf("%.40q became %q", text, got)
		}
	}
}

// A word that was quoted comes back as it was, whatever it is.
func TestQuotedWordsComeBack(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(rapid.StringMatching(`[ -~\n\t]{0,12}`), 1, 8).Draw(t, "words")
		var quoted []string
		for _, w := range words {
			quoted = append(quoted, "'"+strings.ReplaceAll(w, "'", `'\''`)+"'")
		}
		got, err := splitCommand(strings.Join(quoted, " "))
		if err != nil || !slices.Equal(got, words) {
			t.Fatalf("%q became %q, %v", words, got, err)
		}
	})
}

// Each of these would be in reach of everything in the jail, and is refused; nothing of it is in the message.
func TestSecretsAreRefused(t *testing.T) {
	for name, values := range map[string][]string{
		"PLAIN": {
			"sk-abcdefghijklmnopqrst", "sk-ant-api03-AbCdEfGhIjKlMnOp", "Bearer ghp_abcdefghijklmnopqrst", "x=github_pat_11ABCDEFG0123456789",
			"xoxb-1234567890-abcdef", "AKIAIOSFODNN7EXAMPLE", "AIzaSyA-1234567890abcdefghijklmnopqrs", "hf_abcdefghijklmnopqrstuv",
			"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "cjagt_abc", "cjadm_abc", "cjop_abc", "cjses_abc", "cjbr_abc",
			"123456789:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw1", "https://api.telegram.org/bot123456789:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw1/getMe",
			"postgres://u:p@db.example/x", "https://user:password@example.com/", "-----BEGIN OPENSSH PRIVATE KEY-----\nabc", "glpat-abcdefghijklmnopqrst",
			`{"key":"sk-abcdefghijklmnopqrst"}`, "https://example.com/?key=AKIAIOSFODNN7EXAMPLE",
		},
		"API_TOKEN":     {"9vX2kq8LmZ4tR7wQ", "correct-horse-battery"},
		"my_key":        {"0123456789abcdef"},
		"CLIENT_SECRET": {"a8f5f167f44f4964e6c998dee827110c"},
		"DBPASSWORD":    {"Tr0ub4dor&3Tr0ub4dor"},
		"PASSWORD":      {"/f8Zk2LmQ9xW4vRt7Yp3NcB6"},
		"TOKEN":         {"9vX2kq8LmZ4tR7wQ"},
	} {
		for _, value := range values {
			err := checkVariable(name, value)
			if err == nil {
				t.Errorf("%s=%s was accepted", name, value)
			} else if p, _ := problem.As(err); strings.Contains(err.Error()+p.Hint, value) {
				t.Errorf("the value is in the message: %v", err)
			}
		}
	}
	for name, values := range map[string][]string{
		"PLAIN": {
			"", "hello", "9vX2kq8LmZ4tR7wQ", "https://example.com/x?y=z", "sk-short", "task-abcdefghijklmnopqrstuvwxyz", "user@example.com",
			"eyJ", "postgres://db.example/x", "127001:8080", "2026-11-28T18:00:00", "robots:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw1", "ssh://git@example.com/x", "AKIA", "-----BEGIN CERTIFICATE-----",
		},
		"MONKEY":       {"9vX2kq8LmZ4tR7wQ"},
		"API_TOKEN":    {"", "none", "short", "/run/hermit/token", "./secrets/token-of-the-day", "https://example.com/token/issuer", "aaaaaaaaaaaaaaaaaaaaaaaa"},
		"TOKEN_FILE":   {"/run/hermit/token"},
		"MAX_TOKENS":   {"4096409640964096"},
		"KEYBOARD_MAP": {"us-intl-with-dead-keys"},
	} {
		for _, value := range values {
			if err := checkVariable(name, value); err != nil {
				t.Errorf("%s=%s was refused: %v", name, value, err)
			}
		}
	}
}

// Every variable that clawjail sets itself is one that a file may not set.
func TestTheWireContractCannotBeOverridden(t *testing.T) {
	for _, name := range []string{agentenv.EnvGateway, agentenv.EnvName, agentenv.EnvHome, "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "no_proxy", "NODE_OPTIONS",
		"SSL_CERT_FILE", "GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_0", "LD_PRELOAD", "shell_url"} {
		if err := checkVariable(name, "x"); err == nil {
			t.Errorf("%s may be set", name)
		}
	}
	for _, name := range []string{"PATH", "LANG", "OPENAI_BASE_URL", "MY_URL", "AGENTS"} {
		if err := checkVariable(name, "x"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestMask(t *testing.T) {
	for text, want := range map[string]string{
		"plain text":                               "plain text",
		`say "sk-abcdefghijklmnopqrst" twice`:      `say "***********************" twice`,
		"clawbots[0].env.A":                        "clawbots[0].env.A",
		"data-pipeline-worker-2024-x1":             "data-pipeline-worker-2024-x1",
		"/srv/agents/workspaces/project-x":         "/srv/agents/workspaces/project-x",
		"aB3dE5gH7jK9mN1pQ3sT5":                    "*********************",
		"https://u:secret@example.com/x, and more": "******************************, and more",
		"x.sk-abcdefghijklmnopqrst":                "*************************",
	} {
		if got := mask(text); got != want {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func TestWorkspaces(t *testing.T) {
	for _, test := range []struct {
		sharing Sharing
		mode    Mode
		home    string
		exposes []string
	}{
		{Isolated, "", "/state", nil},
		{Dedicated, ReadOnly, "/workspace", []string{"/w of the host can be read, as /workspace"}},
		{Dedicated, ReadWrite, "/workspace", []string{"/w of the host can be read and changed, as /workspace", "/workspace has no size limit"}},
		{Shared, ReadWrite, "/workspace/dev", []string{"/w of the host can be read and changed, as /workspace", "so can the folders in it of other", "/workspace has no size limit"}},
	} {
		text := "clawbots:\n  - name: dev\n"
		if test.sharing != Isolated {
			text += "    workspace: /w\n    workspace_mode: " + string(test.mode) + "\n"
		}
		if test.sharing == Shared {
			text += "  - name: other\n    workspace: /w/\n"
		}
		a := mustParse(t, text).Agents[0]
		if a.Sharing != test.sharing || a.WorkspaceMode != test.mode || AgentHome(a) != test.home {
			t.Errorf("%s: it is %s, %s, %s", test.sharing, a.Sharing, a.WorkspaceMode, AgentHome(a))
		}
		if diff := cmp.Diff(test.exposes, Exposes(a)); diff != "" {
			t.Errorf("%s:\n%s", test.sharing, diff)
		}
	}
	many := Agent{Workspace: "/w", Sharing: Shared, Siblings: []string{"a", "b", "c", "d", "e", "f"}}
	if got := Exposes(many)[1]; got != "so can the folders in it of a, b, c, d and 2 or more others" {
		t.Errorf("got %q", got)
	}
}

// The gateway takes the rules that a file has; see also the tests of package egress.
func TestRulesAreTheGateways(t *testing.T) {
	a := one(t, "    allow: [example.com, \"GET,POST http://x.example:8080/a/*\", \"deny: DELETE *.example.org\"]\n")
	var rules []policy.Rule
	for i, r := range a.Allow {
		p, err := r.Policy()
		if err != nil {
			t.Fatal(err)
		}
		p.Name = string(rune('a' + i))
		rules = append(rules, p)
	}
	if err := policy.Only(rules...).Validate(); err != nil {
		t.Fatal(err)
	}
	if rules[0].Action != policy.Allow || rules[2].Action != policy.Deny || !slices.Equal(rules[1].Methods, []string{"GET", "POST"}) {
		t.Errorf("got %+v", rules)
	}
	if got := refused(t, "    allow: [{host: example.com, method: [GET]}]\n"); !strings.Contains(got, "did you mean methods?") {
		t.Errorf("got %s", got)
	}
}
