package policy

import (
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/policy/hostport"
)

func TestPathPatterns(t *testing.T) {
	for in, want := range map[string]string{
		"/": "/", "/a": "/a", "/a/": "/a", "/a/b": "/a/b", "/*": "/*", "/**": "/**", "/**/": "/**", "/a/*/b/**": "/a/*/b/**", "/.well-known/x": "/.well-known/x",
		"/%61": "/a", "/a%20b": "/a%20b", "/a b%28": "", "/é": "/%C3%A9", "/%c3%a9": "/%C3%A9", "/%2A": "/%2A", "/%2a%2A": "/%2A%2A", "/...": "/...",
		"/a;b=c": "/a;b=c", "/c%2b%2B": "/c%2B%2B", "/100%25": "/100%25", "/@scope/name": "/@scope/name", "/" + strings.Repeat("a/", 64): "/" + strings.TrimSuffix(strings.Repeat("a/", 64), "/"),
		"": "", "a": "", "*": "", "a/b": "", "//": "", "/a//b": "", "//a": "", "/a//": "", "/./a": "", "/a/..": "", "/%2e%2e/a": "", "/..;/a": "", "/a%2fb": "", "/a%5Cb": "", `/a\b`: "",
		"/**/a": "", "/a*": "", "/*a": "", "/a/***": "", "/%": "", "/%2": "", "/%zz": "", "/%252f": "", "/%25%32f": "", "/%00": "", "/a\nb": "", "/%7f": "", "/%ff": "", "/%c0%af": "",
		"/a?b": "", "/a#b": "", "/a.*": "", "/a(b|c)": "", "/[a-z]": "", "/a$": "", "/^a": "", "/a{2}": "", "/.+": "", "https://a.example/x": "",
		"/" + strings.Repeat("a/", 65): "", "/" + strings.Repeat("a", 2048): "",
	} {
		p, err := ParsePath(in)
		if (err == nil) != (want != "") || p.String() != want {
			t.Errorf("ParsePath(%.80q) = %.80q, %v; want %.80q", in, p, err, want)
		}
		if err != nil && len(err.Error()) > 300 {
			t.Errorf("the error about %.20q has %d bytes", in, len(err.Error()))
		}
	}
}

func TestPathsMatchBySegments(t *testing.T) {
	for _, c := range []struct {
		pattern, path string
		want          bool
	}{
		{"/", "/", true}, {"/", "/a", false},
		{"/a", "/a", true}, {"/a", "/a/", true}, {"/a/", "/a", true}, {"/a", "/ab", false}, {"/a", "/a/b", false}, {"/a", "/", false},
		{"/a", "/%61", true}, {"/%61", "/a", true}, {"/a%20b", "/a%20b", true}, {"/é", "/%c3%a9", true}, {"/%C3%A9", "/é", true},
		{"/*", "/a", true}, {"/*", "/a/", true}, {"/*", "/", false}, {"/*", "/a/b", false}, {"/*", "/*", true}, {"/%2A", "/*", true}, {"/%2A", "/%2a", true}, {"/%2A", "/a", false},
		{"/a/*", "/a/b", true}, {"/a/*", "/a", false}, {"/a/*", "/a/", false}, {"/a/*/c", "/a/b/c", true}, {"/a/*/c", "/a/c", false}, {"/a/*/c", "/a/b/b/c", false},
		{"/**", "/", true}, {"/**", "/a/b/c", true}, {"/a/**", "/a", true}, {"/a/**", "/a/", true}, {"/a/**", "/a/b/c/d", true}, {"/a/**", "/ab", false}, {"/a/**", "/", false},
		{"/a/*/**", "/a", false}, {"/a/*/**", "/a/b", true}, {"/a/*/**", "/a/b/c", true}, {"/%2A%2A", "/a", false}, {"/%2A%2A", "/**", true},
		{"/repos/clawjail", "/repos/clawjail", true}, {"/100%25", "/100%25", true}, {"/a;b", "/a;b", true},
	} {
		r := allow("r", "a.example", 80)
		r.Path = MustParsePath(c.pattern)
		req := ask(HTTP, "a.example", 80, "GET")
		req.Path = c.path
		d := Only(r).Decide(req)
		if d.Allowed != c.want || !d.Allowed && d.Code != PathDenied {
			t.Errorf("%q allows %q: %+v, want %v", c.pattern, c.path, d, c.want)
		}
		r.Action = Deny
		if d := (Policy{Default: Allow, Rules: []Rule{r}}).Decide(req); d.Allowed == c.want || !d.Allowed && d.Code != PathDenied {
			t.Errorf("%q denies %q: %+v, want %v", c.pattern, c.path, d, c.want)
		}
	}
}

