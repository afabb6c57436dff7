package policy

import (
	"fmt"
	"strconv"
	"testing"
	"testing/quick"

	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/testenv/property"
)

// large are the shapes that many rules come in, with requests that ask for the first, the last and none of them.
func large(n int) map[string]struct {
	policy   Policy
	requests []Request
} {
	rules := func(shape func(i int) Rule) Policy {
		list := make([]Rule, n)
		for i := range list {
			list[i] = shape(i)
			list[i].Name = "rule-" + strconv.Itoa(i)
		}
		return Only(list...)
	}
	get := func(host string, port uint16, path string) Request {
		req := ask(HTTPS, host, port, "GET")
		req.Path = path
		return req
	}
	last := strconv.Itoa(n - 1)
	return map[string]struct {
		policy   Policy
		requests []Request
	}{
		"hosts": {
			rules(func(i int) Rule { return allow("", fmt.Sprintf("h%d.example.com", i), 443) }),
			[]Request{get("h0.example.com", 443, "/"), get("h"+last+".example.com", 443, "/"), get("other.example.org", 443, "/"), get("h7.example.com", 80, "/")},
		},
		"wildcards": {
			rules(func(i int) Rule { return allow("", fmt.Sprintf("*.h%d.example.com", i), 443) }),
			[]Request{get("a.h0.example.com", 443, "/"), get("a.b.c.d.h"+last+".example.com", 443, "/"), get("h1.example.com", 443, "/")},
		},
		"paths of one host": {
			rules(func(i int) Rule {
				r := allow("", "api.example.com", 443)
				r.Path, r.Methods = MustParsePath(fmt.Sprintf("/repos/owner/r%d/**", i)), []string{"GET"}
				return r
			}),
			[]Request{get("api.example.com", 443, "/repos/owner/r0/x"), get("api.example.com", 443, "/repos/owner/r"+last+"/x/y"), get("api.example.com", 443, "/none"), get("api.example.com", 443, "/a//b")},
		},
		"paths of all hosts": {
			rules(func(i int) Rule {
				r := allow("", "*", 443)
				r.Path = MustParsePath(fmt.Sprintf("/*/r%d", i))
				return r
			}),
			[]Request{get("a.example", 443, "/x/r0"), get("a.example", 443, "/x/r"+last), get("a.example", 443, "/x/y"), get("1.2.3.4", 443, "/x/y")},
		},
		"ports of all hosts": {
			rules(func(i int) Rule { return allow("", "*", uint16(i+1)) }),
			[]Request{get("a.example", 1, "/"), get("a.example", uint16(n), "/"), get("a.example", 65000, "/")},
		},
		"ranges of ports of all hosts": {
			rules(func(i int) Rule {
				r := allow("", "*", 1)
				r.Ports = []PortRange{{uint16(i + 1), uint16(i + 1 + widePorts)}}
				return r
			}),
			[]Request{get("a.example", 1, "/"), get("a.example", uint16(n), "/"), get("a.example", 65000, "/")},
		},
	}
}

func TestManyRulesAreDecidedAsWithoutTheIndex(t *testing.T) {
	for name, c := range large(300) {
		compiled, err := Compile(c.policy)
		if err != nil {
			t.Fatal(err)
		}
		for _, req := range c.requests {
			if got, want := compiled.Decide(req), c.policy.Decide(req); got != want {
				t.Errorf("%s, %+v:\n%+v, want\n%+v", name, req, got, want)
			}
		}
	}
}

// Many rules of few shapes: they share groups and branches of the tree, and only their places tell them apart.
func TestRulesOfOneGroupKeepTheirOrder(t *testing.T) {
	draw := func(t *rapid.T, name string) Rule {
		r := Rule{
			Name:    name,
			Action:  rapid.SampledFrom([]Action{Allow, Deny}).Draw(t, "action"),
			Host:    MustParsePattern(rapid.SampledFrom([]string{"a.example", "*.example", "*"}).Draw(t, "host")),
			Ports:   rapid.SampledFrom([][]PortRange{Ports(80), Ports(443, 80, 80), {{60, 100}}, {{1, 65535}, {80, 80}}}).Draw(t, "ports"),
			Scheme:  rapid.SampledFrom([]Scheme{"", HTTP, HTTPS}).Draw(t, "scheme"),
			Methods: rapid.SampledFrom([][]string{nil, {"GET"}, {"POST", "GET"}, {"GET", "POST", "GET"}, {"PUT"}}).Draw(t, "methods"),
		}
		if path := rapid.SampledFrom([]string{"", "", "/", "/a", "/a/**", "/*/b", "/a/b", "/**", "/%2A"}).Draw(t, "path"); path != "" {
			r.Path = MustParsePath(path)
		}
		return r
	}
	paths := []string{"", "/", "/a", "/a/b", "/b/b", "/c", "/*", "/a//b"}
	property.Check(t, func(t *rapid.T) {
		var list []Rule
		for i := range rapid.IntRange(1, 40).Draw(t, "rules") {
			r := draw(t, strconv.Itoa(i))
			// Two rules of the same shape, among others.
			list = append(list, r)
			if rapid.Bool().Draw(t, "again") {
				r.Name += " again"
				list = append(list, r)
			}
		}
		p := Only(rapid.Permutation(list).Draw(t, "order")...)
		p.Mode = rapid.SampledFrom([]Mode{"", Enforce, Report}).Draw(t, "mode")
		compiled, err := Compile(p)
		if err != nil {
			t.Fatal(err)
		}
		// Every prefix of few rules leaves more to be refused than all of them would.
		few := p.Clone()
		few.Rules = few.Rules[:min(len(few.Rules), 3)]
		compiledFew, err := Compile(few)
		if err != nil {
			t.Fatal(err)
		}
		for _, method := range []string{"GET", "PUT", "DELETE", Connect} {
			for _, path := range paths {
				for _, host := range []string{"a.example", "b.example", "1.2.3.4"} {
					req := ask(rapid.SampledFrom([]Scheme{HTTP, HTTPS, WS}).Draw(t, "scheme"), host, rapid.SampledFrom([]uint16{80, 80, 443, 61}).Draw(t, "port"), method)
					req.Path = path
					if got, want := compiled.Decide(req), p.Decide(req); got != want {
						t.Fatalf("%+v:\n%+v, want\n%+v", req, got, want)
					}
					if got, want := compiledFew.Decide(req), few.Decide(req); got != want {
						t.Fatalf("%+v, few rules:\n%+v, want\n%+v", req, got, want)
					}
				}
			}
		}
	})
}

