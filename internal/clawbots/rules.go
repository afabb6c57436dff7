package clawbots

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/config/yamldoc"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/problem"
)

const ruleHint = "write example.com, *.example.com:8443, GET http://example.com/path/** or deny: example.com"

// rules reads what the agent may reach, and may not.
func (f *file) rules(m *yamldoc.Map) []Rule {
	const key = "allow"
	if !f.few(m.Field()+"."+key, "rules", m.Length(key), maxRules) {
		m.Ignore(key)
		return nil
	}
	var out []Rule
	add := func(r Rule) error {
		err := r.behind(out)
		out = append(out, r) // also when it is wrong, so that others have their place in the file
		return err
	}
	m.Mixed(key, func(_ string, v yamldoc.Value) error {
		r, err := parseRule(v.Text)
		if wrong := add(r); err == nil {
			err = wrong
		}
		return err
	}, func(m *yamldoc.Map) {
		if r, ok := f.rule(m); ok {
			f.wrong(m.Field(), add(r))
		} else {
			out = append(out, Rule{})
		}
	})
	return out
}

// rule reads a rule that is a map. It is false when there is a flaw already.
func (f *file) rule(m *yamldoc.Map) (r Rule, ok bool) {
	named, bare := 0, false
	target := func(v yamldoc.Value) error {
		named++
		r.Target = v.Text
		return nil
	}
	m.Value("host", target)
	m.Value("url", target)
	m.Value("deny", func(v yamldoc.Value) error {
		// "- deny: example.com" in a list is a map to YAML.
		r.Deny = true
		if bare = v.Text == "true" || v.Text == "false"; bare {
			r.Deny = v.Text == "true"
			return nil
		}
		return target(v)
	})
	methods, ok := f.methods(m)
	r.Methods = methods
	if named > 1 {
		f.flaw(m.Field(), "make two rules of it", "names more than one target")
		return r, false
	}
	targets := []string{"host", "url"}
	if !bare { // it names the target
		targets = append(targets, "deny")
	}
	m.Need(ruleHint, "a rule needs a host or a url", targets...)
	return r, ok && named == 1
}

// methods reads a list of HTTP methods. It is false when one is none.
func (f *file) methods(m *yamldoc.Map) (out []string, ok bool) {
	const key = "methods"
	if !f.few(m.Field()+"."+key, "methods", m.Length(key), maxMethods) {
		m.Ignore(key)
		return nil, false
	}
	ok = true
	m.Values(key, func(v yamldoc.Value) error {
		method, err := parseMethod(v.Text)
		if err != nil {
			ok = false
			return err
		}
		out = append(out, method)
		return nil
	})
	if m.Has(key) && (!m.IsList(key) || m.Length(key) == 0) {
		if m.IsList(key) {
			f.flaw(m.Field()+"."+key, "leave the key out for all methods", "has no methods")
		}
		ok = false
	}
	slices.Sort(out)
	return slices.Compact(out), ok
}

func parseMethod(text string) (string, error) {
	method := strings.ToUpper(text)
	if method == "" || len(method) > 32 || strings.Trim(method, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" || method == policy.Connect {
		return "", problem.New(problem.BadRequest, "write methods such as GET or POST", "%.40q is not a method", text)
	}
	return method, nil
}

func usualMethods() []string {
	return []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
}

// parseRule reads a rule that is a text: "[deny: ][METHODS ]TARGET", where methods are parted by commas.
func parseRule(text string) (Rule, error) {
	var r Rule
	rest := strings.TrimSpace(text)
	if after, found := strings.CutPrefix(rest, "deny:"); found {
		r.Deny, rest = true, strings.TrimSpace(after)
	}
	if methods, target, found := strings.Cut(rest, " "); found {
		for m := range strings.SplitSeq(methods, ",") {
			method := strings.ToUpper(m)
			if !slices.Contains(usualMethods(), method) {
				// Others are for maps: a host with a blank in it must not be taken for one.
				return Rule{}, problem.New(problem.BadRequest, ruleHint, "%.40q is none of the methods %s", m, strings.Join(usualMethods(), ", "))
			}
			if !slices.Contains(r.Methods, method) {
				r.Methods = append(r.Methods, method)
			}
		}
		rest = strings.TrimSpace(target)
	}
	slices.Sort(r.Methods)
	r.Target = rest
	return r, nil
}

