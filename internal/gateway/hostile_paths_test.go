package gateway

import (
	"net/url"
	"path"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/policy"
)

// readings are what servers make of a request target: decoded once or twice, before or after dot segments are resolved,
// with slashes merged, with backslashes that are slashes.
func readings(target string) (all []string) {
	if u, err := url.ParseRequestURI(target); err == nil {
		all = append(all, path.Clean("/"+u.Path), path.Clean("/"+u.EscapedPath()))
	}
	raw, _, _ := strings.Cut(target, "?")
	raw, _, _ = strings.Cut(raw, "#")
	once := decoded(raw)
	for _, text := range []string{raw, once, decoded(once), decoded(path.Clean("/" + raw)), decoded(path.Clean("/" + once))} {
		all = append(all, path.Clean("/"+text), path.Clean("/"+strings.ReplaceAll(text, `\`, "/")))
		// Parameters belong to their segment, or end the path; see also the order of cutting and of resolving dots.
		segments := strings.Split(text, "/")
		for i := range segments {
			segments[i], _, _ = strings.Cut(segments[i], ";")
		}
		all = append(all, path.Clean("/"+strings.Join(segments, "/")))
		for _, end := range []string{"\x00", ";"} {
			if before, _, cut := strings.Cut(text, end); cut {
				all = append(all, path.Clean("/"+before))
			}
		}
	}
	return all
}

// decoded decodes what can be decoded and leaves the rest.
func decoded(s string) string {
	const hex = "0123456789abcdef"
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			high, low := strings.IndexByte(hex, s[i+1]|0x20), strings.IndexByte(hex, s[i+2]|0x20)
			if high >= 0 && low >= 0 {
				out.WriteByte(byte(high<<4 | low))
				i += 2
				continue
			}
		}
		out.WriteByte(s[i])
	}
	return out.String()
}

func below(p, folder string) bool { return p == folder || strings.HasPrefix(p, folder+"/") }

// pathRules deny /admin of one host, and allow only /public of another.
func pathRules() policy.Policy {
	at := func(name, host string, action policy.Action, pattern string) policy.Rule {
		r := policy.Rule{Name: name, Action: action, Host: policy.MustParsePattern(host), Ports: policy.Ports(80)}
		if pattern != "" {
			r.Path = policy.MustParsePath(pattern)
		}
		return r
	}
	return policy.Only(
		at("no-admin", "denies.example", policy.Deny, "/admin/**"), at("the-rest", "denies.example", policy.Allow, ""),
		at("public", "allows.example", policy.Allow, "/public/**"),
	)
}

// spellings are those that have fooled some gateway.
func spellings() []string {
	return []string{
		"", "/", "/admin", "/admin/", "/admin/x", "//admin", "/./admin", "/x/../admin", "/%61dmin", "/%61%64%6d%69%6e", "/%2561dmin", "/admin%2fx", "/admin%2Fx", "/admin%5cx", `/admin\x`,
		"/public/../admin", "/public/%2e%2e/admin", "/public/%2E%2E/admin", "/public/..%2fadmin", "/public/.%2e/admin", "/public/..;/admin", "/public/..;x=1/admin", "/public%2f..%2fadmin",
		"/public/..%00/admin", "/admin%00", "/public/%252e%252e/admin", "/public/..\\admin", "/public//../admin", "/public/./../admin", "/public/x/../../admin", "/public/..%c0%af/admin", "/public/%u002e%u002e/admin",
		"/public/...//admin", "/public/ok", "/public", "/public/", "/publicx", "/public?/../admin", "?/admin", "/public#/../../admin", "/x?admin", "/%2e/admin", "/%2e%2e/admin", "/%2f/admin", "/%5cadmin", "/%09/admin",
		"/public/%", "/public/%zz", "/public/é", "/public/%c3%a9", "/public/%ff", "/admin;x", ";/admin", "*", "/public/..", "/public/../", "/../admin", "/..//admin", "///admin", "/ad%6Din/%2e", "/public/a%20b", "/public/+", "/admin;a=b/x", "/admin;/x", "/;x/admin", "/admin%3bx/y", "/public;/admin",
		"/http://allows.example/admin", "/public/http:%2f%2fx/../../../admin",
	}
}

func tryPath(t *testing.T, a *arena, spelling string) {
	t.Helper()
	if strings.ContainsAny(spelling, "\r\n") || len(spelling) > 4096 {
		return // other requests, which FuzzRequestReader sends
	}
	for _, host := range []string{"denies.example", "allows.example"} {
		plain := "GET http://" + host + spelling + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n"
		inner := "CONNECT " + host + ":80 HTTP/1.1\r\nHost: " + host + ":80\r\n\r\nGET " + spelling + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n"
		for _, request := range []string{plain, inner} {
			a.send(t, []byte(request), false)
			for _, seen := range a.verdict(t) {
				at, target, _ := strings.Cut(seen, " ")
				for _, p := range readings(target) {
					if at == "denies.example" && below(p, "/admin") {
						t.Errorf("%q: %s was asked for %q, which may be %q", request, at, target, p)
					}
					if at == "allows.example" && !below(p, "/public") {
						t.Errorf("%q: %s was asked for %q, which may be %q", request, at, target, p)
					}
				}
			}
		}
	}
}

func TestPathRulesHoldForEverySpelling(t *testing.T) {
	a := newArena(t, pathRules(), patience)
	for _, spelling := range spellings() {
		tryPath(t, a, spelling)
	}
	// An allowed path does arrive, with the spelling that was sent.
	for _, allowed := range []string{"denies.example/", "denies.example/x?admin", "allows.example/public/%c3%a9", "allows.example/public/a%20b?x=/../", "denies.example"} {
		a.send(t, []byte("GET http://"+allowed+" HTTP/1.1\r\nHost: x\r\n\r\n"), false)
		host, target, _ := strings.Cut(allowed, "/")
		if seen := a.verdict(t); len(seen) != 1 || seen[0] != host+" /"+target {
			t.Errorf("%s: the host sees %q", allowed, seen)
		}
	}
	// Without the rule, the readings would say so.
	open := newArena(t, policy.PublicWeb(), patience)
	reached := 0
	for _, spelling := range spellings() {
		open.send(t, []byte("GET http://denies.example"+spelling+" HTTP/1.1\r\nHost: x\r\n\r\n"), false)
		for _, seen := range open.verdict(t) {
			_, target, _ := strings.Cut(seen, " ")
			for _, p := range readings(target) {
				if below(p, "/admin") {
					reached++
					break
				}
			}
		}
	}
	if reached < 30 {
		t.Errorf("without the rule only %d spellings reach what it denies: the test looks at little", reached)
	}
}

func FuzzNoSpellingPassesADenyRule(f *testing.F) {
	for _, spelling := range spellings() {
		f.Add(spelling)
	}
	a := newArena(f, pathRules(), patience/10)
	f.Fuzz(func(t *testing.T, spelling string) { tryPath(t, a, spelling) })
}
