package browser

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/target"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// actReserve is the part of an action's limit that is kept for saying how it went.
	actReserve = 2 * time.Second
	// tidyTimeout bounds what is put back after an action that failed: a key or a button that is still down.
	tidyTimeout = 200 * time.Millisecond
	// slowKey is the pause between two keys of a text that is typed slowly.
	slowKey = 25 * time.Millisecond
	// maxActTarget bounds [Act.Target], in bytes.
	maxActTarget = 200
)

// Tool is "act".
func (a Act) Tool() string { return "act" }

// Target is the kind and the elements that it is about. Typed text, keys, options and scripts are not in it.
func (a Act) Target() string {
	parts := []string{a.Kind}
	switch a.Kind {
	case "drag":
		parts = append(parts, first(a.StartRef, a.StartSel), "to", first(a.EndRef, a.EndSel))
	case "fill":
		for _, field := range a.Fields {
			parts = append(parts, field.Ref)
		}
	case "batch":
		parts = append(parts, "of", strconv.Itoa(len(a.Actions)))
	default:
		parts = append(parts, first(a.Ref, a.Selector))
	}
	return bounded(strings.TrimSpace(strings.Join(parts, " ")), maxActTarget)
}

func first(texts ...string) string {
	for _, text := range texts {
		if text != "" {
			return text
		}
	}
	return ""
}

// Effect is [Evaluates] for what runs JavaScript of the caller's, alone or in a batch, [Looks] for waiting without
// that, and [Steers] for the rest.
func (a Act) Effect() Effect {
	switch a.Kind {
	case "evaluate":
		return Evaluates
	case "wait":
		if a.Fn != "" {
			return Evaluates
		}
		return Looks
	case "batch":
		for _, action := range a.Actions {
			if action.Effect() == Evaluates {
				return Evaluates
			}
		}
	}
	return Steers
}

// Limit is the action's timeout, and two seconds in which it says how it went.
func (a Act) Limit() time.Duration { return a.timeout() + actReserve }

// timeout is how long the action itself may take.
func (a Act) timeout() time.Duration {
	fallback := defaultAction
	switch a.Kind {
	case "click", "clickCoords", "drag", "dragCoords", "fill", "hover", "press", "scrollIntoView", "select":
		fallback = defaultInteraction
	case "type":
		fallback = defaultInteraction
		if a.Slowly && a.Text != nil {
			fallback = min(fallback+2*slowKey*time.Duration(len(*a.Text)), maxInteraction*time.Millisecond)
		}
	case "wait":
		fallback = max(defaultWait, time.Duration(a.TimeMS)*time.Millisecond+5*time.Second)
	case "evaluate":
		fallback = defaultWait
	}
	return limit(a.TimeoutMS, fallback)
}

// Result is a pointer to an [ActResult].
func (a Act) Result() any { return new(ActResult) }

// Run does the action. Its errors have the codes of [Page.find], tab_not_found, tab_ambiguous, act_target_id_mismatch,
// and act_operation_failed for what the page did not let happen in time: the detail "check" says what was missing.
func (a Act) Run(ctx context.Context, b *Browser) (any, error) {
	if a.Kind == "close" {
		if _, err := (CloseTab{TargetID: a.TargetID}).Run(ctx, b); err != nil {
			return nil, err
		}
		return ActResult{OK: true}, nil
	}
	page, err := b.tab(ctx, a.TargetID)
	if err != nil {
		return nil, err
	}
	if err := sameTab(ctx, b, page, a.Actions); err != nil {
		return nil, err
	}
	if a.Effect() == Steers || a.Kind == "batch" {
		// An act that only waits, or runs a script, goes on beside those of others.
		release, err := page.hold(ctx)
		if err != nil {
			return nil, err
		}
		defer release()
	}
	m := &acting{browser: b, page: page, mark: b.mark(), dialogs: page.dialogsSeen(), files: b.folder.downloads()}
	result, err := m.perform(ctx, a)
	if err != nil {
		return nil, err
	}
	m.report(ctx, &result)
	return result, nil
}

// sameTab refuses a batch with an action for another tab, before anything of it is done.
func sameTab(ctx context.Context, b *Browser, page *Page, actions []Act) error {
	for i, action := range actions {
		if action.TargetID != "" {
			named, err := b.tab(ctx, action.TargetID)
			if err != nil || named.id != page.id {
				return problem.Wrap(err, problem.ActTargetIDMismatch, "leave targetId out of the actions of a batch",
					"batched action targetId must match request targetId").With("action", i)
			}
		}
		if err := sameTab(ctx, b, page, action.Actions); err != nil {
			return err
		}
	}
	return nil
}

// acting is one [Act] in its course.
type acting struct {
	browser *Browser
	page    *Page
	mark    uint64    // of the tabs, when it began
	dialogs int       // that the tab had shown then
	files   []*stored // that had been downloaded, or were being, then
	closed  bool      // the tab is gone, by this action
	loading bool      // the page that the action led to has not loaded
}

