package task

import (
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
)

// Bounds of a task.
const (
	maxGoal = 8000 // characters

	// DefaultSteps, DefaultTokens and DefaultTimeout are those of a request that does not say; the others are the most that it may.
	DefaultSteps, MaxSteps     = 25, 200
	DefaultTokens, MaxTokens   = 200_000, 10_000_000
	DefaultTimeout, MaxTimeout = 5 * time.Minute, 30 * time.Minute
	minTokens                  = 1000
)

// Request is what a caller may say about a task. Everything but the goal may be left out.
type Request struct {
	Goal      string          `json:"goal" doc:"the goal of the task, in words"`
	Agent     string          `json:"agent,omitempty" doc:"the name of the agent as which it is done, with its models, budget, rules and accounts; an agent leaves it out"`
	Model     string          `json:"model,omitempty" doc:"one that the agent may use; the only one, or the first that an operator named, when it is left out"`
	Dialect   Dialect         `json:"dialect,omitempty" enum:"anthropic,openai-chat,openai-responses" doc:"how the model is asked; anthropic or openai-chat, as its provider has it, when it is left out"`
	URL       string          `json:"url,omitempty" doc:"the page to begin with"`
	Schema    json.RawMessage `json:"schema,omitempty" doc:"a JSON Schema of the answer; any text when it is left out"`
	Pictures  bool            `json:"pictures,omitzero" doc:"show the model a picture of each page as well"`
	MaxSteps  int             `json:"max_steps,omitzero" doc:"answers of the model, 1 to 200; 25 when it is left out"`
	MaxTokens int64           `json:"max_tokens,omitzero" doc:"tokens of the model, in and out; 200000 when it is left out"`
	Timeout   string          `json:"timeout,omitempty" doc:"time for the whole task, such as 10m, at most 30m; 5m when it is left out"`
	// OpenRequest says what session to open. Its tenant is whose agent it is.
	session.OpenRequest
}

// plan is a Request with everything decided.
type plan struct {
	goal, url, model string
	dialect          Dialect
	schema           *answerSchema // nil: any text
	pictures         bool
	steps            int
	tokens           int64
	timeout          time.Duration
	session          session.OpenRequest
}

// plan validates a Request. Everything that is wrong is reported at once.
func (r Request) plan() (plan, error) {
	flaws := problem.ValidationError{Code: problem.BadRequest, Hint: "the fields and their values are in docs/run-task.md"}
	p := plan{goal: strings.TrimSpace(r.Goal), url: r.URL, model: r.Model, dialect: r.Dialect, pictures: r.Pictures, steps: r.MaxSteps,
		tokens: r.MaxTokens, timeout: DefaultTimeout, session: r.OpenRequest}
	if p.goal == "" {
		flaws.Add("goal", "it is missing")
	}
	if utf8.RuneCountInString(r.Goal) > maxGoal || !utf8.ValidString(r.Goal) {
		flaws.Add("goal", "it is not a text of at most %d characters", maxGoal)
	}
	if r.Dialect != "" && newDialect(r.Dialect) == nil {
		flaws.Add("dialect", "they are %s, %s and %s", Anthropic, Chat, Responses)
	}
	between := func(field string, given, minimum, maximum, otherwise int64) int64 {
		if given == 0 {
			return otherwise
		}
		if given < minimum || given > maximum {
			flaws.Code = problem.BadLimit
			flaws.Add(field, "it is not between %d and %d", minimum, maximum)
		}
		return given
	}
	p.steps = int(between("max_steps", int64(r.MaxSteps), 1, MaxSteps, DefaultSteps))
	p.tokens = between("max_tokens", r.MaxTokens, minTokens, MaxTokens, DefaultTokens)
	if r.Timeout != "" {
		var err error
		if p.timeout, err = texts.Duration(r.Timeout); err != nil {
			flaws.AddFlaw(problem.Flaw{Field: "timeout", Message: texts.Quote(r.Timeout, 40) + " is not a duration", Hint: "write a number with s, m, h or d, such as 10m"})
		} else if p.timeout < time.Second || p.timeout > MaxTimeout {
			flaws.Code = problem.BadLimit
			flaws.Add("timeout", "it is not between 1s and %s", MaxTimeout)
		}
	}
	// A model may think for as long as the task takes, and the session is not used meanwhile.
	p.session.Min = p.timeout
	if err := flaws.Err(); err != nil {
		return plan{}, err
	}
	if r.URL != "" {
		if err := (browser.Navigate{URL: r.URL}).Validate(); err != nil {
			return plan{}, err
		}
	}
	if len(r.Schema) > 0 {
		var err error
		if p.schema, err = readSchema(r.Schema); err != nil {
			return plan{}, err
		}
	}
	return p, nil
}
