package policy

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/policy/hostport"
)

// Compiled is a policy made ready for many decisions: it gives the answers of [Policy.Decide], and looks only at the
// rules that can be about a request. It does not change, and may be used from several goroutines.
//
// The rules are found by host, then by port, and those that differ in nothing but their paths by a tree of segments. Only
// rules of one host, or of all hosts, are gone through one by one where they differ in ranges of ports, schemes or
// methods.
type Compiled struct {
	policy Policy
	exact  map[hostport.Host]*hostRules
	below  map[string]*hostRules
	any    *hostRules
}

// Compile makes a policy ready. The policy is copied.
func Compile(p Policy) (*Compiled, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	c := &Compiled{policy: p.Clone(), exact: map[hostport.Host]*hostRules{}, below: map[string]*hostRules{}}
	groups := map[string]*group{}
	for i := range c.policy.Rules {
		r := &c.policy.Rules[i]
		key := r.groupKey()
		g := groups[key]
		if g == nil {
			g = newGroup(r)
			groups[key] = g
			c.host(r.Host).add(g)
		}
		g.add(r.Path, i)
	}
	return c, nil
}

// Decide answers a request. A nil *Compiled denies.
func (c *Compiled) Decide(req Request) Decision {
	if c == nil {
		return Policy{}.Decide(req)
	}
	if req.Host.IsZero() || req.Port == 0 {
		return nowhere()
	}
	s := search{asked: look(req), found: none}
	s.in(c.exact[req.Host])
	if name := req.Host.Name(); len(c.below) > 0 {
		for more := name != ""; more; {
			if _, name, more = strings.Cut(name, "."); more {
				s.in(c.below[name])
			}
		}
	}
	// An address is only allowed by a rule that names it.
	s.onlyDeny = req.Host.IsAddr()
	s.in(c.any)
	if s.found != none {
		return c.policy.verdict(&c.policy.Rules[s.found], s.asked)
	}
	return c.policy.unmatched(s.asked, s.closest)
}

// Policy returns a copy of what was compiled.
func (c *Compiled) Policy() Policy {
	if c == nil {
		return Policy{}
	}
	return c.policy.Clone()
}

// host returns the rules of a pattern, made when they are not there.
func (c *Compiled) host(p Pattern) *hostRules {
	var h *hostRules
	switch p.kind {
	case exact:
		h = c.exact[p.host]
	case below:
		h = c.below[p.host.Name()]
	default:
		h = c.any
	}
	if h != nil {
		return h
	}
	h = &hostRules{ports: map[uint16][]*group{}}
	switch p.kind {
	case exact:
		c.exact[p.host] = h
	case below:
		c.below[p.host.Name()] = h
	default:
		c.any = h
	}
	return h
}

// none is above the place of every rule.
const none = math.MaxInt

// hostRules are the rules with one host pattern.
type hostRules struct {
	ports  map[uint16][]*group // groups that are about this port
	wide   []portGroup         // groups with a wide range of ports
	allows bool                // one of them allows something
}

type portGroup struct {
	PortRange
	*group
}

// widePorts is from how many ports on a range is not listed port by port.
const widePorts = 16

func (h *hostRules) add(g *group) {
	h.allows = h.allows || g.action == Allow
	var ports []uint16
	for _, pr := range g.ports {
		if int(pr.Last)-int(pr.First) >= widePorts {
			h.wide = append(h.wide, portGroup{pr, g})
			continue
		}
		for port := int(pr.First); port <= int(pr.Last); port++ {
			ports = append(ports, uint16(port))
		}
	}
	slices.Sort(ports)
	for _, port := range slices.Compact(ports) {
		h.ports[port] = append(h.ports[port], g)
	}
}

// group are rules that differ in nothing but their paths, names and consequences.
type group struct {
	action  Action
	ports   []PortRange
	scheme  Scheme
	methods []string

	first     int // the place of the first of its rules
	plain     int // of the first without a path
	firstPath int // of the first with one
	paths     pathNode
}

