package mcp

import (
	"bytes"
	"errors"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
)

// where says whose browser a call is for.
type where struct {
	Target  string `json:"target"`
	Session string `json:"session"`
}

func (w where) aim() where          { return w }
func (w where) chars() (int, error) { return defaultChars, nil }

// reading is where, and how much of a page the answer may have.
type reading struct {
	where
	MaxChars int `json:"maxChars"`
}

func (r reading) chars() (int, error) { return chars(r.MaxChars) }

// The arguments of the tools. Those of an operation are what the control contract calls them.
type (
	closeArguments struct {
		Session string `json:"session"`
	}
	tabsArguments struct {
		where
		browser.TabAction
	}
	navigateArguments struct {
		where
		browser.Navigate
		Snapshot bool `json:"snapshot"`
	}
	snapshotArguments struct {
		where
		browser.Snapshot
	}
	actArguments struct {
		where
		browser.Act
		Snapshot bool `json:"snapshot"`
	}
	screenshotArguments struct {
		where
		browser.Screenshot
		MaxWidth int `json:"maxWidth"`
	}
	queryArguments struct {
		reading
		browser.Query
	}
	evalArguments struct {
		reading
		browser.Eval
	}
	taskArguments struct {
		session.OpenRequest
		goalArguments
		Steps       []jsontext.Value `json:"steps"`
		StopOnError *bool            `json:"stopOnError"`
		Screenshot  *bool            `json:"screenshot"`
		TimeoutMS   int              `json:"timeoutMs"`
		MaxChars    int              `json:"maxChars"`
	}
	noArguments struct{}
)

func (a snapshotArguments) chars() (int, error) { return chars(a.MaxChars) }

// inToolsList is the hint of [arguments] where nothing better is known; see [tool.explain].
const inToolsList = "the arguments of a tool are in tools/list"

// noArgument refuses an argument that is not there.
func noArgument(name string) error {
	return problem.New(problem.BadRequest, inToolsList, "there is no argument %s here", line(name, 60))
}

// arguments reads what a client sent, strictly: what is not known is an error and not forgotten. An error names the
// argument and never what was in it.
func arguments[T any](raw []byte) (T, error) {
	var out, none T
	if len(bytes.TrimSpace(raw)) == 0 || string(raw) == "null" {
		return out, nil
	}
	if jsontext.Value(bytes.TrimSpace(raw)).Kind() != '{' {
		return none, problem.New(problem.BadRequest, "", "the arguments are not an object")
	}
	err := json.Unmarshal(raw, &out, json.RejectUnknownMembers(true), json.WithUnmarshalers(json.UnmarshalFromFunc(grantOf)))
	if err == nil {
		return out, nil
	}
	const hint = inToolsList
	var syntax *jsontext.SyntacticError
	var meaning *json.SemanticError
	switch {
	case errors.As(err, &syntax) && errors.Is(err, jsontext.ErrDuplicateName):
		return none, problem.New(problem.BadRequest, "", "the argument %s is there twice", named(syntax.JSONPointer))
	case errors.As(err, &meaning) && errors.Is(err, json.ErrUnknownName):
		return none, noArgument(named(meaning.JSONPointer))
	case errors.As(err, &meaning):
		return none, problem.New(problem.BadRequest, hint, "the argument %s has the wrong type", named(meaning.JSONPointer))
	}
	return none, problem.New(problem.BadRequest, hint, "the arguments cannot be read")
}

// grantOf reads the token of a grant, which prints as [redacted] from then on.
func grantOf(d *jsontext.Decoder, token *grant.Token) error {
	value, err := d.ReadToken()
	if err != nil {
		return err
	}
	if value.Kind() != '"' {
		return errors.New("it is not a text")
	}
	*token = grant.ParseToken(value.String())
	return nil
}

// named is an argument as its writer knows it: steps.2.url.
func named(p jsontext.Pointer) string {
	var parts []string
	for token := range p.Tokens() {
		parts = append(parts, token)
	}
	return line(strings.Join(parts, "."), 60)
}

// step is one step of a task, with the word that the client has for it.
type step struct {
	do string
	op browser.Operation
}

// stepArguments are those of a step, beside what it does.
func stepArguments[T any](raw []byte) (T, error) {
	a, err := arguments[struct {
		Do string `json:"do"`
		Of T      `json:",inline"`
	}](raw)
	return a.Of, err
}

// stepOf reads one step of a task: what to do, and the arguments of that.
func stepOf(raw jsontext.Value) (step, error) {
	var head struct {
		Do string `json:"do"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return step{}, problem.New(problem.BadRequest, "", "the step is not an object with do")
	}
	switch head.Do {
	case "navigate":
		a, err := stepArguments[browser.Navigate](raw)
		return step{head.Do, a}, err
	case "open":
		a, err := stepArguments[browser.OpenTab](raw)
		return step{head.Do, a}, err
	case "snapshot":
		a, err := stepArguments[browser.Snapshot](raw)
		return step{head.Do, short(a)}, err
	case "screenshot":
		a, err := stepArguments[browser.Screenshot](raw)
		return step{head.Do, small(a)}, err
	case "query":
		a, err := stepArguments[browser.Query](raw)
		return step{head.Do, a}, err
	case "eval":
		a, err := stepArguments[browser.Eval](raw)
		return step{head.Do, a}, err
	case "text":
		a, err := stepArguments[browser.DOM](raw)
		if a.Format == "" {
			a.Format = "text"
		}
		if a.MaxChars == 0 {
			a.MaxChars = maxStepChars
		}
		return step{head.Do, a}, err
	case "":
		return step{}, problem.New(problem.BadRequest, stepHint, "the step does not say what to do")
	}
	a, err := stepArguments[browser.Act](raw)
	if err != nil {
		return step{}, err
	}
	if head.Do != "act" {
		a.Kind = head.Do
	}
	return step{a.Kind, a}, nil
}

const stepHint = `do is navigate, open, snapshot, screenshot, query, text, eval, or a kind of browser_act: {"do":"click","selector":"#go"}`

// short bounds the text of a snapshot, unless the caller says how long it may be. Nothing else is decided for the
// caller: the page's text is a part of the answer.
func short(o browser.Snapshot) browser.Snapshot {
	if o.MaxChars == 0 && (o.Format == "" || o.Format == "ai") {
		o.MaxChars = defaultChars
	}
	return o
}

// small makes a picture a JPEG of medium quality, unless the caller says how it shall be.
func small(o browser.Screenshot) browser.Screenshot {
	if o.Type == "" {
		o.Type = browser.JPEG
	}
	if o.Type == browser.JPEG && o.Quality == 0 {
		o.Quality = 70
	}
	return o
}
