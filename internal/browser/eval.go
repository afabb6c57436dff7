package browser

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/chromedp/cdproto/runtime"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	evalTimeout    = 20 * time.Second
	maxEvalTimeout = 120 * time.Second
	// evalReserve is what is left of the limit to say how it went, when a script is ended for its time.
	evalReserve = 2 * time.Second
	maxScript   = 1 << 20
	// maxValue bounds a value, in characters of its JSON.
	maxValue = 1 << 20
	// maxThrown is where result.js cuts a text that was thrown, in UTF-16.
	maxThrown = 4096
	// evalGroup names the handles of evaluations.
	evalGroup = "clawjail-eval"
)

// resultScript is the function that looks at a result; see the file.
//
//go:embed inpage/result.js
var resultScript string

// Tool implements Operation.
func (Eval) Tool() string { return "eval" }

// Target implements Operation. A script may contain anything, so it is not told.
func (o Eval) Target() string { return bounded(o.TargetID, maxTargetID) }

// Effect implements Operation.
func (Eval) Effect() Effect { return Evaluates }

// Validate implements Operation.
func (o Eval) Validate() error {
	if strings.TrimSpace(o.JS) == "" {
		return problem.New(problem.BadRequest, "give JavaScript to evaluate", "js is required")
	}
	flaws := problem.ValidationError{Code: problem.BadRequest}
	checkPlace(&flaws, o.TargetID, "")
	if len(o.JS) > maxScript {
		flaws.Add("js", "it has %d bytes; %d are allowed", len(o.JS), maxScript)
	}
	timeoutWithin(&flaws, o.TimeoutMS, minTimeout, int(maxEvalTimeout.Milliseconds()))
	return flaws.Err()
}

// Limit implements Operation.
func (o Eval) Limit() time.Duration { return limit(o.TimeoutMS, evalTimeout) + evalReserve }

// Result implements Operation.
func (Eval) Result() any { return new(EvalResult) }

// Run implements Operation. An exception that the script throws is a result. A script that is not done in time is ended, with the
// code timeout; the code is act_operation_failed when the page went away meanwhile.
func (o Eval) Run(ctx context.Context, b *Browser) (any, error) {
	p, err := b.tab(ctx, o.TargetID)
	if err != nil {
		return nil, err
	}
	running, cancel := context.WithTimeout(ctx, limit(o.TimeoutMS, evalTimeout))
	defer cancel()
	out, err := p.evaluate(running, o)
	if err == nil {
		return out, nil
	}
	var refused *cdp.Error
	switch {
	case running.Err() != nil, errors.As(err, &refused) && strings.Contains(refused.Message, "terminated"):
		p.terminate()
		return nil, problem.Wrap(err, problem.Timeout, "give it more time with timeoutMs, or let it do less", "the script took too long and was ended")
	case refused != nil:
		return nil, problem.Wrap(err, problem.ActOperationFailed, "look at the page and try again",
			"the page went away while the script ran")
	}
	return nil, err
}

// terminate ends the script that runs in the page, be it ours or the page's.
func (p *Page) terminate() { p.quietly(runtime.TerminateExecution.Method) }

// evaluation is what a script ended with.
type evaluation struct {
	Type      string `json:"type"`
	Thrown    bool   `json:"thrown"`
	Text      string `json:"text"`
	JSON      string `json:"json"`
	Length    int    `json:"length"`
	Truncated bool   `json:"truncated"`
}

// evaluate runs the script such that its value stays in the page until its size is known. That takes an expression:
// the value of statements comes as it is.
func (p *Page) evaluate(ctx context.Context, o Eval) (EvalResult, error) {
	out := EvalResult{TargetID: p.handle()}
	form, function := "(() => { try { return [(\n%s\n)] } catch (e) { return [undefined, e] } })()", "(\n%s\n)"
	if o.Await {
		form = "(async () => { try { return [await (\n%s\n)] } catch (e) { return [undefined, e] } })()"
		function = "(async () => (\n%s\n))"
	}
	compiled, err := cdp.Do(ctx, p.session, runtime.CompileScript, runtime.CompileScriptParams{Expression: fmt.Sprintf(function, o.JS)})
	if err != nil {
		return out, err
	}
	isExpression := compiled.ExceptionDetails == nil
	expression := o.JS
	if isExpression {
		expression = fmt.Sprintf(form, o.JS)
	}
	defer p.releaseGroup()
	params := runtime.EvaluateParams{Expression: expression, ObjectGroup: evalGroup, AwaitPromise: &o.Await}
	if !isExpression {
		params.ReplMode = &o.Await // for await among statements
	}
	if deadline, ok := ctx.Deadline(); ok {
		params.Timeout = runtime.TimeDelta(max(time.Until(deadline).Milliseconds(), 1))
	}
	answer, err := cdp.Do(ctx, p.session, runtime.Evaluate, params)
	if err != nil {
		return out, err
	}
	if answer.ExceptionDetails != nil {
		out.Type, out.Exception = "exception", p.exceptionText(answer.ExceptionDetails)
		return out, nil
	}
	if answer.Result == nil {
		return out, errors.New("the page gave no result")
	}
	read := p.unwrap
	if !isExpression {
		read = p.describe
	}
	got, err := read(ctx, out, answer.Result)
	var refused *cdp.Error
	if errors.As(err, &refused) && ctx.Err() == nil {
		// The script did what it should; its value has gone with the document that it replaced.
		out.Type, out.Description = "undefined", "the page was replaced before the value could be read"
		return out, nil
	}
	return got, err
}