func ambiguousPaths() []string {
	return []string{
		"", "a", "*", "http://a.example/", `\a`, "//", "///", "//a", "/a//b", "/a//", "/.", "/..", "/./a", "/a/../b", "/a/.", "/a/..", "/a/../", "/%2e", "/%2E%2e/a", "/.%2e/a", "/%2e./a",
		"/..;/a", "/.;x=1/a", "/;", "/;a/b", "/a/;b=c/d", "/%3Ba/b", "/..%3b/a", "/a/..;x", "/%2f", "/a%2Fb", "/a%5cb", "/a%5C", `/a\b`, `/\a`, "/%", "/a%", "/%2", "/%zz", "/%u002f", "/%252f", "/%255c", "/%252e%252e", "/%25%32f", "/%25%32%66",
		"/%2561", "/%00", "/a%00b", "/a\x00", "/%0d%0a", "/\n", "/%7f", "/\x7f", "/%1f", "/%C2%85", "/%c0%af", "/%c0%ae%c0%ae/a", "/%e0%80%af", "/%ff", "/%E9", "/\xe9", "/a?b", "/a#b", "/a b",
		// Other forms of /, \, ., %, ; in Unicode, as they are and escaped.
		"/..\uff0fa", "/a/..%ef%bc%8fb", "/a\uff3cb", "/a%ef%b9%a8b", "/\uff0e\uff0e/a", "/%ef%bc%8e.", "/\u2024.", "/\u2025/a", "/\ufe52\ufe52", "/\uff052e", "/\ufe6a2f",
		"/..\uff1ba", "/\uff1ba/b", "/..\ufe54a", "/..\u037ea", "/a\u2100b", "/a\u2105b", "/a\u2044b", "/a\u2215b", "/a%e2%88%95b", "/a\u29f8b", "/a\u29f5b", "/a\uff1fb", "/a\uff03b",
	}
}

func TestPathsThatCanBeReadInTwoWays(t *testing.T) {
	for _, path := range ambiguousPaths() {
		if !Ambiguous(path) {
			t.Errorf("%q is not ambiguous", path)
		}
	}
	for _, path := range []string{
		"/", "/a", "/a/", "/a.b", "/.a", "/..a", "/a..", "/...", "/a%20b", "/%61", "/%C3%A9", "/é", "/100%25", "/50%25x", "/a;b", "/a;.", "/a;..", "/*", "/a:b@c", "/%3F", "/%23",
		"/50\uff05x", "/a\u2026", "/\u00bd", "/\uff21", "/日本語", "/a\uff0eb", "/a|b", "/[x]", "/%5B", "/~a", "/a+b", "/" + strings.Repeat("a", 1<<16), strings.Repeat("/a", 1<<16),
	} {
		if Ambiguous(path) {
			t.Errorf("%.40q is ambiguous", path)
		}
	}
}

func TestAmbiguousPathsMeetRulesThatDenyOnly(t *testing.T) {
	everything := allow("all-paths", "a.example", 80)
	everything.Path = MustParsePath("/**")
	secret := deny("no-secret", "a.example")
	secret.Path = MustParsePath("/secret")
	for _, path := range ambiguousPaths() {
		req := ask(HTTP, "a.example", 80, "GET")
		req.Path = path
		d := Only(everything).Decide(req)
		if d.Allowed || d.Code != PathDenied || d.Hint == "" {
			t.Errorf("allow rule, %q: %+v", path, d)
		}
		if path != "" && !strings.Contains(d.Reason, "two ways") {
			t.Errorf("the reason does not say that %q is ambiguous: %s", path, d.Reason)
		}
		if d := (Policy{Default: Allow, Rules: []Rule{secret}}).Decide(req); d.Allowed || d.Code != PathDenied || d.Rule != "no-secret" {
			t.Errorf("deny rule, %q: %+v", path, d)
		}
		if d := Only(allow("host", "a.example", 80)).Decide(req); !d.Allowed {
			t.Errorf("a rule without a path looks at paths, %q: %+v", path, d)
		}
	}
}

