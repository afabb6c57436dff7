package browser

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

// Bounds of an action. Those with a sentence of their own are the control contract's.
const (
	maxClickDelay   = 5000
	maxWaitTime     = 30_000
	maxWindowSide   = 8192
	maxBatchActions = 100
	maxBatchDepth   = 5

	maxActText    = 200_000 // bytes that are typed or filled in
	maxActSlowly  = 2000    // bytes that are typed one by one
	maxActFn      = 100_000
	maxActLine    = 4096 // a selector, a glob, a text to wait for, a value to select
	maxActName    = 256  // a ref, a tab, a key
	maxActFields  = 200
	maxActValues  = 200
	maxCoordinate = 1_000_000
)

// The bounds of times that callers choose, in milliseconds: of timeouts, where an action that does not wait for something has a minute at
// most; of timeouts of operations that load a page; and of a wait for nothing but the time.
const (
	MinTimeoutMS, MaxTimeoutMS = minTimeout, maxWait
	MinNavigationMS            = minNavigation
	MaxWaitTimeMS              = maxWaitTime
)

// Timeouts of actions, in milliseconds; see [Act.Limit].
const (
	minTimeout         = 500
	maxInteraction     = 60_000
	maxWait            = 120_000
	defaultInteraction = 8 * time.Second
	defaultWait        = 20 * time.Second
	defaultAction      = 60 * time.Second
)

const waitNeeds = "wait requires at least one of: timeMs, text, textGone, selector, url, loadState, fn"

// Validate reports the first thing that is wrong, in the fixed sentences of the control contract.
func (a Act) Validate() error {
	if err := a.validate(0); err != nil {
		return err
	}
	if count := countActions(a.Actions); count > maxBatchActions {
		return invalidAct("split it", "batch exceeds maximum of %d actions", maxBatchActions)
	}
	return nil
}

func invalidAct(hint, format string, args ...any) error {
	return problem.New(problem.ActInvalidRequest, hint, format, args...)
}

func (a Act) validate(depth int) error {
	if !slices.Contains(actKinds(), a.Kind) {
		return problem.New(problem.ActKindRequired, "kind is one of "+strings.Join(actKinds(), ", "), "kind is required")
	}
	if a.Selector != "" && !slices.Contains(selectorKinds(), a.Kind) {
		return problem.New(problem.ActSelectorUnsupported, "take a snapshot, and give the element's ref",
			"%s does not take a selector", a.Kind)
	}
	if err := a.validateSizes(); err != nil {
		return err
	}
	if err := a.validateTimes(); err != nil {
		return err
	}
	return a.validateKind(depth)
}

func actKinds() []string {
	return []string{"batch", "click", "clickCoords", "close", "drag", "dragCoords", "evaluate", "fill", "hover", "press",
		"resize", "scrollIntoView", "select", "type", "wait"}
}

func selectorKinds() []string {
	return []string{"batch", "click", "drag", "hover", "scrollIntoView", "select", "type", "wait"}
}

// validateSizes bounds every text and list, whatever the kind.
func (a Act) validateSizes() error {
	for _, field := range []struct {
		name, value string
		limit       int
	}{
		{"targetId", a.TargetID, maxActName}, {"ref", a.Ref, maxActName}, {"startRef", a.StartRef, maxActName},
		{"endRef", a.EndRef, maxActName}, {"key", a.Key, maxActName}, {"selector", a.Selector, maxActLine},
		{"startSelector", a.StartSel, maxActLine}, {"endSelector", a.EndSel, maxActLine}, {"url", a.URL, maxActLine},
		{"textGone", a.TextGone, maxActLine}, {"fn", a.Fn, maxActFn},
	} {
		if len(field.value) > field.limit {
			return invalidAct("shorten it", "%s has more than %d bytes", field.name, field.limit)
		}
	}
	switch {
	case len(a.Values) > maxActValues:
		return invalidAct("select fewer", "select takes at most %d values", maxActValues)
	case slices.ContainsFunc(a.Values, func(value string) bool { return len(value) > maxActLine }):
		return invalidAct("", "a value has more than %d bytes", maxActLine)
	case len(a.Fields) > maxActFields:
		return invalidAct("fill in several actions", "fill takes at most %d fields", maxActFields)
	case a.Text != nil && a.Kind == "wait" && len(*a.Text) > maxActLine:
		return invalidAct("wait for a shorter text", "text has more than %d bytes", maxActLine)
	case a.Text != nil && len(*a.Text) > maxActText:
		return invalidAct("type it in parts", "text has more than %d bytes", maxActText)
	case a.Text != nil && a.Slowly && len(*a.Text) > maxActSlowly:
		return invalidAct("leave slowly out", "with slowly, text has at most %d bytes", maxActSlowly)
	}
	return nil
}

