package browser

import (
	"context"
	_ "embed"
	"errors"
	"regexp"
	"strings"
	"time"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/go-json-experiment/json/jsontext"

	protocol "github.com/chromedp/cdproto/cdp"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
)

//go:embed inpage/wait.js
var waitJS string

// waitSlice is how long one look at the page may wait for what is to appear.
const waitSlice = 500 * time.Millisecond

// slice is waitSlice, or half of the time that is left, so that the page can still answer what is missing.
func slice(ctx context.Context) time.Duration {
	end, ok := ctx.Deadline()
	if !ok {
		return waitSlice
	}
	return min(waitSlice, max(time.Until(end)/2, waitSlice/20))
}

// wanted is what the page itself is asked for.
type wanted struct {
	Text      string `json:"text,omitempty"`
	TextGone  string `json:"textGone,omitempty"`
	Selector  string `json:"selector,omitempty"`
	LoadState string `json:"loadState,omitempty"`
}

// wait waits for the time first, and then until everything else holds at once.
func (m *acting) wait(ctx context.Context, a Act) error {
	if !pause(ctx, time.Duration(a.TimeMS)*time.Millisecond) && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return context.Cause(ctx)
	}
	w := wanted{TextGone: a.TextGone, Selector: a.Selector, LoadState: a.LoadState}
	if a.Text != nil {
		w.Text = *a.Text
	}
	lacking := "timeMs"
	for ctx.Err() == nil {
		missing, err := m.lacks(ctx, a, w)
		switch {
		case ctx.Err() != nil:
			if lacking == "timeMs" {
				return context.Cause(ctx) // no look came back
			}
		case err != nil:
			return err
		case missing == "":
			return nil
		default:
			lacking = missing
		}
	}
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return context.Cause(ctx)
	}
	return problem.New(problem.ActOperationFailed, "take a snapshot to see what the page shows, or wait longer",
		"wait: the time was up before %s came true", lacking).With("check", lacking)
}

// lacks looks, for a slice of time, at all that is waited for, and returns the first that does not hold.
func (m *acting) lacks(ctx context.Context, a Act, w wanted) (string, error) {
	if a.URL != "" {
		address, _, err := m.page.info(ctx)
		if err != nil {
			return "", err
		}
		if !globMatches(a.URL, address) {
			pause(ctx, waitSlice/10)
			return "url", nil
		}
	}
	if w != (wanted{}) {
		missing, err := m.lacksInPage(ctx, w)
		if err != nil || missing != "" {
			return missing, err
		}
	}
	if a.LoadState == "networkidle" {
		idle, err := m.networkIdle(ctx)
		if err != nil || !idle {
			return "loadState", err
		}
	}
	if a.Fn != "" {
		holds, err := m.runScript(ctx, conditionSource(a.Fn), "")
		if err != nil {
			return "", err
		}
		if string(holds) != "true" {
			pause(ctx, waitSlice/10)
			return "fn", nil
		}
	}
	return "", nil
}

func (m *acting) lacksInPage(ctx context.Context, w wanted) (string, error) {
	look := func(texts []string) (jsontext.Value, error) { return m.looked(ctx, w, slice(ctx), texts) }
	var answer jsontext.Value
	var err error
	if m.page.b.concealed.Load().Empty() {
		answer, err = look(nil)
	} else {
		// The texts to take out are known before anything is waited for: how long a look takes must not tell either.
		var texts []string
		if err := m.page.mainFrame().confirms(ctx, w.Selector); err != nil {
			return m.rearm(ctx, err)
		}
		if _, texts, err = m.page.b.looked(m.looked(ctx, wanted{}, 0, []string{})); err == nil {
			answer, err = m.page.b.without(append([]string{}, texts...), look)
		}
	}
	if err == nil {
		err = m.page.mainFrame().confirms(ctx, w.Selector)
	}
	if err != nil {
		return m.rearm(ctx, err)
	}
	var missing string // empty for null
	if err := cdp.Decode(answer, &missing); err != nil {
		return "", err
	}
	if missing == "!selector" {
		return "", badSelector(w.Selector)
	}
	return bounded(missing, 40), nil
}