// Servers disagree about the case of letters, too.
func TestCaseMakesNoDifferenceToARuleThatDenies(t *testing.T) {
	for _, c := range []struct {
		pattern, path string
		denied        bool
	}{
		{"/secret", "/SECRET", true}, {"/Secret/**", "/seCret/A", true}, {"/secret", "/%53ecret", true}, {"/secret", "/SECRET;a", true}, {"/secret/*/b", "/Secret/x/B", true},
		{"/été", "/%C3%89T%C3%89", true}, {"/secret", "/%C5%BFecret", true}, {"/a%2Ab", "/A*B", true},
		{"/secret", "/SECRETS", false}, {"/secret", "/public", false}, {"/%2A", "/A", false},
	} {
		r := deny("r", "a.example")
		r.Path = MustParsePath(c.pattern)
		p := Policy{Default: Allow, Rules: []Rule{r}}
		compiled, err := Compile(p)
		if err != nil {
			t.Fatal(err)
		}
		req := ask(HTTP, "a.example", 80, "GET")
		req.Path = c.path
		if d := p.Decide(req); d.Allowed == c.denied {
			t.Errorf("%q denies %q: %+v", c.pattern, c.path, d)
		}
		if d := compiled.Decide(req); d.Allowed == c.denied {
			t.Errorf("%q denies %q, compiled: %+v", c.pattern, c.path, d)
		}
		// A rule that allows is about the path as it is written.
		r.Action = Allow
		if d := Only(r).Decide(req); d.Allowed {
			t.Errorf("%q allows %q", c.pattern, c.path)
		}
	}
}

// Servers disagree about what follows a semicolon.
func TestParametersOfAPathAreReadInEveryWay(t *testing.T) {
	secret := deny("no-secret", "a.example")
	secret.Path = MustParsePath("/pub/secret/**")
	one := deny("no-one", "a.example")
	one.Path = MustParsePath("/one")
	denying := Policy{Default: Allow, Rules: []Rule{secret, one}}
	compiled, err := Compile(denying)
	if err != nil {
		t.Fatal(err)
	}
	for path, allowed := range map[string]bool{
		"/pub/secret;a=b/x": false, "/pub/secret;/x": false, "/pub;v=1/secret/x": false, "/pub/secret%3Ba/x": false, "/pub/secret/x;y": false, "/pub/secret;a": false,
		"/one;a/two": false, "/one;x": false, "/pub/secrets;a=b/x": true, "/pub/other;secret/x": true, "/two;one": true, "/pub;a/other": true,
	} {
		req := ask(HTTP, "a.example", 80, "GET")
		req.Path = path
		if d := denying.Decide(req); d.Allowed != allowed || !allowed && d.Code != PathDenied {
			t.Errorf("%s: %+v", path, d)
		}
		if d := compiled.Decide(req); d.Allowed != allowed {
			t.Errorf("%s, compiled: %+v", path, d)
		}
	}
	// A rule that allows is about the path as it is written.
	public := allow("public", "a.example", 80)
	public.Path = MustParsePath("/pub/**")
	for path, allowed := range map[string]bool{"/pub/a;b/c": true, "/pub;a/b": false, "/pub/a": true} {
		req := ask(HTTP, "a.example", 80, "GET")
		req.Path = path
		if d := Only(public).Decide(req); d.Allowed != allowed {
			t.Errorf("%s: %+v", path, d)
		}
	}
}

