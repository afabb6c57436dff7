package supportbundle

import (
	"cmp"
	"encoding/json"
	"slices"
)

// Tally counts rows of the audit log by what they are of, and keeps nothing else of them.
type Tally map[Tallied]int

// Tallied is what rows have in common.
type Tallied struct {
	Action string `json:"action"`
	Phase  string `json:"phase"`
	Result string `json:"result,omitempty"`
	Code   string `json:"code,omitempty"`
}

// Add counts a row. Of its detail only the code of an error counts.
func (t Tally) Add(action, phase, result string, detail []byte) {
	var d struct {
		Code string `json:"code"`
	}
	_ = json.Unmarshal(detail, &d) // one that is none has no code
	t[Tallied{action, phase, result, d.Code}]++
}

// MarshalJSON is a list, the most frequent first.
func (t Tally) MarshalJSON() ([]byte, error) {
	type row struct {
		Tallied
		Rows int `json:"rows"`
	}
	out := []row{}
	for what, n := range t {
		out = append(out, row{what, n})
	}
	slices.SortFunc(out, func(a, b row) int {
		return cmp.Or(cmp.Compare(b.Rows, a.Rows), cmp.Compare(a.Action, b.Action), cmp.Compare(a.Phase, b.Phase), cmp.Compare(a.Result, b.Result), cmp.Compare(a.Code, b.Code))
	})
	return json.Marshal(out)
}
