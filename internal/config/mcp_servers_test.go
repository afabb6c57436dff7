package config

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/testenv/property"
)

func TestToolsThatAreOffered(t *testing.T) {
	for _, c := range []struct {
		patterns []string
		tool     string
		want     bool
	}{
		{nil, "anything", true},
		{[]string{}, "anything", false},
		{[]string{"read"}, "read", true},
		{[]string{"read"}, "read_file", false},
		{[]string{"read_*"}, "read_file", true},
		{[]string{"read_*"}, "a_read_file", false},
		{[]string{"*_file"}, "read_file", true},
		{[]string{"*_file"}, "read_files", false},
		{[]string{"r*d*e"}, "read_file", true},
		{[]string{"r*d*d"}, "read_file", false},
		{[]string{"ab*ba"}, "aba", false},
		{[]string{"x", "*"}, "anything", true},
		{[]string{"**"}, "", true},
	} {
		if got := (MCPServer{Tools: c.patterns}).Offers(c.tool); got != c.want {
			t.Errorf("%q offers %q: %t", c.patterns, c.tool, got)
		}
	}
}

// A server with a list of tools offers nothing else, unless it is said.
func TestWhetherResourcesAndPromptsAreOffered(t *testing.T) {
	yes, no := true, false
	for _, c := range []struct {
		tools []string
		said  *bool
		want  bool
	}{{nil, nil, true}, {[]string{}, nil, false}, {[]string{"*"}, nil, false}, {nil, &no, false}, {[]string{"a"}, &yes, true}} {
		if got := (MCPServer{Tools: c.tools, Resources: c.said, Prompts: &yes}).OffersResources(); got != c.want {
			t.Errorf("resources with %q, %v: %t", c.tools, c.said, got)
		}
		if got := (MCPServer{Tools: c.tools, Prompts: c.said, Resources: &yes}).OffersPrompts(); got != c.want {
			t.Errorf("prompts with %q, %v: %t", c.tools, c.said, got)
		}
	}
}

// A text matches each pattern that is made from it by putting stars in the place of parts.
func TestPatternsMatchWhatTheyWereMadeFrom(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		parts := rapid.SliceOfN(rapid.StringMatching(`[ab]{0,3}`), 1, 6).Draw(t, "parts")
		pattern, text := "", ""
		for n, part := range parts {
			text += part
			if n%2 == 1 {
				part = "*"
			}
			pattern += part
		}
		if !matchStar(pattern, text) {
			t.Fatalf("%q does not match %q", pattern, text)
		}
		if !strings.Contains(pattern, "*") && matchStar(pattern, text+"a") {
			t.Fatalf("%q matches %q", pattern, text+"a")
		}
	})
}

// A shell hands secrets over, and would say the value of one that it takes for its own variable.
func TestASecretIsNoVariableOfAShell(t *testing.T) {
	for _, c := range []struct {
		name string
		env  bool
		want bool
	}{{"OPTIND", true, false}, {"RANDOM", true, false}, {"OPTIND", false, true}, {"d", true, true}, {"PATH", true, true}, {"IFS", true, true}} {
		m := MCPServer{Name: "one", Command: []string{"/x"}, Secrets: []ServerSecret{{Name: c.name, Secret: "s", Env: c.env}}}.WithDefaults(Default().Agents.Limits)
		if err := m.Validate(); (err == nil) != c.want {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestAServerNamesAnyAgentAndTenant(t *testing.T) {
	for name, want := range map[string]bool{"bot": true, "-x": true, "A": false, "a/b": false, strings.Repeat("a", 41): false} {
		m := MCPServer{Name: "one", Command: []string{"/x"}, Idle: defaultServerIdle, Answer: defaultAnswer, Agent: name, Tenants: []string{name}}
		if err := m.Validate(); (err == nil) != want {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestTenantsThatAreServed(t *testing.T) {
	plain := MCPServer{}.WithDefaults(AgentLimits{})
	if !plain.Serves("default") || plain.Serves("acme") || plain.Serves("*") {
		t.Errorf("without tenants: %v", plain.Tenants)
	}
	if (MCPServer{}).Serves("default") {
		t.Error("what has no defaults yet serves somebody")
	}
	if all := (MCPServer{Tenants: []string{"*"}}); !all.Serves("acme") {
		t.Error("* is not all")
	}
}

func TestAllowedHosts(t *testing.T) {
	for target, want := range map[string]string{"example.com": "example.com", "EXAMPLE.com.": "example.com", "*.example.com:8443": "*.example.com", "*": "*",
		"192.0.2.1": "192.0.2.1", "192.0.2.1:80": "192.0.2.1"} {
		pattern, ports, err := AllowedHost(target)
		if err != nil || pattern.String() != want || len(ports) == 0 {
			t.Errorf("%s is %s, %v, %v", target, pattern, ports, err)
		}
	}
	for _, bad := range []string{"", "a:0", "a:65536", "a:+1", "a:01", "a:", ":80", "https://a/", "a b", "*.*.a", "a.*"} {
		if pattern, _, err := AllowedHost(bad); err == nil {
			t.Errorf("%q is %s", bad, pattern)
		}
	}
}

// FuzzAllowedHost: what is accepted makes a policy, which allows nothing but that port, or the two usual ones.
func FuzzAllowedHost(f *testing.F) {
	for _, seed := range []string{"example.com", "*.example.com:8443", "*", "[::1]:80", "a:1:2", "xn--a"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, target string) {
		host, ports, err := AllowedHost(target)
		if err != nil {
			return
		}
		compiled, err := policy.Compile(policy.Only(policy.Rule{Name: "x", Action: policy.Allow, Host: host, Ports: ports}))
		if err != nil {
			t.Fatalf("%q: %v", target, err)
		}
		other, err := hostport.ParseHost("other.invalid")
		if err != nil {
			t.Fatal(err)
		}
		if compiled.Decide(policy.Request{Scheme: policy.HTTPS, Host: other, Port: 443, Method: policy.Connect}).Allowed && host != policy.AnyHost() && !host.Matches(other) {
			t.Errorf("%q allows another host", target)
		}
	})
}

// A server that is kept in the database comes back as it was, the difference between all tools and none included.
func TestServersAreKeptAsTheyAre(t *testing.T) {
	for _, s := range []MCPServer{{Name: "a", Command: []string{"/x"}}, {Name: "b", Command: []string{"/x"}, Tools: []string{}},
		{Name: "c", Command: []string{"/x"}, Env: map[string]string{"A": "b"}, Secrets: []ServerSecret{{Name: "K", Secret: "s", Env: true}}, Limits: AgentLimits{CPU: 1, Tmp: MiB},
			Network: ServerNetworkGateway, Allow: []string{"a"}, Idle: 11e9, Shared: true, Resources: new(bool), Prompts: new(bool), Mounts: []ServerMount{{Source: "/a", Target: "/mnt/a", ReadOnly: true}}}} {
		if err := s.Validate(); err != nil {
			t.Error(err)
		}
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var back MCPServer
		if err := json.Unmarshal(text, &back); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(s, back); diff != "" {
			t.Error(diff)
		}
	}
}