// perform does one action with its aftermath: when it led to another document, that has been parsed, or the time is up.
func (m *acting) perform(ctx context.Context, a Act) (ActResult, error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout())
	defer cancel()
	if a.Kind == "batch" {
		return m.batch(ctx, a)
	}
	if m.closed {
		return ActResult{}, problem.New(problem.ActOperationFailed, "list the tabs", "an earlier action closed the tab")
	}
	leaving, err := watchDeparture(m.page)
	if err != nil {
		return ActResult{}, m.failed(ctx, a, err)
	}
	defer leaving.close()
	value, err := m.once(ctx, a)
	if err != nil {
		if !errors.Is(err, cdp.ErrSessionGone) || a.Effect() != Steers {
			return ActResult{}, m.failed(ctx, a, err)
		}
		// A button that closes its own window: it was pressed.
		m.closed = true
		return ActResult{OK: true}, nil
	}
	m.loading = leaving.settle(ctx, a.grace())
	if leaving.download {
		m.browser.folder.awaitDownload(ctx, m.files)
	}
	return ActResult{OK: true, Value: value}, nil
}

// once does what the action says.
func (m *acting) once(ctx context.Context, a Act) (value any, err error) {
	if a.Effect() == Steers {
		// The page behaves as one that is in front and has the focus, whichever tab that is.
		if _, err := cdp.Do(ctx, m.page.session, emulation.SetFocusEmulationEnabled,
			emulation.SetFocusEmulationEnabledParams{Enabled: true}); err != nil {
			return nil, err
		}
	}
	switch a.Kind {
	case "click":
		return nil, m.click(ctx, a)
	case "clickCoords":
		return nil, m.clickAt(ctx, point{*a.X, *a.Y}, a)
	case "hover":
		return nil, m.hover(ctx, a)
	case "scrollIntoView":
		return nil, m.scrollIntoView(ctx, a)
	case "drag":
		return nil, m.drag(ctx, a)
	case "dragCoords":
		from := point{*a.X, *a.Y}
		return nil, m.dragFrom(ctx, from, func(context.Context) (point, error) { return point{*a.EndX, *a.EndY}, nil })
	case "type":
		return nil, m.typeText(ctx, a)
	case "press":
		return nil, m.press(ctx, a)
	case "fill":
		return nil, m.fill(ctx, a)
	case "select":
		return nil, m.selectValues(ctx, a)
	case "resize":
		return nil, m.resize(ctx, a)
	case "wait":
		return nil, m.wait(ctx, a)
	case "evaluate":
		return m.evaluate(ctx, a)
	case "close":
		// In a batch: the tab is held, so that the operation of that name would wait for ever.
		_, err := cdp.Do(ctx, m.page.browser, target.CloseTarget, target.CloseTargetParams{TargetID: m.page.id})
		m.closed = err == nil
		return nil, err
	}
	return nil, problem.New(problem.ActKindRequired, "", "kind is required")
}

// grace is how long after the action a navigation may begin that counts as its doing.
func (a Act) grace() time.Duration {
	switch a.Kind {
	case "click", "clickCoords", "press", "select", "drag", "dragCoords":
		return 250 * time.Millisecond
	case "type":
		if a.Submit {
			return 250 * time.Millisecond
		}
	case "wait", "resize", "hover", "scrollIntoView":
		return 0
	}
	return 50 * time.Millisecond
}

// report fills in where the tab is and what happened in it. It never fails: the action is done.
func (m *acting) report(ctx context.Context, result *ActResult) {
	result.Opened = m.browser.openedSince(ctx, m.mark)
	result.Downloads = m.browser.folder.begunSince(m.files)
	result.Dialogs = m.page.takeDialogs()
	result.BlockedByDialog = m.page.dialogsSeen() > m.dialogs
	if m.closed {
		return
	}
	address, _, err := m.page.info(ctx)
	if err != nil {
		return // it was closed at this moment
	}
	result.TargetID, result.URL, result.Loading = m.page.handle(), address, m.loading
	result.FileChooser = m.chooserWaits()
}

// chooserWaits reports whether the page wants files. The chooser stays for [Page.answerChooser].
func (m *acting) chooserWaits() bool {
	m.page.mu.Lock()
	defer m.page.mu.Unlock()
	return m.page.chooser != nil
}

// failed says why an action could not be done. An error with a code keeps it.
func (m *acting) failed(ctx context.Context, a Act, err error) error {
	var refused *cdp.Error
	e, coded := problem.As(err)
	switch {
	case coded && e.Code != problem.ActOperationFailed && e.Code != problem.Timeout:
		return err
	case coded && e.Code == problem.ActOperationFailed:
	case errors.Is(err, context.DeadlineExceeded):
		e = problem.Wrap(err, problem.ActOperationFailed,
			"it is still loading, or its scripts hang: wait for it, or navigate to another page",
			"%s: the page did not answer in time", a.Kind).With("check", "responsive")
	case errors.As(err, &refused):
		e = problem.Wrap(err, problem.ActOperationFailed, "take a new snapshot, and try again",
			"%s: the page changed meanwhile", a.Kind).With("check", "unchanged")
	default:
		return explain(err, "act: "+a.Kind)
	}
	if shown := m.page.dialogsSeen() - m.dialogs; shown > 0 {
		e = e.With("dialogs", shown)
	}
	return e.With("kind", a.Kind)
}

// pause waits, and reports whether there is time left.
func pause(ctx context.Context, d time.Duration) bool {
	return wake.Sleep(ctx, d) && ctx.Err() == nil
}