func (a Act) validateTimes() error {
	maximum := maxInteraction
	switch a.Kind {
	case "wait", "evaluate", "batch":
		maximum = maxWait
	}
	if a.TimeoutMS != 0 && (a.TimeoutMS < minTimeout || a.TimeoutMS > maximum) {
		return invalidAct("choose another, or leave it out", "%s timeoutMs must be between %d and %d", a.Kind, minTimeout, maximum)
	}
	if a.DelayMS < 0 {
		return invalidAct("", "delayMs must be a non-negative integer")
	}
	if a.DelayMS > maxClickDelay {
		return invalidAct("", "%s delayMs exceeds maximum of %dms", a.Kind, maxClickDelay)
	}
	if a.TimeMS < 0 {
		return invalidAct("", "timeMs must be a non-negative integer")
	}
	if a.TimeMS > maxWaitTime {
		return invalidAct("wait for what is to appear instead", "%s timeMs exceeds maximum of %dms", a.Kind, maxWaitTime)
	}
	return nil
}

func (a Act) validateKind(depth int) error {
	const refHint = "take a snapshot, and give the ref of the element, such as e12"
	located := a.Ref != "" || a.Selector != ""
	switch a.Kind {
	case "click", "hover", "scrollIntoView", "type":
		if !located {
			return invalidAct(refHint, "%s requires ref or selector", a.Kind)
		}
		if a.Kind == "type" && a.Text == nil {
			return invalidAct("", "type requires text")
		}
		return a.validateMouse()
	case "clickCoords":
		if !coordinates(a.X, a.Y) {
			return invalidAct("", "clickCoords requires non-negative x and y")
		}
		return a.validateMouse()
	case "drag":
		if a.StartRef == "" && a.StartSel == "" {
			return invalidAct(refHint, "drag requires startRef or startSelector")
		}
		if a.EndRef == "" && a.EndSel == "" {
			return invalidAct(refHint, "drag requires endRef or endSelector")
		}
	case "dragCoords":
		if !coordinates(a.X, a.Y, a.EndX, a.EndY) {
			return invalidAct("", "dragCoords requires non-negative x, y, endX, and endY")
		}
	case "press":
		if a.Key == "" {
			return invalidAct("such as Enter, or ControlOrMeta+a", "press requires key")
		}
		_, err := parseChord(a.Key)
		return err
	case "select":
		if !located || len(a.Values) == 0 {
			return invalidAct(refHint, "select requires ref/selector and values")
		}
	case "fill":
		return a.validateFields()
	case "resize":
		if a.Width <= 0 || a.Height <= 0 {
			return invalidAct("", "resize requires positive width and height")
		}
		if a.Width > maxWindowSide || a.Height > maxWindowSide {
			return invalidAct("", "resize width and height must not exceed %d", maxWindowSide)
		}
	case "wait":
		return a.validateWait()
	case "evaluate":
		if a.Fn == "" {
			return invalidAct("such as () => document.title", "evaluate requires fn")
		}
	case "batch":
		return a.validateBatch(depth)
	}
	return nil
}

