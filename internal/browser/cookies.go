package browser

import (
	"context"
	"errors"
	"slices"

	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/target"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/problem"
)

// inContext are the parameters of what is done to the jar of one browser context. Without an id it is the default one.
type inContext struct {
	BrowserContextID string `json:"browserContextId,omitempty"`
}

// Contexts are the ids of the browser contexts beside the default one, without those that are hidden. Each has a jar of its own.
func (b *Browser) Contexts(ctx context.Context) ([]string, error) {
	result, err := cdp.Do(ctx, b.conn.Browser(), target.GetBrowserContexts, protocol.Empty{})
	if err != nil {
		return nil, explain(err, "list the contexts")
	}
	out := make([]string, 0, len(result.BrowserContextIDs))
	for _, id := range result.BrowserContextIDs {
		if !b.hiddenContext(string(id)) {
			out = append(out, string(id))
		}
	}
	return out, nil
}

// Cookies returns the jar of a context; the empty id is the default one. The caller wipes it, with cookies.Wipe.
func (b *Browser) Cookies(ctx context.Context, browserContext string) ([]cookies.Cookie, error) {
	var answer struct {
		Cookies jsontext.Value `json:"cookies"`
	}
	if err := b.conn.Call(ctx, "", "Storage.getCookies", inContext{browserContext}, &answer); err != nil {
		return nil, explain(err, "read the cookies")
	}
	defer clear(answer.Cookies)
	list, err := cookies.Decode(answer.Cookies)
	if err != nil {
		return nil, problem.Wrap(err, problem.Internal, "", "the browser answered with cookies that cannot be read")
	}
	return list, nil
}

// SetCookies sets cookies in a context, all of them or none. The code is bad_cookie when the browser does not take
// them; it does not say which. Cookies that it takes and drops all the same are found by reading them back.
func (b *Browser) SetCookies(ctx context.Context, browserContext string, list []cookies.Cookie) error {
	params := cookies.Params(list)
	defer clear(params)
	err := b.conn.Call(ctx, "", "Storage.setCookies", struct {
		inContext
		Cookies jsontext.Value `json:"cookies"`
	}{inContext{browserContext}, jsontext.Value(params)}, nil)
	var refused *cdp.Error
	if errors.As(err, &refused) {
		// It has the same code for a context that is gone, which is no fault of the cookies.
		if browserContext != "" {
			others, err := b.Contexts(ctx)
			if err != nil {
				return err
			}
			if !slices.Contains(others, browserContext) {
				return problem.New(problem.Conflict, "", "the browser context was closed")
			}
		}
		// The browser's words may quote what it was given.
		return problem.New(problem.BadCookie, "", "the browser does not take the cookies")
	}
	return explain(err, "set cookies")
}