// The first of all rules decides, wherever the index keeps it.
func TestTheIndexKeepsTheOrder(t *testing.T) {
	list := func(order ...int) Policy {
		all := []Rule{allow("exact", "a.b.example", 443), deny("below", "*.b.example"), allow("above", "*.example", 443), deny("all", "*")}
		all[0].Path = MustParsePath("/x")
		var p Policy
		for _, i := range order {
			p.Rules = append(p.Rules, all[i])
		}
		p.Default = Deny
		return p
	}
	req := ask(HTTPS, "a.b.example", 443, "GET")
	for _, path := range []string{"", "/x", "/y", "/x//"} {
		req.Path = path
		for i := range 4 * 4 * 4 * 4 {
			order := []int{i % 4, i / 4 % 4, i / 16 % 4, i / 64}
			seen := map[int]bool{}
			for _, n := range order {
				seen[n] = true
			}
			if len(seen) < 4 {
				continue
			}
			p := list(order...)
			c, err := Compile(p)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := c.Decide(req), p.Decide(req); got != want {
				t.Errorf("%v, %q: %+v, want %+v", order, path, got, want)
			}
		}
	}
}

func TestCompileTakesACopyOfAValidPolicy(t *testing.T) {
	p := Only(allow("a", "a.example", 443))
	c, err := Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	p.Rules[0].Ports[0], p.Rules[0].Action = PortRange{1, 65535}, Deny
	returned := c.Policy()
	returned.Rules[0].Ports[0], returned.Rules[0].Action = PortRange{1, 65535}, Deny
	if c.Decide(ask(HTTPS, "a.example", 80, "GET")).Allowed || !c.Decide(ask(HTTPS, "a.example", 443, "GET")).Allowed {
		t.Error("what was compiled changed with the original")
	}
	if _, err := Compile(Policy{}); err == nil {
		t.Error("a policy that is not valid was compiled")
	}
	if len((*Compiled)(nil).Policy().Rules) != 0 || (*Compiled)(nil).Decide(ask(HTTPS, "a.example", 443, "GET")).Allowed {
		t.Error("no policy allows")
	}
	if (&Compiled{}).Decide(ask(HTTPS, "a.example", 443, "GET")).Allowed {
		t.Error("the zero Compiled allows")
	}
	open, err := Compile(Policy{Default: Allow, Mode: Report})
	if err != nil {
		t.Fatal(err)
	}
	if open.Decide(Request{Scheme: HTTPS, Port: 443}).Allowed || open.Decide(ask(HTTPS, "a.example", 0, "GET")).Allowed {
		t.Error("a request without host or port is allowed")
	}
}

// A path with many segments, against a tree in which every segment has two ways on.
func TestAPathDoesNotMakeTheIndexWork(t *testing.T) {
	p := Policy{Default: Deny}
	for i := range 1 << 10 {
		path := ""
		for bit := range 10 {
			path += []string{"/a", "/*"}[i>>bit&1]
		}
		r := allow(strconv.Itoa(i), "*", 443)
		r.Path = MustParsePath(path)
		p.Rules = append(p.Rules, r)
	}
	c, err := Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	agrees := func(segments uint8, other bool) bool {
		req := ask(HTTPS, "a.example", 443, "GET")
		for range segments%12 + 1 {
			req.Path += "/a"
		}
		if other {
			req.Path = "/b" + req.Path[2:]
		}
		return c.Decide(req) == p.Decide(req)
	}
	if err := quick.Check(agrees, nil); err != nil {
		t.Error(err)
	}
}

func BenchmarkDecide(b *testing.B) {
	const n = 10_000
	for name, c := range large(n) {
		compiled, err := Compile(c.policy)
		if err != nil {
			b.Fatal(err)
		}
		for _, run := range []struct {
			how    string
			decide func(Request) Decision
		}{{"compiled", compiled.Decide}, {"as data", c.policy.Decide}} {
			b.Run(name+"/"+run.how, func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					run.decide(c.requests[i%len(c.requests)])
				}
			})
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	for name, c := range large(10_000) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := Compile(c.policy); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkPublicWeb(b *testing.B) {
	c, err := Compile(PublicWeb())
	if err != nil {
		b.Fatal(err)
	}
	req := Request{Scheme: HTTPS, Host: hostport.MustParseHost("www.example.com"), Port: 443, Method: "GET", Path: "/a/b/c"}
	for b.Loop() {
		c.Decide(req)
	}
}
