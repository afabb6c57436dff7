package browser

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/chromedp/cdproto/runtime"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// inspectTimeout bounds Query and DOM, which take milliseconds in a page that rests.
	inspectTimeout = 20 * time.Second
	maxCSS         = 4 << 10
	maxTargetID    = 200
	queryMost      = 20
	maxQuery       = 1000
)

// inspectScript is the function that looks at the document for Query and DOM; see the file.
//
//go:embed inpage/inspect.js
var inspectScript string

// inspection is what inspectScript is asked. Most is for a query, the rest for the document.
type inspection struct {
	Selector string `json:"selector"`
	Max      int    `json:"most,omitempty"`
	Format   string `json:"format,omitempty"`
	Chars    int    `json:"chars,omitempty"`
}

// inspect looks at the main document in its isolated world. The codes are bad_request for what is no selector and
// not_found when nothing matches the one selector of DOM.
func (p *Page) inspect(ctx context.Context, request inspection, result any) error {
	value, err := p.b.openly(func(texts []string) (jsontext.Value, error) { return p.inspectOnce(ctx, request, texts) })
	if err == nil {
		err = p.mainFrame().confirms(ctx, request.Selector)
	}
	if err != nil {
		return err
	}
	var failed struct{ Bad, None bool }
	if err := json.Unmarshal(value, &failed); err != nil {
		return fmt.Errorf("read what the page has: %w", err)
	}
	switch {
	case failed.Bad:
		return problem.New(problem.BadRequest, "correct the CSS selector", "%q is not a selector", bounded(request.Selector, 200))
	case failed.None:
		return problem.New(problem.NotFound, "take a snapshot to see what the page has", "no element matches %q", bounded(request.Selector, 200))
	}
	return cdp.Decode(value, result)
}

// inspectOnce asks the document once, without some texts; see [Browser.openly].
func (p *Page) inspectOnce(ctx context.Context, request inspection, texts []string) (jsontext.Value, error) {
	arguments, err := callArguments(request, concealing{texts})
	if err != nil {
		return nil, err
	}
	byValue := true
	var answer runtime.CallFunctionOnResult
	for range 3 { // the document may be replaced meanwhile
		world, worldErr := p.world(ctx)
		if worldErr != nil {
			return nil, worldErr
		}
		answer, err = cdp.Do(ctx, p.session, runtime.CallFunctionOn, runtime.CallFunctionOnParams{
			FunctionDeclaration: inPage(concealJS+inspectScript, "inspect"), ExecutionContextID: world, ReturnByValue: &byValue,
			Arguments: arguments,
		})
		var refused *cdp.Error
		if !errors.As(err, &refused) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	if answer.ExceptionDetails != nil || answer.Result == nil {
		return nil, problem.New(problem.ActOperationFailed, "take a snapshot instead", "the page could not be examined")
	}
	return jsontext.Value(answer.Result.Value), nil
}

// checkPlace checks what most operations on a page have.
func checkPlace(flaws *problem.ValidationError, targetID, selector string) {
	if len(targetID) > maxTargetID {
		flaws.Add("targetId", "it has %d bytes; %d are allowed", len(targetID), maxTargetID)
	}
	if len(selector) > maxCSS {
		flaws.Add("selector", "it has %d bytes; %d are allowed", len(selector), maxCSS)
	}
}

// Tool implements Operation.
func (Query) Tool() string { return "query" }

// Target implements Operation.
func (o Query) Target() string { return bounded(o.Selector, 200) }

// Effect implements Operation.
func (Query) Effect() Effect { return Looks }

// Validate implements Operation.
func (o Query) Validate() error {
	if o.Selector == "" {
		return problem.New(problem.BadRequest, "give a CSS selector", "selector is required")
	}
	flaws := problem.ValidationError{Code: problem.BadRequest}
	checkPlace(&flaws, o.TargetID, o.Selector)
	if o.Max < 0 || o.Max > maxQuery {
		flaws.Add("limit", "%d is not between 1 and %d", o.Max, maxQuery)
	}
	return flaws.Err()
}

// Limit implements Operation.
func (Query) Limit() time.Duration { return inspectTimeout }

// Result implements Operation.
func (Query) Result() any { return new(QueryResult) }

// Run implements Operation.
func (o Query) Run(ctx context.Context, b *Browser) (any, error) {
	p, err := b.tab(ctx, o.TargetID)
	if err != nil {
		return nil, err
	}
	request := inspection{Selector: o.Selector, Max: o.Max}
	if request.Max == 0 {
		request.Max = queryMost
	}
	out := QueryResult{TargetID: p.handle()}
	if err := p.inspect(ctx, request, &out); err != nil {
		return nil, err
	}
	out.Truncated = out.Total > len(out.Elements)
	return out, nil
}