func TestNobodySeesPathsInATunnel(t *testing.T) {
	some, none := allow("some", "a.example", 443), deny("none", "a.example")
	some.Path, none.Path = MustParsePath("/**"), MustParsePath("/secret")
	// A path that a tunnel's request claims to have proves nothing.
	for _, path := range []string{"", "/", "/a"} {
		req := ask(HTTPS, "a.example", 443, Connect)
		req.Path = path
		if d := Only(some).Decide(req); d.Allowed || d.Code != PathDenied || !strings.Contains(d.Reason, "tunnel") {
			t.Errorf("allow rule, %q: %+v", path, d)
		}
		if d := (Policy{Default: Allow, Rules: []Rule{none}}).Decide(req); d.Allowed || d.Rule != "none" || !strings.Contains(d.Reason, "tunnel") {
			t.Errorf("deny rule, %q: %+v", path, d)
		}
	}
}

// A pattern that is accepted prints a form that is read back as the same, and matches what a regular expression made of it
// matches, on the pattern's own text and on any other path.
func FuzzParsePath(f *testing.F) {
	for _, s := range append(ambiguousPaths(), "/", "/a/*/b/**", "/%2A/é", "/a%20b/", "/**", "/*", "/a;b/c.d") {
		f.Add(s, "/a/x/b")
		f.Add("/a/*/**", s)
	}
	f.Fuzz(func(t *testing.T, pattern, path string) {
		_, ok := oraclePath(path)
		if Ambiguous(path) == ok {
			t.Fatalf("Ambiguous(%q) = %v", path, !ok)
		}
		canonical, _ := readPath(path, false)
		if ok {
			if again, why := readPath(canonical, false); why != "" || again != canonical {
				t.Fatalf("%q → %q → %q, %s", path, canonical, again, why)
			}
		}
		p, err := ParsePath(pattern)
		if err != nil {
			if p != (Path{}) {
				t.Fatalf("%q: a path and an error", pattern)
			}
			return
		}
		if again, err := ParsePath(p.String()); err != nil || again != p {
			t.Fatalf("%q → %q → %q, %v", pattern, p, again, err)
		}
		if p.IsZero() || strings.Contains(p.String(), "//") || strings.ContainsAny(p.String(), "\\?# \x00") {
			t.Fatalf("%q accepted as %q", pattern, p)
		}
		tree := newPathNode()
		tree.add(p, 7)
		for _, s := range []string{path, pattern, p.String()} {
			decoded, ok := oraclePath(s)
			if !ok {
				continue
			}
			canonical, _ := readPath(s, false)
			want := oracleMatches(p.String(), decoded, false)
			if p.matches(canonical) != want || (tree.find(strings.TrimPrefix(canonical, "/")) == 7) != want {
				t.Fatalf("%q matches %q: want %v", p, s, want)
			}
		}
	})
}

// TestEncodedSlashesArePartsOfSegmentsWhereTheServerSaysSo has paths with them, in the form that is decided about and sent, or none.
func TestEncodedSlashesArePartsOfSegmentsWhereTheServerSaysSo(t *testing.T) {
	for path, want := range map[string]string{
		"/@scope%2fname": "/@scope%2Fname", "/@scope%2Fname": "/@scope%2Fname", "/%40scope%2fname/": "/@scope%2Fname/", "/a%2Fb%2fc/d": "/a%2Fb%2Fc/d",
		"/a/b": "/a/b", "/": "/", "/a/": "/a/", "/a%20b%2f%C3%A9": "/a%20b%2F%C3%A9", "/a.%2f.b": "/a.%2F.b", "/a%2F...": "/a%2F...",
		"/%2F": "", "/a%2F": "", "/%2Fa": "", "/a%2F%2Fb": "", "/a%2f..%2fb": "", "/a%2F.": "", "/a%2f%2e%2e": "", "/..%2Fa": "", "/.%2fa": "", "/a%2F..;x": "",
		"/a%2f;x": "", "/a%252fb": "", "/a%25%32fb": "", "/a%5cb": "", "/a%5Cb%2Fc": "", "/a%2f%5c..%5cb": "", `/a\b`: "", "/a%2fb/../c": "", "/a%2fb//c": "",
		"/a%2f\uff0e\uff0e": "", "/a\uff0fb%2fc": "", "/a%2f%ef%bc%8fb": "", "/a%2f%00": "", "/a%2f%c0%af": "", "/a%2fb%": "", "": "", "a%2fb": "",
	} {
		got, ok := Canonical(path, true)
		if ok != (want != "") || ok && got != want {
			t.Errorf("%q is %q, %v; want %q", path, got, ok, want)
		}
		if again, still := Canonical(got, true); ok && (!still || again != got) {
			t.Errorf("%q becomes %q, and that %q", path, got, again)
		}
		if strings.Contains(strings.ToLower(path), "%2f") && !Ambiguous(path) {
			t.Errorf("%q is not ambiguous elsewhere", path)
		}
	}
}