// behind is check for a rule that comes behind others.
func (r Rule) behind(before []Rule) error {
	if first := slices.IndexFunc(before, r.same); first >= 0 {
		return problem.New(problem.BadRequest, "say it once", "is about the same as rule %d of the list", first+1)
	}
	return r.check()
}

// check says what is wrong with a rule, as the gateway's own rules have it: what passes here can be added.
func (r Rule) check() error {
	p, err := r.Policy()
	if err != nil {
		return targetProblem(err, ruleHint)
	}
	if !r.Deny && p.Scheme == policy.HTTPS && (p.Path != policy.Path{} || len(r.Methods) > 0) {
		return problem.New(problem.BadRequest, "allow the host as a whole, or write it below tools: or services:, where the gateway speaks TLS itself",
			"allowing a part of an https server allows nothing: in a tunnel nobody sees methods and paths")
	}
	p.Name = "it"
	if err := policy.Only(p).Validate(); err != nil {
		text, _, _ := strings.Cut(err.Error(), "\n")
		if _, after, found := strings.Cut(text, "): "); found {
			text = after
		}
		return problem.New(problem.BadRequest, ruleHint, "%s", text)
	}
	return nil
}

// Policy is the rule as the gateway has it, without a name.
func (r Rule) Policy() (policy.Rule, error) {
	p, err := policy.ParseURL(r.Target)
	if err != nil {
		return policy.Rule{}, err
	}
	p.Methods, p.Action = slices.Clone(r.Methods), policy.Allow
	if r.Deny {
		p.Action = policy.Deny
	}
	return p, nil
}

// same compares what rules are about; two of them that differ only in their action contradict each other.
func (r Rule) same(other Rule) bool {
	return r.Target != "" && r.Target == other.Target && slices.Equal(r.Methods, other.Methods)
}

// targetProblem makes a problem of what the gateway's parser says. A URL with a login in it is not repeated.
func targetProblem(err error, hint string) error {
	if errors.Is(err, hostport.ErrUserinfo) {
		return problem.New(problem.BadRequest, "take it out; credentials are kept by `clawjail secret set NAME` and used by a service", "the URL has a user name in it")
	}
	return problem.New(problem.BadRequest, hint, "%s", err)
}

// tools reads what execute may do; nil when the file does not say.
func (f *file) tools(m *yamldoc.Map) []Tool {
	const key = "tools"
	if !m.Has(key) {
		return nil
	}
	out := []Tool{}
	m.Maps(key, func(m *yamldoc.Map) {
		var t Tool
		m.Struct(&t, f.value)
		m.Need("add url: https://api.example.com/v1/**", "a tool needs a url", "url")
		t.Methods, _ = f.methods(m)
		m.Need("add methods: [GET], with those that it needs", "a tool needs methods", "methods")
		out = append(out, t)
	})
	return out
}

func checkToolURL(text string) error {
	const hint = "write an absolute URL, such as https://api.example.com/v1/**"
	r, err := policy.ParseURL(text)
	switch {
	case err != nil:
		return targetProblem(err, hint)
	case !strings.Contains(text, "://"):
		return problem.New(problem.BadRequest, hint, "%.80q is not an absolute URL", text)
	case r.Host == policy.AnyHost():
		return problem.New(problem.BadRequest, hint, "the host is any host; a credential would go wherever the agent says")
	}
	return nil
}

// String is the rule as the file has it.
func (r Rule) String() string {
	out := r.Target
	if len(r.Methods) > 0 {
		out = strings.Join(r.Methods, ",") + " " + out
	}
	if r.Deny {
		out = "deny: " + out
	}
	return out
}

// String is for people.
func (t Tool) String() string {
	out := strings.Join(t.Methods, ",") + " " + t.URL
	if len(t.Services) > 0 {
		out = fmt.Sprintf("%s (%s)", out, strings.Join(t.Services, ", "))
	}
	return out
}
