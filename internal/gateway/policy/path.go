package policy

// Path says which paths a rule is about. The zero Path is about all of them.
//
//	/repos/clawjail     that path and nothing else
//	/repos/*/issues     * stands for exactly one segment
//	/repos/**           ** at the end stands for any number of segments, also none
type Path struct{ text string }

// String returns the form that ParsePath reads back.
func (p Path) String() string { return p.text }