func (a Act) validateMouse() error {
	switch a.Button {
	case "", "left", "right", "middle":
	default:
		return invalidAct("", "%s button must be left|right|middle", a.Kind)
	}
	for _, modifier := range a.Modifiers {
		switch modifier {
		case "Alt", "Control", "ControlOrMeta", "Meta", "Shift":
		default:
			return invalidAct("", "modifiers must be: Alt|Control|ControlOrMeta|Meta|Shift")
		}
	}
	if len(a.Modifiers) > 5 {
		return invalidAct("name each once", "there are five modifiers")
	}
	return nil
}

func coordinates(values ...*float64) bool {
	for _, value := range values {
		if value == nil || math.IsNaN(*value) || *value < 0 || *value > maxCoordinate {
			return false
		}
	}
	return true
}

func (a Act) validateFields() error {
	if len(a.Fields) == 0 {
		return invalidAct("fields is a list of {ref, type, value}", "fill requires fields")
	}
	for i, field := range a.Fields {
		if field.Ref == "" || len(field.Ref) > maxActName {
			return invalidAct("take a snapshot, and give the ref of the field", "field %d has no ref", i+1)
		}
		switch field.Type {
		case "", "text", "checkbox", "radio", "select":
		default:
			return invalidAct("", "the type of field %d must be text|checkbox|radio|select", i+1)
		}
		if _, err := fieldValue(field); err != nil {
			// The value may be a password: only its place is named.
			return invalidAct("value is a text, a number or a truth value", "the value of field %d cannot be filled in: %s", i+1, err)
		}
	}
	return nil
}

// fieldText is what a field is to hold, as text or as a truth value.
type fieldText struct {
	text    string
	checked bool
	// state says that the value is a truth value, or was written as one.
	state bool
}

func fieldValue(field ActField) (fieldText, error) {
	var out fieldText
	switch value := field.Value.(type) {
	case string:
		out.text = value
		out.state = value == "true" || value == "false"
		out.checked = value == "true"
	case bool:
		out = fieldText{text: fmt.Sprint(value), checked: value, state: true}
	case float64:
		out.text = formatNumber(value)
	case int:
		out.text = fmt.Sprint(value)
	default:
		return out, fmt.Errorf("it is neither a text, a number nor a truth value")
	}
	if len(out.text) > maxActText {
		return out, fmt.Errorf("it has more than %d bytes", maxActText)
	}
	if (field.Type == "checkbox" || field.Type == "radio") && !out.state {
		return out, fmt.Errorf("a %s is true or false", field.Type)
	}
	return out, nil
}

func (a Act) validateWait() error {
	if a.TimeMS == 0 && (a.Text == nil || *a.Text == "") && a.TextGone == "" && a.Selector == "" && a.URL == "" &&
		a.LoadState == "" && a.Fn == "" {
		return invalidAct("", waitNeeds)
	}
	switch a.LoadState {
	case "", "load", "domcontentloaded", "networkidle":
		return nil
	}
	return invalidAct("", "wait loadState must be load|domcontentloaded|networkidle")
}

func (a Act) validateBatch(depth int) error {
	if depth > maxBatchDepth {
		return invalidAct("put the actions into one list", "batch nesting exceeds maximum depth of %d", maxBatchDepth)
	}
	if len(a.Actions) == 0 {
		if depth > 0 {
			return invalidAct("", "batch requires actions")
		}
		return invalidAct("actions is a list of actions, such as {\"kind\": \"click\", \"ref\": \"e3\"}", "actions are required")
	}
	if len(a.Actions) > maxBatchActions {
		return invalidAct("split it", "batch exceeds maximum of %d actions", maxBatchActions)
	}
	for i, action := range a.Actions {
		if err := action.validate(depth + 1); err != nil {
			if e, ok := problem.As(err); ok {
				return e.With("action", i)
			}
			return err
		}
	}
	return nil
}

// countActions counts the actions of a batch whose depth has been checked.
func countActions(actions []Act) int {
	count := 0
	for _, action := range actions {
		count += 1 + countActions(action.Actions)
	}
	return count
}