// groupKey is the same for the rules of one group and for no others. No part has a space, except in the lists, which
// stand in brackets.
func (r *Rule) groupKey() string {
	methods := slices.Sorted(slices.Values(r.Methods))
	return fmt.Sprint(r.Host, " ", r.Action, " ", r.Scheme, " ", r.Ports, " ", slices.Compact(methods))
}

func newGroup(r *Rule) *group {
	return &group{
		action: r.Action, ports: r.Ports, scheme: r.Scheme, methods: r.Methods,
		first: none, plain: none, firstPath: none, paths: newPathNode(),
	}
}

func (g *group) add(p Path, place int) {
	g.first = min(g.first, place)
	if p.IsZero() {
		g.plain = min(g.plain, place)
		return
	}
	g.firstPath = min(g.firstPath, place)
	if g.action == Deny {
		p = p.inOneCase()
	}
	g.paths.add(p, place)
}

// find returns the place of the first rule of the group whose path meets the request; none if there is none.
func (g *group) find(a asked) int {
	switch {
	case g.firstPath > g.plain:
		return g.plain
	case a.unclear() && g.action == Deny:
		return min(g.plain, g.firstPath)
	case a.unclear():
		return g.plain
	case g.action == Deny:
		found := g.plain
		for _, path := range readings(a.path) {
			found = min(found, g.paths.find(strings.TrimPrefix(path, "/")))
		}
		return found
	default:
		return min(g.plain, g.paths.find(strings.TrimPrefix(a.path, "/")))
	}
}

// search is one decision under way.
type search struct {
	asked
	found    int       // the place of the first rule that matches, as far as is known
	closest  condition // the furthest that a rule which allows something came
	onlyDeny bool
}

// in looks through the rules of one host pattern, which the host is known to meet.
func (s *search) in(h *hostRules) {
	if h == nil {
		return
	}
	if h.allows && !s.onlyDeny {
		s.closest = max(s.closest, missPort)
	}
	for _, g := range h.ports[s.Port] {
		s.try(g)
	}
	for i := range h.wide {
		if h.wide[i].contains(s.Port) {
			s.try(h.wide[i].group)
		}
	}
}

// try looks at a group whose host and port the request meets.
func (s *search) try(g *group) {
	// A rule that comes later than the one that was found changes nothing.
	if g.first > s.found || s.onlyDeny && g.action == Allow {
		return
	}
	missed := missPath
	switch {
	case !meetsScheme(g.action, g.scheme, s.Scheme):
		missed = missScheme
	case !meetsMethod(g.action, g.methods, s.Method):
		missed = missMethod
	default:
		s.found = min(s.found, g.find(s.asked))
	}
	if g.action == Allow {
		s.closest = max(s.closest, missed)
	}
}

// pathNode is a tree of path patterns by their segments.
type pathNode struct {
	segments map[string]*pathNode // the wildcard for one segment is among them
	end      int                  // the place of the first rule that ends here
	tail     int                  // of the first that goes on with any number of segments
}

func newPathNode() pathNode { return pathNode{end: none, tail: none} }

func (n *pathNode) add(p Path, place int) {
	left := strings.TrimPrefix(p.text, "/")
	for left != "" {
		var segment string
		segment, left, _ = strings.Cut(left, "/")
		if segment == rest {
			n.tail = min(n.tail, place)
			return
		}
		next := n.segments[segment]
		if next == nil {
			fresh := newPathNode()
			next = &fresh
			if n.segments == nil {
				n.segments = map[string]*pathNode{}
			}
			n.segments[segment] = next
		}
		n = next
	}
	n.end = min(n.end, place)
}

// find returns the place of the first pattern that matches what is left of a canonical path. It goes at most as deep as
// the longest pattern, and through no part of the tree twice.
func (n *pathNode) find(left string) int {
	if left == "" {
		return min(n.tail, n.end)
	}
	found := n.tail
	segment, left, _ := strings.Cut(left, "/")
	if next := n.segments[segment]; next != nil {
		found = min(found, next.find(left))
	}
	if next := n.segments[one]; next != nil {
		found = min(found, next.find(left))
	}
	return found
}
