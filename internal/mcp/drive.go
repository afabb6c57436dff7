package mcp

import (
	"context"
	"fmt"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/problem"
)

// aimed reads the arguments of a tool that drives a browser, and finds that browser. limit is how many characters the answer may have.
func aimed[A interface {
	aim() where
	chars() (int, error)
}](ctx context.Context, s *Server, c *call) (a A, t Target, limit int, err error) {
	if a, err = arguments[A](c.raw); err != nil {
		return a, t, 0, err
	}
	if limit, err = a.chars(); err != nil {
		return a, t, 0, err
	}
	t, err = s.target(ctx, c, a.aim())
	return a, t, limit, err
}

func (s *Server) tabs(ctx context.Context, c *call) (*sdk.CallToolResult, error) {
	a, t, _, err := aimed[tabsArguments](ctx, s, c)
	if err != nil {
		return nil, err
	}
	if a.Action == "" {
		a.Action = "list"
	}
	done, err := drive[browser.Done](ctx, s, c, t, a.TabAction)
	if err != nil {
		return nil, err
	}
	if a.Action == "list" || len(done.Tabs) > 0 {
		return answer(tabsText(done.Tabs)), nil
	}
	return answer("done: " + a.Action + " " + line(done.TargetID, 40)), nil
}

func (s *Server) navigate(ctx context.Context, c *call) (*sdk.CallToolResult, error) {
	a, t, _, err := aimed[navigateArguments](ctx, s, c)
	if err != nil {
		return nil, err
	}
	p, err := s.visit(ctx, c, t, a.Navigate)
	if err != nil {
		return nil, err
	}
	return s.shown(ctx, c, t, a.TargetID, p.text(), a.Snapshot), nil
}

// shown is an answer with a snapshot of the page, if the caller wants one. That there is none does not undo what was done.
func (s *Server) shown(ctx context.Context, c *call, t Target, tab, done string, wanted bool) *sdk.CallToolResult {
	if !wanted {
		return answer(done)
	}
	shot, err := drive[browser.SnapshotResult](ctx, s, c, t, short(browser.Snapshot{TargetID: tab}))
	if err != nil {
		return answer(done + "\nno snapshot: " + line(problem.CodeOf(err), 40))
	}
	text := snapshotText(shot, defaultChars)
	// Where the page is was said already.
	if first, rest, ok := strings.Cut(text, "\n"); ok && strings.HasSuffix(done, first) {
		text = rest
	}
	return answer(done + "\n" + text)
}

func (s *Server) snapshot(ctx context.Context, c *call) (*sdk.CallToolResult, error) {
	a, t, limit, err := aimed[snapshotArguments](ctx, s, c)
	if err != nil {
		return nil, err
	}
	if a.Format != "" && a.Format != "ai" {
		a.Snapshot.MaxChars = 0 // nodes are bounded by limit; the answer is cut below
	}
	shot, err := drive[browser.SnapshotResult](ctx, s, c, t, short(a.Snapshot))
	if err != nil {
		return nil, err
	}
	return answer(snapshotText(shot, limit)), nil
}

func (s *Server) act(ctx context.Context, c *call) (*sdk.CallToolResult, error) {
	a, t, _, err := aimed[actArguments](ctx, s, c)
	if err != nil {
		return nil, err
	}
	done, err := drive[browser.ActResult](ctx, s, c, t, a.Act)
	if err != nil {
		return nil, err
	}
	out := s.shown(ctx, c, t, a.TargetID, actText(a.Act, done, defaultChars), a.Snapshot)
	out.IsError = failedSteps(done) > 0
	return out, nil
}

// failedSteps is how many actions of a batch did not happen.
func failedSteps(r browser.ActResult) (n int) {
	for _, step := range r.Results {
		if !step.OK {
			n++
		}
	}
	return n
}

func (s *Server) query(ctx context.Context, c *call) (*sdk.CallToolResult, error) {
	a, t, limit, err := aimed[queryArguments](ctx, s, c)
	if err != nil {
		return nil, err
	}
	found, err := drive[browser.QueryResult](ctx, s, c, t, a.Query)
	if err != nil {
		return nil, err
	}
	return answer(queryText(found, limit)), nil
}

func (s *Server) eval(ctx context.Context, c *call) (*sdk.CallToolResult, error) {
	a, t, limit, err := aimed[evalArguments](ctx, s, c)
	if err != nil {
		return nil, err
	}
	r, err := drive[browser.EvalResult](ctx, s, c, t, a.Eval)
	if err != nil {
		return nil, err
	}
	text, threw := evalText(r, limit)
	out := answer(text)
	out.IsError = threw
	return out, nil
}

func evalText(r browser.EvalResult, limit int) (text string, threw bool) {
	if r.Exception != "" {
		return clip("the script threw: "+r.Exception, limit), true
	}
	if r.Type == "undefined" {
		return "undefined", false
	}
	text = valueText(r.Value, r.Description, limit)
	if r.Truncated {
		text += "\n[truncated]"
	}
	return text, false
}

func (s *Server) screenshot(ctx context.Context, c *call) (*sdk.CallToolResult, error) {
	a, err := arguments[screenshotArguments](c.raw)
	if err != nil {
		return nil, err
	}
	widest := defaultWidth
	if a.MaxWidth != 0 {
		if widest = a.MaxWidth; widest < 16 || widest > maxWidth {
			return nil, problem.New(problem.BadRequest, "", "maxWidth is not between 16 and %d", maxWidth)
		}
	}
	t, err := s.target(ctx, c, a.where)
	if err != nil {
		return nil, err
	}
	text, image, err := s.picture(ctx, c, t, small(a.Screenshot), widest)
	if err != nil {
		return nil, err
	}
	out := answer(text)
	out.Content = append(out.Content, image)
	return out, nil
}

// picture takes a screenshot: a line about it, and itself.
func (s *Server) picture(ctx context.Context, c *call, t Target, op browser.Screenshot, widest int) (string, *sdk.ImageContent, error) {
	taken, err := drive[browser.Picture](ctx, s, c, t, op)
	if err != nil {
		return "", nil, err
	}
	data := taken.Data
	if len(data) == 0 { // a backend that is elsewhere answers what it is, and gives the bytes when asked
		content, err := drive[browser.FileContent](ctx, s, c, t, browser.GetMedia{ID: taken.Media})
		if err != nil {
			return "", nil, err
		}
		data = content.Data
	}
	made, err := fit(data, widest, op.Quality)
	if err != nil {
		return "", nil, err
	}
	text := fmt.Sprintf("%s %dx%d", address(taken.URL), made.width, made.height)
	if op.Labels {
		text += fmt.Sprintf(", %d labels, %d left out", taken.LabelsCount, taken.LabelsSkipped)
	}
	return text, &sdk.ImageContent{Data: made.data, MIMEType: made.kind}, nil
}

// visit opens an address.
func (s *Server) visit(ctx context.Context, c *call, t Target, op browser.Navigate) (page, error) {
	r, err := drive[browser.Result](ctx, s, c, t, op)
	return page{URL: r.URL, Title: r.Title, Status: r.Status, Refused: r.Refused, TargetID: r.TargetID, Dialogs: r.Dialogs}, err
}
