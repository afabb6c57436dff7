package browser

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/chromedp/cdproto/dom"
	"github.com/chromedp/cdproto/runtime"
	"github.com/go-json-experiment/json/jsontext"

	protocol "github.com/chromedp/cdproto/cdp"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
)

// maxEvaluated bounds what evaluate returns, in bytes of JSON.
const maxEvaluated = 1 << 20

// evaluate runs the caller's JavaScript in the page's own world.
func (m *acting) evaluate(ctx context.Context, a Act) (any, error) {
	raw, err := m.runScript(ctx, scriptSource(a.Fn), a.Ref)
	if err != nil || raw == nil {
		return nil, err
	}
	var value any
	if err := cdp.Decode(raw, &value); err != nil {
		return nil, problem.Wrap(err, problem.ActOperationFailed, "return plain data", "evaluate: the result cannot be read")
	}
	return value, nil
}

// scriptSource is a function that runs a text that is a function or an expression. It adds no names to those that the
// text sees.
func scriptSource(fn string) string {
	return "function(){return((v,a)=>typeof v==='function'?v(...a):v)((\n" + fn + "\n),arguments)}"
}

// conditionSource is scriptSource for a condition: its result is a boolean.
func conditionSource(fn string) string {
	return "async function(){return!!(await(v=>typeof v==='function'?v():v)((\n" + fn + "\n)))}"
}

// runScript runs a function in the page's own world, with the element of ref, if any, and returns its JSON value. A
// script that does not end is stopped when the time is up.
func (m *acting) runScript(ctx context.Context, source, ref string) (jsontext.Value, error) {
	session := m.page.session
	var result *runtime.RemoteObject
	var exception *runtime.ExceptionDetails
	var err error
	yes := true
	if ref == "" {
		var answer runtime.EvaluateResult
		answer, err = cdp.Do(ctx, session, runtime.Evaluate, runtime.EvaluateParams{
			Expression: "(" + source + ")()", AwaitPromise: &yes, ReturnByValue: &yes, UserGesture: &yes})
		result, exception = answer.Result, answer.ExceptionDetails
	} else {
		var e *element
		e, err = m.page.find(ctx, Where{Ref: ref})
		if err != nil {
			return nil, err
		}
		defer e.release()
		session = e.session
		var object runtime.RemoteObjectID
		object, err = e.inPagesWorld(ctx)
		if err != nil {
			return nil, err
		}
		var answer runtime.CallFunctionOnResult
		answer, err = cdp.Do(ctx, session, runtime.CallFunctionOn, runtime.CallFunctionOnParams{
			FunctionDeclaration: source, ObjectID: object, Arguments: []*runtime.CallArgument{{ObjectID: object}},
			AwaitPromise: &yes, ReturnByValue: &yes, UserGesture: &yes})
		result, exception = answer.Result, answer.ExceptionDetails
	}
	var refused *cdp.Error
	switch {
	case err != nil && ctx.Err() != nil:
		tidy, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyTimeout)
		defer cancel()
		// Most likely it is the caller's script that does not end; the page is to go on without it.
		_, _ = cdp.Do(tidy, session, runtime.TerminateExecution, protocol.Empty{})
		return nil, err
	case errors.As(err, &refused):
		return nil, problem.Wrap(err, problem.ActOperationFailed, "return plain data, and do not leave the page while it is computed",
			"the script has no result: %s", m.page.b.shown(refused.Message, 300)).With("check", "script")
	case err != nil:
		return nil, err
	}
	return m.page.b.scriptValue(result, exception)
}

// inPagesWorld is a handle of the element in the world of the page's own scripts. It goes with the document.
func (e *element) inPagesWorld(ctx context.Context) (runtime.RemoteObjectID, error) {
	node, err := e.backendNode(ctx)
	if err != nil {
		return "", err
	}
	// Without a context, it is the page's own.
	resolved, err := cdp.Do(ctx, e.session, dom.ResolveNode,
		dom.ResolveNodeParams{BackendNodeID: protocol.BackendNodeID(node), ObjectGroup: worldName})
	if err != nil {
		return "", e.explain(gone(err))
	}
	if resolved.Object == nil {
		return "", stale(e.where.String())
	}
	return resolved.Object.ObjectID, nil
}

// scriptValue is the value that a script returned: nil for undefined.
func (b *Browser) scriptValue(result *runtime.RemoteObject, exception *runtime.ExceptionDetails) (jsontext.Value, error) {
	switch {
	case exception != nil:
		text := exception.Text
		if exception.Exception != nil && exception.Exception.Description != "" {
			text = exception.Exception.Description
		}
		return nil, problem.New(problem.ActOperationFailed, "correct the script", "the script threw: %s", b.shown(text, 1000)).
			With("check", "script")
	case result == nil:
		return nil, nil
	case len(result.Value) > maxEvaluated:
		return nil, problem.New(problem.ActOperationFailed, "return less", "the result has %d bytes, and %d are allowed",
			len(result.Value), maxEvaluated).With("check", "script")
	case result.UnserializableValue != "":
		// NaN, -0, a bigint: JSON has no word for them.
		return json.Marshal(b.shown(string(result.UnserializableValue), maxText))
	}
	return result.Value, nil
}

// callArguments encodes values for a function in a page.
func callArguments(values ...any) ([]*runtime.CallArgument, error) {
	out := make([]*runtime.CallArgument, 0, len(values))
	for _, value := range values {
		raw, err := json.Marshal(value)
		if err != nil {
			return nil, fmt.Errorf("encode an argument for the page: %w", err)
		}
		out = append(out, &runtime.CallArgument{Value: raw})
	}
	return out, nil
}