// looked looks at the page for some time, without some texts; see [Browser.openly].
func (m *acting) looked(ctx context.Context, w wanted, maximum time.Duration, texts []string) (jsontext.Value, error) {
	world, err := m.page.world(ctx)
	if err != nil {
		return nil, err
	}
	arguments, err := callArguments(w, maximum.Milliseconds(), concealing{texts})
	if err != nil {
		return nil, err
	}
	yes := true
	answer, err := cdp.Do(ctx, m.page.session, runtime.CallFunctionOn, runtime.CallFunctionOnParams{
		FunctionDeclaration: inPage(concealJS+waitJS, "slice"), ExecutionContextID: world, Arguments: arguments,
		AwaitPromise: &yes, ReturnByValue: &yes,
	})
	if err != nil {
		return nil, gone(err)
	}
	if answer.ExceptionDetails != nil || answer.Result == nil {
		return nil, thrown(answer.ExceptionDetails)
	}
	return jsontext.Value(answer.Result.Value), nil
}

// rearm goes on in the next document when that of the last look went away.
func (m *acting) rearm(ctx context.Context, err error) (string, error) {
	if errors.Is(err, errDocumentGone) && m.page.open() && ctx.Err() == nil {
		pause(ctx, waitSlice/10)
		return "the page", nil
	}
	return "", err
}

// networkIdle reports whether the document has loaded and nothing was on its way for half a second, as Chromium sees
// it. It looks for a slice of time.
func (m *acting) networkIdle(ctx context.Context) (bool, error) {
	events, err := m.page.session.Subscribe(page.LifecycleEvent.Method)
	if err != nil {
		return false, err
	}
	defer events.Close()
	ctx, cancel := context.WithTimeout(ctx, slice(ctx))
	defer cancel()
	// Switching the events on again brings those of the present document once more.
	_, err = cdp.Do(ctx, m.page.session, page.SetLifecycleEventsEnabled, page.SetLifecycleEventsEnabledParams{Enabled: true})
	for err == nil {
		var event cdp.EventMessage
		event, err = events.Next(ctx)
		var lost *cdp.LostError
		if errors.As(err, &lost) {
			err = nil
			continue
		}
		if err != nil {
			break
		}
		var e page.EventLifecycleEvent
		if cdp.Decode(event.Params, &e) == nil && e.FrameID == protocol.FrameID(m.page.id) && e.Name == "networkIdle" {
			return true, nil
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return false, nil
	}
	return false, err
}

// globMatches says whether an address is one that a pattern means: * is anything without a slash, ** anything at all,
// {a,b} one of several; everything else is itself.
func globMatches(glob, address string) bool {
	var pattern strings.Builder
	pattern.WriteString(`(?s)^`)
	group := false
	for i := 0; i < len(glob); i++ {
		switch c := glob[i]; {
		case strings.HasPrefix(glob[i:], "**"):
			for i+1 < len(glob) && glob[i+1] == '*' {
				i++
			}
			pattern.WriteString(`.*`)
		case c == '*':
			pattern.WriteString(`[^/]*`)
		case c == '{' && !group && strings.Contains(glob[i:], "}"):
			group = true
			pattern.WriteString(`(?:`)
		case c == '}' && group:
			group = false
			pattern.WriteString(`)`)
		case c == ',' && group:
			pattern.WriteString(`|`)
		default:
			end := i + 1
			for end < len(glob) && !strings.ContainsRune("*{},", rune(glob[end])) {
				end++
			}
			pattern.WriteString(regexp.QuoteMeta(glob[i:end]))
			i = end - 1
		}
	}
	// An address without a path is written with and without the last slash.
	pattern.WriteString(`/?$`)
	compiled, err := regexp.Compile(pattern.String())
	return err == nil && compiled.MatchString(address)
}
