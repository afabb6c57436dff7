package task

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/base/strict"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/browser/control"
	"github.com/clawjail/clawjail/internal/problem"
)

// The acts of a model, one in each step.
const (
	doClick    = "click"
	doType     = "type"
	doSelect   = "select"
	doPress    = "press"
	doScroll   = "scroll"
	doNavigate = "navigate"
	doBack     = "back"
	doWait     = "wait"
	doDone     = "done"
	doGiveUp   = "give_up"
)

const (
	toolName  = "act"
	toolAbout = "Do one thing with the page that is shown, or end the task."
	// usualWait and longestWait are how long a wait is.
	usualWait, longestWait = 2 * time.Second, 20 * time.Second
	maxNote                = 500
)

// toolSchema describes act to a model.
func toolSchema() json.RawMessage {
	return json.RawMessage(`{"type":"object","properties":{` +
		`"do":{"type":"string","enum":["click","type","select","press","scroll","navigate","back","wait","done","give_up"]},` +
		`"ref":{"type":"string","description":"click, type, select, scroll: the element, as the page shows it, such as e12; scroll without it: one page down"},` +
		`"text":{"type":"string","description":"type: what to put in the place of what is there; wait: what must appear"},` +
		`"submit":{"type":"boolean","description":"type: press Enter afterwards"},` +
		`"values":{"type":"array","items":{"type":"string"},"description":"select: the options"},` +
		`"key":{"type":"string","description":"press: such as Enter, Tab, PageUp"},` +
		`"url":{"type":"string","description":"navigate: where to"},` +
		`"seconds":{"type":"number","description":"wait: how long, at most 20"},` +
		`"answer":{"description":"done: the answer to the goal; in the form of the schema, if one is given"},` +
		`"reason":{"type":"string","description":"give_up: why the goal cannot be reached"},` +
		`"note":{"type":"string","description":"what to remember: only notes and the list of what was done are kept from step to step"}` +
		`},"required":["do"],"additionalProperties":false}`)
}

// act is one call of the tool. Nothing in it can name a tab, a selector, a file or a script.
type act struct {
	Do      string         `json:"do"`
	Ref     string         `json:"ref"`
	Text    *string        `json:"text"`
	Submit  bool           `json:"submit"`
	Values  []string       `json:"values"`
	Key     string         `json:"key"`
	URL     string         `json:"url"`
	Seconds float64        `json:"seconds"`
	Answer  jsontext.Value `json:"answer"`
	Reason  string         `json:"reason"`
	Note    string         `json:"note"`
}

// readAct reads the answer of a model. An error is for the model, and says nothing of what was in the answer but names.
func readAct(r reply) (act, error) {
	var a act
	if r.calls == 0 {
		return a, problem.New(problem.BadRequest, "", "the answer does not call the tool act")
	}
	if r.name != toolName {
		return a, problem.New(problem.BadRequest, "", "the only tool is act")
	}
	if err := strict.Object(r.arguments, &a, control.Fields); err != nil {
		return act{}, err
	}
	return a, nil
}

// operation is what is done with the browser for an act, in a tab. before is the page that back leads to; it may be empty.
func (a act) operation(tab, before string) (browser.Operation, error) {
	on := browser.Act{TargetID: tab, Ref: a.Ref}
	switch a.Do {
	case doClick:
		on.Kind = "click"
	case doType:
		on.Kind, on.Text, on.Submit = "type", a.Text, a.Submit
	case doSelect:
		on.Kind, on.Values = "select", a.Values
	case doPress:
		on.Kind, on.Ref, on.Key = "press", "", a.Key
	case doScroll:
		if a.Ref == "" {
			on.Kind, on.Key = "press", "PageDown"
		} else {
			on.Kind = "scrollIntoView"
		}
	case doWait:
		on.Kind, on.Ref = "wait", ""
		if a.Text != nil && *a.Text != "" {
			on.Text = a.Text
		} else {
			wait := usualWait
			if a.Seconds > 0 {
				wait = time.Duration(min(a.Seconds, longestWait.Seconds()) * float64(time.Second))
			}
			on.TimeMS = int(max(wait.Milliseconds(), 1))
		}
	case doNavigate:
		return checked(browser.Navigate{URL: a.URL, TargetID: tab})
	case doBack:
		if before == "" {
			return nil, problem.New(problem.BadRequest, "", "there is no page before this one")
		}
		return checked(browser.Navigate{URL: before, TargetID: tab})
	default:
		return nil, problem.New(problem.BadRequest, "", "do is not one of the known actions")
	}
	return checked(on)
}

// checked is an operation whose values are allowed, and that a client with the least access may do too.
func checked(op browser.Operation) (browser.Operation, error) {
	if err := op.Validate(); err != nil {
		return nil, err
	}
	if op.Effect() > browser.Steers {
		return nil, problem.New(problem.ActEvaluateDisabled, "", "a task runs no JavaScript")
	}
	return op, nil
}

// name is an act in a few words, for people: what was done, to which element. It never has what was typed.
func (a act) name(page string) string {
	switch a.Do {
	case doClick, doType, doSelect:
		return line(a.Do+" "+described(page, a.Ref), maxName)
	case doScroll:
		if a.Ref != "" {
			return line(a.Do+" to "+described(page, a.Ref), maxName)
		}
	case doPress:
		return line(a.Do+" "+a.Key, maxName)
	case doNavigate:
		return line(a.Do+" "+a.URL, maxName)
	}
	return line(a.Do, maxName)
}

// described is an element as the page shows it, such as: link "Orders"; its ref where the page does not have it.
func described(page, ref string) string {
	for l := range strings.Lines(page) {
		if before, _, found := strings.Cut(l, " [ref="+ref+"]"); found && ref != "" {
			return strings.TrimPrefix(strings.TrimSpace(before), "- ")
		}
	}
	return ref
}
