package agentenv

import (
	"encoding/json"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/internal/testenv/property"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// plainOptions are the least that there can be.
func plainOptions() Options { return Options{Gateway: GatewayURL, AgentName: "writer", Dir: Dir} }

func github() egress.Service {
	return egress.Service{Name: "github", Upstream: egress.Upstream{BaseURL: "https://github.com/", Secret: "github-token"}, Git: "https://github.com/"}
}

func full() Options {
	return Options{
		Gateway: "http://Gateway:3000/", AgentName: "writer", Home: "/workspace/writer", Dir: Dir, CABundle: "/etc/ssl/extra.pem",
		Services: []egress.Service{
			{Name: "weather", Env: map[string]string{"WEATHER_URL": "{url}/v2", "WEATHER_NAME": "it's fine"}},
			github(),
			{Name: "forge", Git: "https://git.example:8443/acme/"},
		},
		Providers: []egress.Provider{
			{Name: "a", Wire: egress.WireOpenAI, Upstream: egress.Upstream{Secret: "openai-key"}}, {Name: "b", Wire: egress.WireOpenAI},
			{Name: "c", Wire: egress.WireAnthropic}, {Name: "d", Wire: egress.WireOllama},
		},
	}
}

func made(t *testing.T, o Options) Payload {
	t.Helper()
	p, err := For(o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestWhatAnAgentIsGiven(t *testing.T) {
	for name, o := range map[string]Options{"plain": plainOptions(), "full": full()} {
		p := made(t, o)
		testenv.Golden(t, "testdata/"+name+".sh", p.Env.Shell())
		if len(p.Files) != 1 || p.Files[0].Path != Dir+"/proxy.cjs" || p.Files[0].Mode != 0o644 || p.Files[0].Content != nodeProxy {
			t.Errorf("%s: the files are %.200v", name, p.Files)
		}
		if !slices.IsSorted(p.Env.List()) || len(p.Env.List()) != len(p.Env) {
			t.Errorf("%s: the list is %q", name, p.Env.List())
		}
	}
}

func TestPayloadIsJSON(t *testing.T) {
	p := made(t, plainOptions())
	p.Files[0].Content = "x\n"
	text, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	testenv.Golden(t, "testdata/plain.json", string(text)+"\n")
	var back Payload
	if err := json.Unmarshal(text, &back); err != nil || !cmp.Equal(p, back) {
		t.Errorf("it comes back as %+v, %v", back, err)
	}
}

func TestNothingNamesASecretOrAToken(t *testing.T) {
	p := made(t, full())
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"github-token", "openai-key", TokenFile} {
		if strings.Contains(string(text), word) {
			t.Errorf("the payload has %q", word)
		}
	}
}

// curl takes a proxy without a port to be at 1080.
func TestProxyAlwaysHasItsPort(t *testing.T) {
	for given, want := range map[string]string{
		"http://gateway":            "http://gateway:80",
		"http://GATEWAY:3000":       "http://gateway:3000",
		"http://127.0.0.1:3000/":    "http://127.0.0.1:3000",
		"http://[fd00::1]:3000":     "http://[fd00::1]:3000",
		"http://hermit_shell:3000/": "http://hermit_shell:3000",
	} {
		o := plainOptions()
		o.Gateway = given
		env := made(t, o).Env
		for _, name := range []string{"SHELL_URL", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"} {
			if env[name] != want {
				t.Errorf("%s: %s is %q, want %q", given, name, env[name], want)
			}
		}
	}
}

func TestModelsAreOnlyThereWhereAProviderIs(t *testing.T) {
	every := []string{"OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "OLLAMA_HOST"}
	for wire, want := range map[egress.Wire][]string{
		"": {}, egress.WireOpenAI: every[:2], egress.WireAnthropic: every[2:4], egress.WireOllama: every[4:],
	} {
		o := plainOptions()
		o.Providers = []egress.Provider{{Name: "a", Wire: wire}}
		env := made(t, o).Env
		for _, name := range every {
			if _, there := env[name]; there != slices.Contains(want, name) {
				t.Errorf("with a provider of %q, %s is there: %v", wire, name, there)
			}
		}
	}
}

func TestWhatIsWrongIsSaidAtOnce(t *testing.T) {
	o := Options{
		Gateway: "https://gateway:3000", AgentName: "a\nb", Home: "relative", Dir: "/run/with space", CABundle: "/a/../b",
		Services: []egress.Service{
			{Name: "../x"}, {Name: "twice"}, {Name: "twice"}, {Name: "g1", Git: "https://git.example"}, {Name: "g2", Git: "git@github.com:"},
			{Name: "g3", Git: "https://git.example/"}, {Name: "g4", Git: "https://git.example/"},
			{Name: "e", Env: map[string]string{"a-b": "", "LD_PRELOAD": "/x.so", "X": "a\x00b", "Y": "\x1b[31m"}},
		},
	}
	_, err := For(o)
	if err == nil {
		t.Fatal("it is accepted")
	}
	if problem.CodeOf(err) != problem.BadRequest {
		t.Errorf("the code is %s", problem.CodeOf(err))
	}
	testenv.Golden(t, "testdata/wrong.txt", strings.ReplaceAll(err.Error(), "; ", ";\n")+"\n")
}

func TestWhatIsRefused(t *testing.T) {
	with := func(change func(*Options)) Options { o := plainOptions(); change(&o); return o }
	service := func(s egress.Service) Options { return with(func(o *Options) { o.Services = []egress.Service{s} }) }
	env := func(name, text string) Options {
		return service(egress.Service{Name: "s", Env: map[string]string{name: text}})
	}
	git := func(prefix string) Options { return service(egress.Service{Name: "s", Git: prefix}) }
	many := func(n int) map[string]string {
		out := map[string]string{}
		for range n {
			out["V"+strings.Repeat("_", len(out))] = "x"
		}
		return out
	}
	for name, c := range map[string]struct {
		o  Options
		ok bool
	}{
		"plain":                     {plainOptions(), true},
		"no gateway":                {with(func(o *Options) { o.Gateway = "" }), false},
		"gateway with a user":       {with(func(o *Options) { o.Gateway = "http://u:p@gateway:3000" }), false},
		"gateway with a path":       {with(func(o *Options) { o.Gateway = "http://gateway:3000/x" }), false},
		"gateway with a query":      {with(func(o *Options) { o.Gateway = "http://gateway:3000?x" }), false},
		"gateway without a host":    {with(func(o *Options) { o.Gateway = "http://:3000" }), false},
		"no agent":                  {with(func(o *Options) { o.AgentName = "" }), false},
		"no folder":                 {with(func(o *Options) { o.Dir = "" }), false},
		"folder with a query":       {with(func(o *Options) { o.Dir = "/run/a?b" }), false},
		"folder with an escape":     {with(func(o *Options) { o.Dir = "/run/a%2fb" }), false},
		"relative folder":           {with(func(o *Options) { o.Dir = "run" }), false},
		"too many services":         {with(func(o *Options) { o.Services = make([]egress.Service, maxServices+1) }), false},
		"service that is dots":      {service(egress.Service{Name: ".."}), false},
		"variable":                  {env("WEATHER_URL", "{url}"), true},
		"as many as there may be":   {service(egress.Service{Name: "s", Env: many(maxEnv)}), true},
		"too many variables":        {service(egress.Service{Name: "s", Env: many(maxEnv + 1)}), false},
		"long value":                {env("X", strings.Repeat("x", maxText)), true},
		"too long a value":          {env("X", strings.Repeat("x", maxText+1)), false},
		"too long once filled in":   {env("X", strings.Repeat("{url}", maxText/10)), false},
		"line in a value":           {env("X", "a\nb"), false},
		"no name of a variable":     {env("1X", ""), false},
		"name with a line":          {env("X\nY", ""), false},
		"PATH":                      {env("PATH", "/x"), false},
		"proxy":                     {env("https_proxy", "http://elsewhere:1"), false},
		"git":                       {env("GIT_SSH_COMMAND", "x"), false},
		"node":                      {env("NODE_OPTIONS", "x"), false},
		"certificates":              {env("SSL_CERT_FILE", "/x"), false},
		"wire contract":             {env("SHELL_URL", "http://elsewhere"), false},
		"git prefix":                {git("https://github.com/acme/"), true},
		"git prefix without slash":  {git("https://github.com"), false},
		"git prefix with a user":    {git("https://u@github.com/"), false},
		"git prefix with a query":   {git("https://github.com/?/"), false},
		"git prefix that climbs":    {git("https://github.com/../"), false},
		"git prefix with a newline": {git("https://github.com/\n/"), false},
		"git prefix of a file":      {git("file:///"), false},
	} {
		if err := c.o.Validate(); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTwoThatSetOneVariableDifferentlyAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		services  []egress.Service
		providers []egress.Provider
		ok        bool
	}{
		"a service alone sets a model's variable": {services: []egress.Service{{Name: "a", Env: map[string]string{"OPENAI_BASE_URL": "{url}/v1"}}}, ok: true},
		"a service and a provider": {
			services:  []egress.Service{{Name: "a", Env: map[string]string{"OPENAI_BASE_URL": "{url}/v1"}}},
			providers: []egress.Provider{{Name: "o", Wire: egress.WireOpenAI}},
		},
		"two services": {services: []egress.Service{{Name: "a", Env: map[string]string{"X": "{url}"}}, {Name: "b", Env: map[string]string{"X": "{url}"}}}},
		"two that agree": {
			services: []egress.Service{{Name: "a", Env: map[string]string{"X": "1"}}, {Name: "b", Env: map[string]string{"X": "1"}}}, ok: true,
		},
	} {
		o := plainOptions()
		o.Services, o.Providers = c.services, c.providers
		if err := o.Validate(); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnAgentHasWhatIsNarrowest(t *testing.T) {
	service := func(tenant, agent, note, name string) egress.Service {
		return egress.Service{Meta: egress.Meta{Tenant: tenant, Agent: agent, Note: note}, Name: name}
	}
	services, providers := Select([]egress.Service{
		service("", "", "all", "x"), service("t", "a", "own", "x"), service("t", "", "tenant", "x"), service("t", "b", "another agent's", "x"),
		service("u", "", "another tenant's", "x"), service("t", "b", "another agent's", "z"), service("", "", "all", "y"), service("u", "", "another tenant's", "y"),
	}, []egress.Provider{{Meta: egress.Meta{Tenant: "u"}, Name: "p"}, {Name: "q"}}, "t", "a")
	var got []string
	for _, s := range services {
		got = append(got, s.Name+" "+s.Note)
	}
	if diff := cmp.Diff([]string{"x own", "y all"}, got); diff != "" {
		t.Error(diff)
	}
	if len(providers) != 1 || providers[0].Name != "q" {
		t.Errorf("the providers are %v", providers)
	}
}

// A shell that reads the exports gets the values of the environment.
func TestShellTakesValuesAsTheyAre(t *testing.T) {
	sh := testenv.Tool(t, "sh")
	property.Check(t, func(r *rapid.T) {
		env := Env(rapid.MapOfN(rapid.StringMatching(`V_[A-Za-z0-9_]{1,8}`),
			rapid.StringOf(rapid.Rune()).Filter(func(s string) bool { return utf8.ValidString(s) && printable(s) }), 1, 4).Draw(r, "env"))
		script := env.Shell()
		for _, name := range env.Names() {
			script += `printf '%s\0' "$` + name + "\"\n"
		}
		cmd := exec.CommandContext(t.Context(), sh)
		cmd.Stdin, cmd.Env = strings.NewReader(script), []string{"LC_ALL=C.UTF-8"}
		out, err := cmd.Output()
		if err != nil {
			r.Fatal(err)
		}
		var want strings.Builder
		for _, name := range slices.Sorted(maps.Keys(env)) {
			want.WriteString(env[name] + "\x00")
		}
		if string(out) != want.String() {
			r.Fatalf("the shell has %q, the environment %q", out, want.String())
		}
	})
}

// Whatever is in the options, what comes out is a list of variables that a shell, git and Node read as such.
func FuzzFor(f *testing.F) {
	f.Add("http://gateway:3000", "writer", "/run/x", "github", "https://github.com/", "X", "{url}")
	f.Add("http://[::1]:3000", "a'b", "/run/x", "a.b", "http://h:1/a/", "_", "'; echo")
	f.Add("http://a%00:3000", "\x1b", "/", "..", "https:///", "X=", "\n")
	f.Add("http://gateway:3000#", "a", "/run//x", "-", "https://[::1]/", "HTTP_PROXY", "")
	f.Fuzz(func(t *testing.T, gateway, agent, dir, service, prefix, name, text string) {
		o := Options{Gateway: gateway, AgentName: agent, Dir: dir, Services: []egress.Service{{Name: service, Git: prefix, Env: map[string]string{name: text}}}}
		p, err := For(o)
		if err != nil {
			return
		}
		for name, value := range p.Env {
			if !envName(name) || !printable(value) || !utf8.ValidString(value) {
				t.Errorf("%q=%q", name, value)
			}
		}
		if strings.ContainsAny(p.Env["NODE_OPTIONS"], " \"'\\%?#") || strings.ContainsAny(p.Env["HTTP_PROXY"], " @?#") {
			t.Errorf("%q %q", p.Env["NODE_OPTIONS"], p.Env["HTTP_PROXY"])
		}
	})
}

func TestAnAgentOutsideShowsItsTokenAndHasNoProxies(t *testing.T) {
	token := "cjagt_" + strings.Repeat("a", 43)
	o := Options{Gateway: "https://clawjail.example.com", AgentName: "writer", Dir: Dir, Token: token,
		Services:  []egress.Service{{Name: "git", Git: "https://git.example/"}},
		Providers: []egress.Provider{{Name: "p", Wire: egress.WireOpenAI}, {Name: "q", Wire: egress.WireAnthropic}}}
	p, err := For(o)
	if err != nil {
		t.Fatal(err)
	}
	for name := range p.Env {
		if strings.Contains(strings.ToLower(name), "proxy") || strings.HasPrefix(name, "NODE_") {
			t.Errorf("%s is set", name)
		}
	}
	if len(p.Files) != 0 {
		t.Errorf("%d files", len(p.Files))
	}
	for name, want := range map[string]string{
		"OPENAI_API_KEY": token, "ANTHROPIC_API_KEY": token, "OPENAI_BASE_URL": "https://clawjail.example.com:443/v1",
		"GIT_CONFIG_VALUE_4": "Authorization: Bearer " + token, "GIT_CONFIG_KEY_4": "http.https://clawjail.example.com:443/.extraHeader",
	} {
		if p.Env[name] != want {
			t.Errorf("%s=%q, want %q", name, p.Env[name], want)
		}
	}
	for _, wrong := range []string{"cjop_x", "cjagt_a b", "cjagt_'", "secret"} {
		o.Token = wrong
		if _, err := For(o); err == nil || strings.Contains(err.Error(), wrong) {
			t.Errorf("%q: %v", wrong, err)
		}
	}
	o.Token = ""
	if _, err := For(o); err == nil {
		t.Error("a jail's gateway over https")
	}
}
