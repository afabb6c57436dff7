package op

import "github.com/clawjail/clawjail/internal/problem"

// ProblemType is the kind of content of a [Problem].
const ProblemType = "application/problem+json"

// Problem is an error as it is sent: a problem of RFC 9457 with the members of a problem.Error beside the standard's.
// It is an error itself, so that handlers can return it.
type Problem struct {
	Type   string `json:"type" doc:"about:blank: the code says which problem it is"`
	Title  string `json:"title" doc:"the text of the status"`
	Status int    `json:"status"`
	Detail string `json:"detail" doc:"one sentence"`
	Code   string `json:"code" doc:"stable, for programs"`
	Hint   string `json:"hint,omitempty" doc:"the next step: what to do about the problem"`
	// Errors are there when several things are wrong.
	Errors  []problem.Flaw `json:"errors,omitempty" doc:"everything that is wrong, when it is more than one thing"`
	Details map[string]any `json:"details,omitempty" doc:"further facts"`
	// Text is for clients of the aliases.
	Text string `json:"error,omitempty" doc:"detail once more, in answers of the aliases"`
}

// Error implements error.
func (p *Problem) Error() string { return p.Detail }

// GetStatus implements huma.StatusError.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType implements huma.ContentTypeFilter.
func (p *Problem) ContentType(string) string { return ProblemType }
