package browser

import (
	"context"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

// Tool is "tab".
func (TabAction) Tool() string { return "tab" }

// Target is what is done, and to which tab.
func (o TabAction) Target() string {
	return strings.TrimSpace(bounded(o.Action, 20) + " " + o.TargetID + recorded(o.URL))
}

// Effect is Looks for a list, and else Steers.
func (o TabAction) Effect() Effect {
	if o.Action == "list" {
		return Looks
	}
	return Steers
}

// Validate reports an action that is not known, and what is missing for it.
func (o TabAction) Validate() error {
	flaws := problem.ValidationError{Code: problem.BadRequest}
	switch o.Action {
	case "list", "close":
	case "new":
		checkLabel(&flaws, o.Label)
	case "label":
		if strings.TrimSpace(o.Label) == "" {
			flaws.Add("", "label is required")
		}
		checkLabel(&flaws, o.Label)
	case "select":
		if o.Index == nil && o.TargetID == "" {
			flaws.Add("", "targetId is required")
		}
	default:
		flaws.Hint = "action is list, new, label, close or select"
		flaws.Add("", "unknown tab action")
	}
	if o.Index != nil && *o.Index < 0 {
		flaws.Add("", "index must be a non-negative integer")
	}
	if o.Index != nil && o.TargetID != "" {
		flaws.Add("", "index and targetId name a tab both")
	}
	if err := flaws.Err(); err != nil {
		return err
	}
	if o.Action == "new" && o.URL != "" {
		_, err := CheckURL(o.URL)
		return err
	}
	return nil
}

// Limit is that of what is done.
func (o TabAction) Limit() time.Duration {
	if o.Action == "new" {
		return navigationTimeout
	}
	return closeTabTimeout
}

// Run does it.
func (o TabAction) Run(ctx context.Context, b *Browser) (any, error) {
	switch o.Action {
	case "list":
		tabs, err := b.list(ctx)
		return Done{OK: true, Tabs: tabs}, err
	case "new":
		address := o.URL
		if address == "" {
			address = blank
		}
		opened, err := OpenTab{URL: address, Label: o.Label, NewTab: true}.Run(ctx, b)
		if err != nil {
			return nil, err
		}
		tab := opened.(OpenTabResult).Tab
		return Done{OK: true, TargetID: tab.TabID, Tabs: []Tab{tab}}, nil
	}
	tab, err := o.find(ctx, b)
	if err != nil {
		return nil, err
	}
	switch o.Action {
	case "label":
		err = b.tabs.name(tab, o.Label)
	case "select":
		err = b.activate(ctx, tab)
	case "close":
		err = b.closeTab(ctx, tab)
	}
	return Done{OK: true, TargetID: tab.handle()}, err
}

func (o TabAction) find(ctx context.Context, b *Browser) (*record, error) {
	if o.Index == nil {
		return b.record(ctx, o.TargetID)
	}
	tabs, err := b.list(ctx)
	if err != nil {
		return nil, err
	}
	if *o.Index >= len(tabs) {
		return nil, problem.New(problem.TabNotFound, tabHint,
			"tab not found: there are %d tabs, and none at index %d", len(tabs), *o.Index)
	}
	return b.tabs.resolve(tabs[*o.Index].TargetID)
}

// Result is a *Done.
func (TabAction) Result() any { return new(Done) }
