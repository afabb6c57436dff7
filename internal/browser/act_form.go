package browser

import (
	"context"
	_ "embed"

	"github.com/clawjail/clawjail/internal/problem"
)

//go:embed inpage/form.js
var formJS string

// selectValues selects options by their values or labels.
func (m *acting) selectValues(ctx context.Context, a Act) error {
	return m.choose(ctx, Where{Ref: a.Ref, Selector: a.Selector}, a.Values)
}

// choose waits for the options too: a list may be filled after it was drawn.
func (m *acting) choose(ctx context.Context, where Where, values []string) error {
	var last error
	for attempt := 1; ; attempt++ {
		err := m.tryChoose(ctx, where, values)
		if err != nil && ctx.Err() != nil && last != nil {
			return last // it says more than that this look was cut off
		}
		if e, ok := problem.As(err); !ok || e.Details["check"] != "options" {
			return err
		}
		last = err
		pause(ctx, retryPause(attempt))
	}
}

func (m *acting) tryChoose(ctx context.Context, where Where, values []string) error {
	e, _, err := m.ready(ctx, where, needs{Enabled: true, Hit: true})
	if err != nil {
		return err
	}
	defer e.release()
	var chosen struct {
		None    bool     `json:"none"`
		Single  bool     `json:"single"`
		Missing []int    `json:"missing"`
		Known   []string `json:"known"`
	}
	if err := e.call(ctx, inPage(formJS, "choose"), &chosen, values); err != nil {
		return err
	}
	switch {
	case chosen.None:
		return problem.New(problem.ActOperationFailed, "click it, take a new snapshot, and click what you want",
			"%s is not a list to select from", where).With("check", "select")
	case chosen.Single:
		return problem.New(problem.ActOperationFailed, "give one value", "%s takes one value only", where).With("check", "select")
	case len(chosen.Missing) > 0:
		for i, label := range chosen.Known {
			chosen.Known[i] = bounded(label, 60)
		}
		return problem.New(problem.ActOperationFailed, "select one of the options that it has",
			"%s has no option that can be selected for value %d of those given", where, chosen.Missing[0]+1).
			With("check", "options").With("options", chosen.Known[:min(len(chosen.Known), 20)])
	}
	return nil
}

// fill fills in one field after the other.
func (m *acting) fill(ctx context.Context, a Act) error {
	for i, field := range a.Fields {
		value, err := fieldValue(field)
		if err != nil {
			return err
		}
		if err := m.fillOne(ctx, field, value); err != nil {
			if e, ok := problem.As(err); ok && len(a.Fields) > 1 {
				return e.With("field", i)
			}
			return err
		}
	}
	return nil
}

func (m *acting) fillOne(ctx context.Context, field ActField, value fieldText) error {
	where := Where{Ref: field.Ref}
	kind, err := m.kindOf(ctx, where)
	if err != nil {
		return err
	}
	switch kind {
	case "select":
		return m.choose(ctx, where, []string{value.text})
	case "checkbox", "radio":
		return m.check(ctx, where, kind, value)
	}
	e, _, err := m.ready(ctx, where, needs{Enabled: true, Editable: true, Hit: true})
	if err != nil {
		return err
	}
	defer e.release()
	if kind == "picked" {
		var took bool
		if err := e.call(ctx, inPage(formJS, "pick"), &took, value.text); err != nil {
			return err
		}
		if !took {
			return problem.New(problem.ActOperationFailed, "write dates as 2026-01-31, times as 13:45, colours as #ff0000",
				"%s does not take such a value", where).With("check", "value")
		}
		return nil
	}
	if err := m.focus(ctx, e, "all"); err != nil {
		return err
	}
	if value.text == "" {
		erase, _ := keyNamed("Delete")
		return (&keyboard{session: m.page.session}).tap(ctx, erase, 0)
	}
	return m.insert(ctx, value.text)
}

func (m *acting) kindOf(ctx context.Context, where Where) (string, error) {
	e, err := m.page.find(ctx, where)
	if err != nil {
		return "", err
	}
	defer e.release()
	var kind string
	err = e.call(ctx, inPage(formJS, "kindOf"), &kind)
	return kind, err
}

// check clicks a box or a button of a group until it is in the state that is wanted: once, and then it looks for a while whether that was enough.
func (m *acting) check(ctx context.Context, where Where, kind string, value fieldText) error {
	if !value.state {
		return problem.New(problem.ActOperationFailed, "give true or false", "%s is a %s: it is true or false", where, kind).
			With("check", "value")
	}
	checked, err := m.checkedState(ctx, where)
	if err != nil || checked == value.checked {
		return err
	}
	if kind == "radio" && !value.checked {
		return problem.New(problem.ActOperationFailed, "choose another one of its group", "%s cannot be switched off by itself", where).
			With("check", "value")
	}
	if err := m.click(ctx, Act{Kind: "click", Ref: where.Ref, Selector: where.Selector}); err != nil {
		return err
	}
	for attempt := 0; ; attempt++ {
		checked, err := m.checkedState(ctx, where)
		if err != nil || checked == value.checked {
			return err
		}
		if attempt == 10 || !pause(ctx, retryPause(attempt)) {
			return problem.New(problem.ActOperationFailed, "take a new snapshot", "%s was clicked and did not change", where).
				With("check", "state")
		}
	}
}

func (m *acting) checkedState(ctx context.Context, where Where) (bool, error) {
	e, err := m.page.find(ctx, where)
	if err != nil {
		return false, err
	}
	defer e.release()
	var checked bool
	err = e.call(ctx, inPage(formJS, "checkedState"), &checked)
	return checked, err
}
