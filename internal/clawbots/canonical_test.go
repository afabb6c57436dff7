package clawbots

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/config/yamldoc"
)

func decoded(t testing.TB, data []byte) Agent {
	t.Helper()
	var a Agent
	if err := json.Unmarshal(data, &a); err != nil {
		t.Fatal(err)
	}
	return a
}

func TestWhatIsADefaultMakesNoDifference(t *testing.T) {
	for _, pair := range [][2]string{
		{"", "    restart: always\n"},
		{"    workspace: /w\n", "    workspace: /w/./\n    workspace_mode: rw\n"},
		{"    allow: [\"get http://a.example/\"]\n", "    allow: [{url: \"http://a.example/\", methods: [GET]}]\n"},
		{"    command: /bin/sh -c 'x y'\n", "    command: [/bin/sh, -c, x y]\n"},
		{"", "    env: {}\n    allow: []\n    mcp: []\n    limits: {}\n"},
		{"    limits: {memory: 1GiB}\n", "    limits: {memory: 1024MiB}\n"},
	} {
		a, b := one(t, pair[0]), one(t, pair[1])
		if string(Canonical(a)) != string(Canonical(b)) {
			t.Errorf("%q and %q:\n%s\n%s", pair[0], pair[1], Canonical(a), Canonical(b))
		}
		if d := Differences(a, b); len(d) > 0 {
			t.Errorf("%q and %q differ: %v", pair[0], pair[1], d)
		}
	}
}

func TestCanonicalKeepsNothingSaidApartFromNothingAllowed(t *testing.T) {
	for _, text := range []string{"", "    services: []\n    tools: []\n"} {
		a := one(t, text)
		again := decoded(t, Canonical(a))
		if (a.Services == nil) != (again.Services == nil) || (a.Tools == nil) != (again.Tools == nil) {
			t.Errorf("%q became %s", text, Canonical(a))
		}
	}
	if d := Differences(one(t, ""), one(t, "    services: []\n    tools: []\n")); !slices.Equal(d, []string{"services: default → none", "tools: default → none"}) {
		t.Errorf("the difference is %q", d)
	}
}

// Every single change is seen and said in words, of every field.
func TestDifferences(t *testing.T) {
	said := ""
	for _, test := range []struct {
		old, new string
		want     string
	}{
		{"", "    template: mine\n", "template: default → mine"},
		{"", "    image: x:1\n", "image: default → x:1"},
		{"", "    command: /bin/sh -c 'a b'\n", `command: default → /bin/sh -c "a b"`},
		{"", "    tmp: exec\n", "tmp: default → exec"},
		{"", "    limits: {memory: 1GiB}\n", "limits.memory: default → 1GiB"},
		{"    limits: {memory: 512MiB}\n", "    limits: {memory: 1GiB}\n", "limits.memory: 512MiB → 1GiB"},
		{"", "    limits: {cpu: 0.5}\n", "limits.cpu: default → 0.5"},
		{"", "    limits: {tasks: 9}\n", "limits.tasks: default → 9"},
		{"", "    limits: {tmp: 1MiB}\n", "limits.tmp: default → 1MiB"},
		{"", "    limits: {state: 1MiB}\n", "limits.state: default → 1MiB"},
		{"", "    limits: {files: 100}\n", "limits.files: default → 100"},
		{"", "    ttl: 8h\n", "ttl: none → 8h0m0s"},
		{"", "    services: [a, b]\n", "services: default → a, b"},
		{"", "    workspace: /w\n", "workspace: none → /w|workspace_mode: none → rw|sharing: isolated → dedicated"},
		{"    workspace: /w\n", "    workspace: /v\n", "workspace: /w → /v"},
		{"    workspace: /w\n", "    workspace: /w\n    workspace_mode: ro\n", "workspace_mode: rw → ro"},
		{"    workspace: /w\n", "    workspace: /w\n    unix_sockets: true\n", "unix_sockets: false → true"},
		{"    env: {A: hidden-old, B: x}\n", "    env: {A: hidden-new, C: y}\n", "env.A: changed|env.B: removed|env.C: added"},
		{"    env: {A: x, TZ: null}\n", "    env: {A: x, LANG: null}\n", "env without: TZ → LANG"},
		{"", "    restart: never\n", "restart: default → never"},
		{"", "    webhook: true\n", "webhook: false → true"},
		{"", "    browser: open\n", "browser: default → open"},
		{"    browser: open\n", "    browser: rules\n", "browser: open → rules"},
		{"", "    allow: [a.example, \"deny: GET http://b.example\"]\n", "allow: none → a.example, deny: GET http://b.example"},
		{"", "    tools: [{url: \"https://a.example/**\", methods: [GET], services: [s]}]\n", "tools: default → GET https://a.example/** (s)"},
		{"", "    accounts: [example.com, {domain: example.org, ask: first, hours: 08-18, egress_domains: [B.example.net, a.example.net]}]\n",
			"accounts: none → example.com, example.org (08-18, ask first, with a.example.net b.example.net)"},
		{"    accounts: [example.com]\n", "    accounts: [{domain: example.com, access: cdp}]\n", "accounts: example.com → example.com (cdp)"},
		{"", "    rate: {proxy: 1}\n", "rate.proxy: default → 1"},
		{"", "    rate: {execute: 1}\n", "rate.execute: default → 1"},
		{"", "    rate: {services: 1}\n", "rate.services: default → 1"},
		{"", "    rate: {llm: 1}\n", "rate.llm: default → 1"},
		{"", "    mcp: [a]\n", "mcp: none → a"},
		{"", "    llm: {tokens_per_day: 5}\n", "llm.tokens_per_day: default → 5"},
		{"", "    llm: {cost_per_day: 0.25}\n", "llm.cost_per_day: default → 0.25"},
	} {
		old, new := one(t, test.old), one(t, test.new)
		if got := strings.Join(Differences(old, new), "|"); got != test.want {
			t.Errorf("%q: got %q, want %q", test.new, got, test.want)
		}
		if string(Canonical(old)) == string(Canonical(new)) {
			t.Errorf("%q: the canonical forms are the same", test.new)
		}
		said += "|" + test.want
	}
	yamldoc.Walk(reflect.ValueOf(Agent{}), func(path string, _ reflect.Value, _ reflect.StructTag) {
		if path != "name" && !strings.Contains(said, "|"+path+":") && !strings.Contains(said, "|"+path+".") {
			t.Errorf("add a change of %s", path)
		}
	})
}