// unwrap looks at the list that an expression was made into.
func (p *Page) unwrap(ctx context.Context, out EvalResult, list *runtime.RemoteObject) (EvalResult, error) {
	found, err := p.measure(ctx, list.ObjectID, resultScript)
	if err != nil {
		return out, err
	}
	out.Type = found.Type
	switch {
	case found.Thrown && found.Type != "object" && found.Type != "function":
		out.Type, out.Exception = "exception", first(found.Text, found.JSON, found.Type)
		return out, nil
	case found.Type == "object" || found.Type == "function" || found.Type == "symbol" || found.Type == "bigint" || found.Type == "number":
		object, err := p.onObject(ctx, list.ObjectID, "function () { return this[this.length - 1] }", false)
		if err != nil {
			return out, err
		}
		if found.Thrown {
			out.Type, out.Exception = "exception", p.b.shown(first(object.Description, object.ClassName, "an object"), maxText)
			return out, nil
		}
		out.see(p.b, object)
	}
	out.take(found)
	return out, nil
}

// describe makes the result of statements: a value that is in the answer, or an object that is in the page.
func (p *Page) describe(ctx context.Context, out EvalResult, object *runtime.RemoteObject) (EvalResult, error) {
	out.Type = string(object.Type)
	out.see(p.b, object)
	if object.ObjectID == "" {
		switch {
		case len(object.Value) > maxValue:
			out.Truncated = true
			out.Description = fmt.Sprintf("a value of %d bytes; %d are allowed", len(object.Value), maxValue)
		case object.Value != nil:
			out.take(evaluation{JSON: string(object.Value)})
		}
		return out, nil
	}
	found, err := p.measure(ctx, object.ObjectID, "function (most) { return ("+resultScript+").call([this], most) }")
	if err != nil {
		return out, err
	}
	out.take(found)
	return out, nil
}

func (p *Page) measure(ctx context.Context, object runtime.RemoteObjectID, function string) (evaluation, error) {
	var found evaluation
	answer, err := p.onObject(ctx, object, function, true, maxValue)
	if err != nil {
		return found, err
	}
	if len(answer.Value) > 2*maxValue*6 || cdp.Decode([]byte(answer.Value), &found) != nil {
		return found, problem.New(problem.ActOperationFailed, "", "the page did not let its result be read")
	}
	// The page has cut its text before anybody looked through it.
	cut := maxValue
	if found.Thrown {
		cut = maxThrown
	}
	found.Text = p.b.uncut(found.Text, cut)
	return found, nil
}

// onObject runs a function on an object of the page's own world. A promise is not waited for, and neither is what a
// page made look like one.
func (p *Page) onObject(ctx context.Context, object runtime.RemoteObjectID, function string, byValue bool, args ...int) (*runtime.RemoteObject, error) {
	params := runtime.CallFunctionOnParams{FunctionDeclaration: function, ObjectID: object, ReturnByValue: &byValue, ObjectGroup: evalGroup}
	for _, arg := range args {
		params.Arguments = append(params.Arguments, &runtime.CallArgument{Value: strconv.AppendInt(nil, int64(arg), 10)})
	}
	answer, err := cdp.Do(ctx, p.session, runtime.CallFunctionOn, params)
	if err != nil {
		return nil, err
	}
	if answer.ExceptionDetails != nil || answer.Result == nil {
		return nil, problem.New(problem.ActOperationFailed, "", "the page did not let its result be read")
	}
	return answer.Result, nil
}

// see takes what DevTools says about a value that JSON does not tell, or not well.
func (o *EvalResult) see(b *Browser, object *runtime.RemoteObject) {
	switch object.Type {
	case runtime.RemoteObjectTypeFunction, runtime.RemoteObjectTypeSymbol, runtime.RemoteObjectTypeBigint:
		o.Description = b.shown(first(object.Description, string(object.UnserializableValue)), maxText)
	case runtime.RemoteObjectTypeNumber:
		o.Description = bounded(string(object.UnserializableValue), 100) // NaN, Infinity, -0
	case runtime.RemoteObjectTypeObject:
		if object.Subtype != "" && object.Subtype != runtime.RemoteObjectSubtypeArray && object.Subtype != runtime.RemoteObjectSubtypeNull {
			o.Description = b.shown(object.Description, maxText)
		}
	}
}

// take takes the value in.
func (o *EvalResult) take(found evaluation) {
	switch {
	case found.Truncated:
		o.Value, o.Truncated = found.Text, true
	case found.Length > 0:
		o.Truncated = true
		o.Description = first(o.Description, fmt.Sprintf("a value with %d characters of JSON; %d are allowed", found.Length, maxValue))
	case found.JSON != "" && o.Type != "bigint":
		// A text that is not JSON after all has no value: the page may have made it up.
		if err := cdp.Decode([]byte(found.JSON), &o.Value); err != nil {
			o.Value = nil
		}
	}
	if o.Type == "null" {
		o.Type = "object"
	}
	if o.Value == nil && o.Type == "object" {
		o.Description = first(o.Description, "null")
	}
}

func (p *Page) exceptionText(details *runtime.ExceptionDetails) string {
	if e := details.Exception; e != nil {
		var text string
		if json.Unmarshal(e.Value, &text) == nil && text != "" {
			return p.b.shown(text, maxText)
		}
		return p.b.shown(first(e.Description, string(e.Value), details.Text), maxText)
	}
	return p.b.shown(details.Text, maxText)
}

// releaseGroup gives the handles of evaluations back, which the page would keep else.
func (p *Page) releaseGroup() {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	_ = p.session.Call(ctx, runtime.ReleaseObjectGroup.Method, runtime.ReleaseObjectGroupParams{ObjectGroup: evalGroup}, nil)
}