// TestPatternsDecideAboutEncodedSlashes: an allowance takes such a name for one segment, and a denial for every reading of it.
func TestPatternsDecideAboutEncodedSlashes(t *testing.T) {
	for _, c := range []struct {
		action  Action
		pattern string
		path    string
		slashes bool
		meets   bool
	}{
		{Allow, "/projects/*", "/projects/group%2fname", true, true},
		{Allow, "/projects/*", "/projects/group%2fname", false, false},
		{Allow, "/projects/*/*", "/projects/group%2fname", true, false},
		{Allow, "/projects/*/issues", "/projects/a%2Fb%2fc/issues", true, true},
		{Allow, "/projects/group%2Fname", "/projects/group%2fname", true, true},
		{Allow, "/projects/group%2fname/**", "/projects/group%2Fname/issues", true, true},
		{Allow, "/projects/group%2Fname", "/projects/group/name", true, false},
		{Allow, "/projects/group/name", "/projects/group%2Fname", true, false},
		{Allow, "/projects/group%2Fname", "/projects/GROUP%2Fname", true, false},
		{Allow, "/projects/**", "/projects/group%2f..%2f..%2fadmin", true, false},
		{Allow, "/**", "/a%5c..%5cb", true, false},
		{Allow, "/**", "/a%252fb", true, false},
		{Deny, "/projects/secret/**", "/projects/secret%2fname", true, true},
		{Deny, "/projects/secret/**", "/projects/SECRET%2Fname", true, true},
		{Deny, "/projects/secret/name", "/projects/secret;x%2Fname", true, true},
		{Deny, "/projects/secret/name", "/projects%2Fsecret%2Fname", true, true},
		{Deny, "/projects/*", "/projects/secret%2fname", true, true},
		{Deny, "/projects/*/name", "/projects/secret%2fname", true, true},
		{Deny, "/projects/secret/**", "/projects/other%2fname", true, false},
		{Deny, "/projects/secret/**", "/projects/other%2fname", false, true}, // nobody can tell
		{Deny, "/projects/secret/**", "/projects/other%2f..%2fsecret", true, true},
	} {
		pattern, err := ParsePathWithSlashes(c.pattern)
		if err != nil {
			t.Fatal(err)
		}
		r := Rule{Name: "r", Action: c.action, Host: MustParsePattern("a.example"), Ports: Ports(443), Path: pattern}
		p := Policy{Default: Deny, Rules: []Rule{r}}
		if c.action == Deny {
			p.Rules = append(p.Rules, Rule{Name: "all", Action: Allow, Host: r.Host, Ports: r.Ports})
		}
		compiled, err := Compile(p)
		if err != nil {
			t.Fatal(err)
		}
		req := Request{Scheme: HTTPS, Host: hostport.MustParseHost("a.example"), Port: 443, Method: "GET", Path: c.path, EncodedSlash: c.slashes}
		for name, d := range map[string]Decision{"policy": p.Decide(req), "compiled": compiled.Decide(req)} {
			if met := d.Rule == "r"; met != c.meets || d.Allowed != (c.meets == (c.action == Allow)) {
				t.Errorf("%s: %s %s, %s, slashes %v: %+v", name, c.action, c.pattern, c.path, c.slashes, d)
			}
		}
	}
	if _, err := ParsePath("/a%2Fb"); err == nil {
		t.Error("a pattern with an encoded slash is taken where servers do not say so")
	}
}
