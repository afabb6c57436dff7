package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/policy"
)

// The marks of rules that a declaration made. Both are looked at: a person may choose such a name.
const (
	rulePrefix = "clawbots-"
	ruleNote   = "clawbots: "
	// firstPriority is behind that of rules that people make, so that what they deny is denied whatever a file allows.
	firstPriority, lastPriority = 200, 999
)

// rulesOf are the rules of a declaration, in its order. A rule's name tells what it is: the same rule at the same place
// has the same name.
func rulesOf(a clawbots.Agent) ([]egress.Rule, error) {
	if len(a.Allow) > lastPriority-firstPriority {
		return nil, fmt.Errorf("there are %d rules, more than %d", len(a.Allow), lastPriority-firstPriority)
	}
	var out []egress.Rule
	for i, declared := range a.Allow {
		plain, err := declared.Policy()
		if err != nil {
			return nil, err
		}
		r := egress.Rule{Rule: plain, Priority: firstPriority + i}
		sum := sha256.Sum256(fmt.Appendf(nil, "%d\x00%s", r.Priority, declared))
		r.Name = rulePrefix + hex.EncodeToString(sum[:8])
		r.Note = ruleNote + declared.String()
		if len(r.Note) > 900 {
			r.Note = ruleNote + "rule"
		}
		if err := egress.CheckRule(r); err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// sameRule compares what a rule does. Others could have made one of the same name.
func sameRule(a, b egress.Rule) bool {
	return a.Name == b.Name && a.Priority == b.Priority && a.Action == b.Action && a.Scheme == b.Scheme && a.Host == b.Host && a.Path == b.Path &&
		!a.Once && !b.Once && a.ExpiresAt.IsZero() && b.ExpiresAt.IsZero() && slices.Equal(a.Ports, b.Ports) && slices.Equal(a.Methods, b.Methods) &&
		a.Address == b.Address && a.Opaque == b.Opaque
}

// ruleChanges are what makes one set of rules another.
type ruleChanges struct{ add, remove []egress.Rule }

func (c ruleChanges) any() bool { return len(c.add)+len(c.remove) > 0 }

func diffRules(are, want []egress.Rule) (c ruleChanges) {
	has := func(all []egress.Rule, r egress.Rule) bool {
		return slices.ContainsFunc(all, func(other egress.Rule) bool { return sameRule(r, other) })
	}
	for _, r := range want {
		if !has(are, r) {
			c.add = append(c.add, r)
		}
	}
	for _, r := range are {
		if !has(want, r) {
			c.remove = append(c.remove, r)
		}
	}
	// At no moment is more allowed than by the old rules or by the new ones: first comes what denies more, and what allows
	// less, then the rest.
	denies := func(r egress.Rule) bool { return r.Action == policy.Deny }
	slices.SortStableFunc(c.add, func(a, b egress.Rule) int { return first(denies(a), denies(b)) })
	slices.SortStableFunc(c.remove, func(a, b egress.Rule) int { return first(!denies(a), !denies(b)) })
	return c
}

func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// applyRules puts them into effect.
func (s *Service) applyRules(ctx context.Context, by identity.Principal, tenant, id string, c ruleChanges) error {
	add := func(which policy.Action) error {
		for _, r := range c.add {
			if r.Action != which {
				continue
			}
			r.Tenant, r.Agent = tenant, id
			if _, err := s.o.Book.AddRule(ctx, by, r); err != nil {
				return fmt.Errorf("add the rule for %s: %w", r.Host, err)
			}
		}
		return nil
	}
	remove := func(which policy.Action) error {
		for _, r := range c.remove {
			if r.Action != which {
				continue
			}
			if err := s.o.Book.RemoveRule(ctx, by, r.ID); err != nil && !isNotFound(err) {
				return fmt.Errorf("remove the rule for %s: %w", r.Host, err)
			}
		}
		return nil
	}
	// A rule that has the name of one that is to come goes first; the database keeps no two.
	taken := ruleChanges{}
	for _, r := range c.remove {
		if slices.ContainsFunc(c.add, func(a egress.Rule) bool { return a.Name == r.Name }) {
			taken.remove = append(taken.remove, r)
		}
	}
	for _, r := range taken.remove {
		if err := s.o.Book.RemoveRule(ctx, by, r.ID); err != nil && !isNotFound(err) {
			return fmt.Errorf("remove the rule for %s: %w", r.Host, err)
		}
	}
	for _, step := range []func() error{
		func() error { return add(policy.Deny) }, func() error { return remove(policy.Allow) },
		func() error { return add(policy.Allow) }, func() error { return remove(policy.Deny) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// settingsOf is what a declaration makes of an agent's settings, which may be none. Only the parts that it says something
// about, or that one before it owned, differ from what they were.
func settingsOf(are egress.Settings, a clawbots.Agent, owned []part) egress.Settings {
	out := are
	owns := func(p part) bool { return slices.Contains(owned, p) }
	if a.Tools != nil || owns(partTools) {
		// Tools that were approved for the agent have ids, and stay.
		tools := slices.DeleteFunc(slices.Clone(are.Tools), func(t egress.Tool) bool { return t.ID == "" })
		if a.Tools != nil {
			declared := make([]egress.Tool, 0, len(a.Tools)+len(tools))
			for _, t := range a.Tools {
				declared = append(declared, egress.Tool{URL: t.URL, Methods: upper(t.Methods), Services: t.Services})
			}
			tools = append(declared, tools...)
		}
		if a.Tools == nil && len(tools) == 0 {
			tools = nil
		}
		out.Tools = tools
	}
	if a.Services != nil || owns(partServices) {
		out.Services = a.Services
	}
	if a.Rate != (clawbots.Rate{}) || owns(partRates) {
		out.Rates.Proxy, out.Rates.Execute, out.Rates.Service, out.Rates.LLM = a.Rate.Proxy, a.Rate.Execute, a.Rate.Service, a.Rate.LLM
	}
	if a.LLM != (clawbots.LLM{}) || owns(partBudget) {
		out.Budget = egress.Budget{TokensPerDay: a.LLM.TokensPerDay, CostPerDay: a.LLM.CostPerDay}
	}
	if a.Browser != "" || owns(partBrowser) {
		out.Browser = egress.BrowserReach(a.Browser)
	}
	return out
}

// partsOf are those that a declaration says something about.
func partsOf(a clawbots.Agent) (out []part) {
	for _, p := range []struct {
		part part
		said bool
	}{
		{partTools, a.Tools != nil}, {partServices, a.Services != nil}, {partRates, a.Rate != (clawbots.Rate{})}, {partBudget, a.LLM != (clawbots.LLM{})},
		{partBrowser, a.Browser != ""},
	} {
		if p.said {
			out = append(out, p.part)
		}
	}
	return out
}

// union of two lists of parts, in the order of their names.
func union(a, b []part) []part {
	out := append(slices.Clone(a), b...)
	slices.Sort(out)
	return slices.Compact(out)
}

func sameSettings(a, b egress.Settings) bool {
	sameTool := func(a, b egress.Tool) bool {
		return a.URL == b.URL && a.ID == b.ID && a.Once == b.Once && a.ExpiresAt.Equal(b.ExpiresAt) && slices.Equal(a.Methods, b.Methods) &&
			slices.Equal(a.Services, b.Services)
	}
	return (a.Tools == nil) == (b.Tools == nil) && slices.EqualFunc(a.Tools, b.Tools, sameTool) && (a.Services == nil) == (b.Services == nil) &&
		slices.Equal(a.Services, b.Services) && a.Rates == b.Rates && a.Budget == b.Budget && a.Browser == b.Browser
}

func upper(words []string) []string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = strings.ToUpper(w)
	}
	return out
}
