package supportbundle

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/secretscan"
)

// planted is a text with a canary that one step alone takes out.
type planted struct{ step, canary, text string }

func plantedTexts() []planted {
	return []planted{
		{"known", "correct horse battery", `{"note": "it was correct horse battery here"}`},
		{"known", "correct horse battery", "in an address: correct%20horse%20battery"},
		{"pem", "MC4CAQAwBQYDK2VwBCIE", "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIE\n-----END PRIVATE KEY-----\n"},
		{"prefixed", "cjagt_canarycanary", "sent cjagt_canarycanary"},
		{"prefixed", "sk-canary-canary", `{"error": "refused sk-canary-canary"}`},
		{"authority", "canary/words/of", "Bearer canary/words/of"},
		{"assigned", "canary-of-a-word", `{"session_token": "canary-of-a-word", "tokens": 5}`},
		{"assigned", "canary-of-a-word", `password=canary-of-a-word next=1`},
		{"assigned", "canary-of-a-word", `{"error": "it said {\"api_key\": \"canary-of-a-word\"}"}`},
		{"address", "canaryword", `Get "https://example.com/reset/canaryword": refused`},
		{"address", "canaryword", `postgres://clawjail:canaryword@127.0.0.1/clawjail`},
		{"query", "canaryword", `{"path": "/v1/x?a=1\u0026b=canaryword"}`},
		{"query", "canaryword", `GET /path?name=canaryword`},
		{"long", "Q7f3b19c2d4e86a50aa71x9b", `saw Q7f3b19c2d4e86a50aa71x9b there`},
		{"named", "research-two", `time=1 agent=research-two`},
		{"named", "research-two", `{"agent": "research-two"}`},
		{"hosts", "mail.example.org", `lookup mail.example.org: no such host`},
		{"hosts", "somebody@example.org", `{"by": "somebody@example.org"}`},
		{"addresses", "203.0.113.77", "dial 203.0.113.77:443"},
		{"addresses", "2001:db8::77", "dial [2001:db8::77]:443"},
		{"names", "quiet-lake", `/var/lib/clawjail/agents/quiet-lake/state`},
	}
}

func testMask() *Mask {
	return NewMask([][]byte{[]byte("correct horse battery")}, Names{"agent": {"quiet-lake", "default"}}, false)
}

func TestEveryStepOfTheMaskIsNeeded(t *testing.T) {
	tried := map[string]bool{}
	for _, p := range plantedTexts() {
		set := secretscan.New(t, map[string]string{"canary": p.canary})
		if len(set.In("source", []byte(p.text))) == 0 {
			t.Errorf("the canary of %q is not found before", p.text)
		}
		masked := testMask().Text(p.text)
		if hits := set.In("masked", []byte(masked)); len(hits) > 0 {
			t.Errorf("%s: %q still has %v", p.step, masked, hits)
		}
		if strings.HasPrefix(p.text, "{") && !json.Valid([]byte(masked)) {
			t.Errorf("%s: %q is JSON no more", p.step, masked)
		}
		without := testMask()
		without.steps = slices.DeleteFunc(without.steps, func(s step) bool { return s.name == p.step })
		if len(set.In("without the step", []byte(without.Text(p.text)))) == 0 {
			t.Errorf("without the step %s it is still gone from %q: nothing is shown", p.step, p.text)
		}
		tried[p.step] = true
	}
	for _, s := range testMask().steps {
		if !tried[s.name] {
			t.Errorf("the step %s has no text", s.name)
		}
	}
}

func TestWhatHelpsToFindAFaultStays(t *testing.T) {
	text := `{"digest": "sha256:0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0", "code": "host_denied", "tokens": 12, "at": "2026-05-01T12:30:45Z",
		"path": "/var/lib/clawjail/templates/browser/template.json", "listen": "127.0.0.1:18780", "subnet": "10.87.0.0/20", "unit": "clawjail-hostd.service", "tenant": "default"}`
	if got := testMask().Text(text); got != text {
		t.Errorf("it became %s", got)
	}
}

func TestANameIsTheSameWordEverywhereAndStaysWhenThatIsAskedFor(t *testing.T) {
	m := testMask()
	first, second := m.Text("lookup a.example.org"), m.Text("a.EXAMPLE.org b.example.org")
	if first != "lookup host-1" || second != "host-1 host-2" {
		t.Errorf("%q, %q", first, second)
	}
	plain := NewMask(nil, Names{"agent": {"quiet-lake"}}, true)
	if got := plain.Text("quiet-lake a.example.org 203.0.113.77 cjagt_canarycanary"); got != "quiet-lake a.example.org 203.0.113.77 "+hidden {
		t.Errorf("%q", got)
	}
}

func TestOfALogOnlyWhatTheDaemonsSaidIsKept(t *testing.T) {
	log := `time=2026-05-01T12:30:45.123Z level=WARN msg="close a page" session=s_1 text="dear diary" error="timed out" took=1.5s
{"time":"2026-05-01T12:30:45Z","level":"INFO","msg":"opened","session":"s_2","title":"dear diary","n":3}
hostd: time=2026-05-01T12:30:45.123Z level=INFO msg="makes a jail" page="dear diary"
dear diary, said a page
panic: dear diary
goroutine 1 [running]:
	/src/clawjail/internal/session/session.go:12 +0x1d
`
	got := keepLog(log)
	if strings.Contains(got, "diary") {
		t.Errorf("a text of somebody is kept:\n%s", got)
	}
	for _, want := range []string{"close a page", "hostd: time=", "makes a jail", "session=s_1", "timed out", "took=1.5s", `"opened"`, "s_2", "goroutine 1 [running]:", "session.go:12", "# 2 lines"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not kept:\n%s", want, got)
		}
	}
}

func TestAUnitLosesItsEnvironment(t *testing.T) {
	got := keepUnit("[Service]\nExecStart=/usr/bin/clawjail serve\nEnvironment=\"PASS=dear diary\" \\\n  B=diary\nRestart=always\n")
	if strings.Contains(got, "diary") || !strings.Contains(got, "ExecStart=/usr/bin/clawjail serve") || !strings.Contains(got, "Restart=always") {
		t.Errorf("%q", got)
	}
}
