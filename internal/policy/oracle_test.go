package policy

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"

	"golang.org/x/text/unicode/norm"

	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/testenv/property"
)

// The oracle is written from the documentation, with other means than the code: it decodes with net/url, makes regular
// expressions of path patterns, and compares hosts as lists of labels.

var (
	oracleDots   = regexp.MustCompile(`^\.\.?(;.*)?$`)
	oracleDouble = regexp.MustCompile(`%[0-9A-Fa-f][0-9A-Fa-f]`)
)

// oraclePath decodes a path; ok is false when it can be read in two ways.
func oraclePath(path string) (decoded string, ok bool) {
	decoded, err := url.PathUnescape(path)
	switch {
	case err != nil, !strings.HasPrefix(path, "/"), strings.Contains(path, "//"), strings.ContainsAny(path, " ?#"),
		strings.Count(decoded, "/") != strings.Count(path, "/"), strings.Contains(decoded, `\`), oracleDouble.MatchString(decoded),
		!utf8.ValidString(decoded), strings.ContainsFunc(decoded, unicode.IsControl),
		slices.ContainsFunc(strings.Split(decoded, "/"), oracleDots.MatchString), strings.Contains(decoded, "/;"):
		return "", false
	}
	// The same of what Unicode takes for the same, and of other slashes.
	normal := norm.NFKC.String(decoded)
	if strings.Count(normal, "/") != strings.Count(decoded, "/") || strings.ContainsRune(normal, '\\') || oracleDouble.MatchString(normal) ||
		slices.ContainsFunc(strings.Split(normal, "/"), oracleDots.MatchString) || strings.Contains(normal, "/;") || strings.ContainsAny(decoded, "\u2044\u2215\u29f5\u29f8") ||
		strings.Count(normal, "?") != strings.Count(decoded, "?") || strings.Count(normal, "#") != strings.Count(decoded, "#") {
		return "", false
	}
	return strings.TrimSuffix(decoded, "/"), true
}

// oracleMatches compares a pattern with a decoded path; case makes no difference to a rule that denies.
func oracleMatches(pattern, decoded string, denies bool) bool {
	expression := "(?s)^"
	if denies {
		expression = "(?si)^"
	}
	for _, segment := range strings.Split(strings.Trim(pattern, "/"), "/") {
		switch segment {
		case "":
		case "*":
			expression += "/[^/]+"
		case "**":
			expression += "(/.*)?"
		default:
			literal, err := url.PathUnescape(segment)
			if err != nil {
				return false
			}
			expression += "/" + regexp.QuoteMeta(literal)
		}
	}
	return regexp.MustCompile(expression + "$").MatchString(decoded)
}

func oracleHost(r Rule, req Request) bool {
	host, pattern := req.Host.String(), r.Host.String()
	if req.Host.IsAddr() && (r.Action == Allow || pattern != "*") {
		return pattern == host
	}
	if strings.HasPrefix(pattern, "*.") {
		want, have := strings.Split(pattern, ".")[1:], strings.Split(host, ".")
		return len(have) > len(want) && slices.Equal(have[len(have)-len(want):], want)
	}
	return pattern == "*" || pattern == host
}

// oracleConditions says which conditions of a rule are met, in their order.
func oracleConditions(r Rule, req Request) []bool {
	denies := r.Action == Deny
	port := false
	for _, pr := range r.Ports {
		for n := int(pr.First); n <= int(pr.Last); n++ {
			port = port || n == int(req.Port)
		}
	}
	scheme := r.Scheme == "" || r.Scheme == req.Scheme || denies && req.Scheme == ""
	method := len(r.Methods) == 0
	for _, m := range r.Methods {
		method = method || m == req.Method || denies && m == strings.ToUpper(req.Method)
	}
	if len(r.Methods) > 0 && (req.Method == "CONNECT" || req.Method == "") {
		method = denies
	}
	path := true
	if pattern := r.Path.String(); pattern != "" {
		decoded, ok := oraclePath(req.Path)
		if req.Method == "CONNECT" || req.Path == "" || !ok {
			path = denies
		} else {
			path = oracleMatches(pattern, decoded, denies)
			// Text after a semicolon may be a parameter of its segment, or the end of the path.
			for _, parameters := range []string{";[^/]*", ";.*"} {
				path = path || denies && oracleMatches(pattern, regexp.MustCompile("(?s)"+parameters).ReplaceAllString(decoded, ""), true)
			}
		}
	}
	return []bool{oracleHost(r, req), port, scheme, method, path}
}

// oracle says whether a request is allowed, by which rule, or with which code it is refused.
func oracle(p Policy, req Request) (allowed bool, rule string, code Code) {
	codes := []Code{HostDenied, PortDenied, SchemeDenied, MethodDenied, PathDenied}
	closest := 0
	for _, r := range p.Rules {
		missed := slices.Index(oracleConditions(r, req), false)
		switch {
		case missed < 0 && r.Action == Allow:
			return true, r.Name, ""
		case missed < 0 && r.Path.String() != "":
			return false, r.Name, PathDenied
		case missed < 0:
			return false, r.Name, HostDenied
		case r.Action == Allow:
			closest = max(closest, missed)
		}
	}
	if p.Default == Allow && !req.Host.IsAddr() {
		return true, "", ""
	}
	return false, "", codes[closest]
}

func drawRule(t *rapid.T, name string) Rule {
	patterns := []string{
		"*", "*.a.com", "*.b.a.com", "*.com", "*.xn--bcher-kva.de", "a.com", "a.com", "b.a.com", "c.b.a.com", "ba.com", "com", "1.2.3.4", "[2001:db8::1]", "xn--bcher-kva.de",
	}
	paths := []string{"", "", "", "/", "/a", "/*", "/a/*", "/a/**", "/**", "/*/b", "/*/*/c", "/a/b/**", "/a/%2A", "/é", "/A/B", "/É"}
	r := Rule{
		Name:    name,
		Action:  rapid.SampledFrom([]Action{Allow, Deny}).Draw(t, "action"),
		Host:    MustParsePattern(rapid.SampledFrom(patterns).Draw(t, "pattern")),
		Scheme:  rapid.SampledFrom([]Scheme{"", "", HTTP, HTTPS, WS}).Draw(t, "rule scheme"),
		Methods: rapid.SliceOfN(rapid.SampledFrom([]string{"GET", "POST"}), 0, 2).Draw(t, "rule methods"),
	}
	if path := rapid.SampledFrom(paths).Draw(t, "rule path"); path != "" {
		r.Path = MustParsePath(path)
	}
	for range rapid.IntRange(1, 2).Draw(t, "ranges") {
		first := rapid.Uint16Range(1, 6).Draw(t, "first")
		last := rapid.SampledFrom([]uint16{first, first, 6, 100}).Draw(t, "last")
		r.Ports = append(r.Ports, PortRange{first, last})
	}
	r.Opaque = r.Action == Allow && rapid.Bool().Draw(t, "opaque")
	return r
}

// drawCase draws from few values, so that rules and requests often meet.
func drawCase(t *rapid.T) (Policy, Request) {
	hosts := []string{"a.com", "a.com", "b.a.com", "c.b.a.com", "ba.com", "com", "1.2.3.4", "[2001:db8::1]", "xn--bcher-kva.de"}
	p := Policy{
		Default: rapid.SampledFrom([]Action{Allow, Deny, Deny}).Draw(t, "default"),
		Advice:  rapid.SampledFrom([]string{"", "clawjail rules add"}).Draw(t, "advice"),
	}
	for i := range rapid.IntRange(0, 8).Draw(t, "rules") {
		p.Rules = append(p.Rules, drawRule(t, fmt.Sprint("r", i)))
	}
	req := ask(rapid.SampledFrom([]Scheme{HTTP, HTTP, HTTPS, WS, ""}).Draw(t, "scheme"), rapid.SampledFrom(hosts).Draw(t, "host"),
		rapid.Uint16Range(1, 7).Draw(t, "port"), rapid.SampledFrom([]string{"GET", "GET", "POST", "CONNECT", "post", ""}).Draw(t, "method"))
	req.Path = drawPath(t)
	return p, req
}

func drawPath(t *rapid.T) string {
	segments := []string{
		"a", "a", "b", "b", "c", "A", "é", "%C3%89", "%61", "%41", "%2A", "*", "**", "%C3%A9", "", ".", "..", "%2e", "%2E%2e", "..;x", "a;x", "%2f", "%5C", `\`, "%", "%2", "%zz", "%252f", "%25", "%25x", "%2532f",
		"%00", "%0a", "\x01", "%7f", "%c0%af", "%ff", "%E9", "?", "#", " ", "%20", "a.b", "...", "%", "%u002f", "%C2%85",
	}
	path := ""
	for range rapid.IntRange(0, 4).Draw(t, "segments") {
		path += "/" + rapid.SampledFrom(segments[:rapid.SampledFrom([]int{6, 6, 14, len(segments)}).Draw(t, "how odd")]).Draw(t, "segment")
	}
	return path + rapid.SampledFrom([]string{"", "", "/"}).Draw(t, "end")
}

func decideAgreesWithOracle(t *rapid.T) {
	p, req := drawCase(t)
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	got := p.Decide(req)
	allowed, rule, code := oracle(p, req)
	if got.Allowed != allowed || got.Rule != rule || got.Code != code {
		t.Fatalf("%+v = %+v, oracle says %v by %q, %q", req, got, allowed, rule, code)
	}
	if got.Allowed == (got.Code != "") || got.Allowed == (got.Hint != "") || got.Reason == "" || got.Reported {
		t.Fatalf("decision contradicts itself: %+v", got)
	}
	if len(req.Path) > 3 && (strings.Contains(got.Reason, req.Path) || strings.Contains(got.Hint, req.Path)) {
		t.Fatalf("the path of a request is in the answer: %+v", got)
	}
	c, err := Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	if compiled := c.Decide(req); compiled != got {
		t.Fatalf("compiled: %+v\nas data:  %+v", compiled, got)
	}
	if again := p.Clone().Decide(req); again != got {
		t.Fatalf("same question, two answers: %+v and %+v", got, again)
	}
}

func decideKeepsItsPromises(t *rapid.T) {
	p, req := drawCase(t)
	got := p.Decide(req)

	if d := (Policy{}).Decide(req); d.Allowed {
		t.Fatalf("the zero policy allows: %+v", d)
	}
	if d := (*Compiled)(nil).Decide(req); d.Allowed {
		t.Fatalf("no policy allows: %+v", d)
	}

	more := drawRule(t, "more")
	more.Action = Allow
	appended := p.Clone()
	appended.Rules = append(appended.Rules, more)
	if d := appended.Decide(req); got.Allowed && !d.Allowed {
		t.Fatalf("a rule at the end that allows %+v refuses: %+v", more, d)
	}

	stop := p.Clone()
	stop.Rules = append([]Rule{deny("stop", "*")}, stop.Rules...)
	if d := stop.Decide(req); d.Allowed || d.Rule != "stop" {
		t.Fatalf("a rule before all others that denies everything does not: %+v", d)
	}

	// Order: rules that do not match do not matter, and neighbours that do the same may change places.
	if len(p.Rules) > 1 {
		i := rapid.IntRange(1, len(p.Rules)-1).Draw(t, "neighbour")
		swapped := p.Clone()
		swapped.Rules[i-1], swapped.Rules[i] = swapped.Rules[i], swapped.Rules[i-1]
		d := swapped.Decide(req)
		if p.Rules[i-1].Action == p.Rules[i].Action && d.Allowed != got.Allowed {
			t.Fatalf("two rules that do the same changed places: %+v and %+v", got, d)
		}
	}
	if got.Rule != "" {
		only := p.Clone()
		only.Rules = slices.DeleteFunc(only.Rules, func(r Rule) bool { return r.Name != got.Rule })
		if d := only.Decide(req); d != got {
			t.Fatalf("alone the rule decides otherwise: %+v and %+v", got, d)
		}
	}

	report := p.Clone()
	report.Mode = Report
	want := got
	want.Allowed, want.Reported = true, !got.Allowed
	if d := report.Decide(req); d != want {
		t.Fatalf("report mode: %+v, want %+v", d, want)
	}
	c, err := Compile(report)
	if err != nil {
		t.Fatal(err)
	}
	if d := c.Decide(req); d != want {
		t.Fatalf("report mode, compiled: %+v, want %+v", d, want)
	}

	for _, spelling := range spellings(req.Host.String()) {
		other := req
		other.Host = hostport.MustParseHost(spelling)
		if d := p.Decide(other); d != got {
			t.Fatalf("%q is decided otherwise: %+v and %+v", spelling, got, d)
		}
	}
}

// spellings are other ways to write a host.
func spellings(host string) []string {
	out := []string{strings.ToUpper(host)}
	if !strings.HasPrefix(host, "[") {
		out = append(out, host+".", strings.ReplaceAll(host, ".", "。"))
	}
	if host == "xn--bcher-kva.de" {
		out = append(out, "bücher.de", "BÜCHER.de.", "XN--BCHER-KVA.DE")
	}
	if host == "1.2.3.4" {
		out = append(out, "[::ffff:1.2.3.4]", "[::ffff:102:304]")
	}
	return out
}

func TestDecideAgreesWithANaiveOracle(t *testing.T) { property.Check(t, decideAgreesWithOracle) }

func TestDecideKeepsItsPromises(t *testing.T) { property.Check(t, decideKeepsItsPromises) }

func FuzzDecide(f *testing.F) {
	// Rapid reads its choices from the bytes, and skips what has too few.
	for i := range byte(8) {
		seed := make([]byte, 256<<10)
		_, _ = rand.NewChaCha8([32]byte{i}).Read(seed) // it never fails
		f.Add(seed)
	}
	f.Fuzz(rapid.MakeFuzz(func(t *rapid.T) {
		decideAgreesWithOracle(t)
		decideKeepsItsPromises(t)
	}))
}
