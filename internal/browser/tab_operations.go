package browser

import (
	"context"
	"net/url"
	"strings"
	"time"
	"unicode"

	"github.com/chromedp/cdproto/target"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
)

// closeTabTimeout is how long a tab may take to close. A page whose scripts hang is given a second or two by the browser.
const closeTabTimeout = 10 * time.Second

// closeAgain is after how long a tab that is still there is asked to close again.
const closeAgain = time.Second

// Tool is "status".
func (Status) Tool() string { return "status" }

// Target is empty.
func (Status) Target() string { return "" }

// Effect is Looks.
func (Status) Effect() Effect { return Looks }

// Validate finds nothing to say.
func (Status) Validate() error { return nil }

// Limit is ten seconds.
func (Status) Limit() time.Duration { return listTimeout }

// Run asks the browser process only. A browser that is gone is a status too, and no error.
func (Status) Run(ctx context.Context, b *Browser) (any, error) {
	out := StatusResult{Version: b.version.Product}
	infos, err := b.targets(ctx)
	if b.conn.Err() != nil {
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	out.Running = true
	for _, info := range infos {
		if info.Subtype == "" {
			out.Tabs++
		}
	}
	if b.tabs.isStarted() && b.tabs.settle(ctx) == nil {
		if tab := b.tabs.currentTab(); tab != nil {
			out.TargetID = tab.handle()
		}
	}
	return out, nil
}

// Result is a *StatusResult.
func (Status) Result() any { return new(StatusResult) }

// Tool is "tabs".
func (Tabs) Tool() string { return "tabs" }

// Target is empty.
func (Tabs) Target() string { return "" }

// Effect is Looks.
func (Tabs) Effect() Effect { return Looks }

// Validate finds nothing to say.
func (Tabs) Validate() error { return nil }

// Limit is ten seconds.
func (Tabs) Limit() time.Duration { return listTimeout }

// Run lists the tabs.
func (Tabs) Run(ctx context.Context, b *Browser) (any, error) {
	tabs, err := b.list(ctx)
	if err != nil {
		return nil, err
	}
	return TabsResult{Running: true, Tabs: tabs}, nil
}

// Result is a *TabsResult.
func (Tabs) Result() any { return new(TabsResult) }

// Tool is "open".
func (OpenTab) Tool() string { return "open" }

// Target is the address.
func (o OpenTab) Target() string { return recorded(o.URL) }

// Effect is Steers.
func (OpenTab) Effect() Effect { return Steers }

// Validate reports a bad address, label or timeout.
func (o OpenTab) Validate() error {
	flaws := problem.ValidationError{Code: problem.BadRequest}
	checkLabel(&flaws, o.Label)
	timeoutWithin(&flaws, o.TimeoutMS, minNavigation, maxNavigation)
	if err := flaws.Err(); err != nil {
		return err
	}
	_, err := CheckURL(o.URL)
	return err
}

// Limit is the timeout, twenty seconds when there is none.
func (o OpenTab) Limit() time.Duration { return limit(o.TimeoutMS, navigationTimeout) }

// Run opens the tab, which is the current one then. A tab whose page could not be loaded is closed again; one that was
// not ready in time stays, and the problem's detail "targetId" names it.
func (o OpenTab) Run(ctx context.Context, b *Browser) (any, error) {
	address, err := CheckURL(o.URL)
	if err != nil {
		return nil, err
	}
	tabs, err := b.list(ctx)
	if err != nil {
		return nil, err
	}
	if !o.NewTab {
		for _, tab := range tabs {
			if sameAddress(tab.URL, address) {
				return o.reuse(ctx, b, tab)
			}
		}
	}
	return o.open(ctx, b, address)
}

func (o OpenTab) reuse(ctx context.Context, b *Browser, shown Tab) (any, error) {
	tab, err := b.tabs.resolve(shown.TargetID)
	if err != nil {
		return nil, err
	}
	if o.Label != "" {
		if err := b.tabs.name(tab, o.Label); err != nil {
			return nil, err
		}
	}
	if err := b.activate(ctx, tab); err != nil {
		return nil, err
	}
	out, err := b.describe(ctx, tab)
	return OpenTabResult{Tab: out, Reused: true}, err
}

func (o OpenTab) open(ctx context.Context, b *Browser, address string) (any, error) {
	if b.tabs.count() >= b.tabs.limit {
		return nil, problem.New(problem.Conflict, "close some of them first", "%d tabs are open, and no more may be", b.tabs.limit)
	}
	tab, err := b.create(ctx)
	if err != nil {
		return nil, err
	}
	loaded, err := o.load(ctx, b, tab, address)
	if err != nil {
		if e, ok := problem.As(explain(err, o.Tool())); ok && e.Code == problem.Timeout {
			b.tabs.focus(tab)
			return nil, e.With("targetId", tab.handle())
		}
		b.discard(tab)
		return nil, err
	}
	b.tabs.focus(tab)
	out, err := b.describe(ctx, tab)
	return OpenTabResult{Tab: out, Status: loaded.Status, LoadMS: loaded.LoadMS, Dialogs: loaded.Dialogs}, err
}

func (o OpenTab) load(ctx context.Context, b *Browser, tab *record, address string) (Result, error) {
	if o.Label != "" {
		if err := b.tabs.name(tab, o.Label); err != nil {
			return Result{}, err
		}
	}
	p, err := b.attach(ctx, tab)
	if err != nil {
		return Result{}, err
	}
	return p.Navigate(ctx, address)
}

// Result is an *OpenTabResult.
func (OpenTab) Result() any { return new(OpenTabResult) }

// Tool is "focus".
func (FocusTab) Tool() string { return "focus" }

// Target is the tab.
func (o FocusTab) Target() string { return o.TargetID }

// Effect is Steers.
func (FocusTab) Effect() Effect { return Steers }

// Validate reports a tab that is not named.
func (o FocusTab) Validate() error {
	if o.TargetID == "" {
		return problem.New(problem.BadRequest, tabHint, "targetId is required")
	}
	return nil
}

// Limit is ten seconds.
func (FocusTab) Limit() time.Duration { return listTimeout }

// Run makes the tab the current one, and brings it to the front.
func (o FocusTab) Run(ctx context.Context, b *Browser) (any, error) {
	tab, err := b.record(ctx, o.TargetID)
	if err != nil {
		return nil, err
	}
	return Done{OK: true, TargetID: tab.handle()}, b.activate(ctx, tab)
}

// Result is a *Done.
func (FocusTab) Result() any { return new(Done) }

// Tool is "close".
func (CloseTab) Tool() string { return "close" }

// Target is the tab.
func (o CloseTab) Target() string { return o.TargetID }

// Effect is Steers.
func (CloseTab) Effect() Effect { return Steers }

// Validate reports a mode that is not known, or one without an id.
func (o CloseTab) Validate() error {
	switch {
	case o.TargetIDMode != "" && o.TargetIDMode != "raw":
		return problem.New(problem.BadRequest, "", `targetIdMode must be "raw"`)
	case o.TargetIDMode == "raw" && o.TargetID == "":
		return problem.New(problem.BadRequest, tabHint, "targetId is required")
	}
	return nil
}

// Limit is ten seconds.
func (CloseTab) Limit() time.Duration { return closeTabTimeout }

// Run closes the tab and waits until it is gone. Full Chromium exits with its last window, so the last tab is replaced
// by an empty one.
func (o CloseTab) Run(ctx context.Context, b *Browser) (any, error) {
	tab, err := o.find(ctx, b)
	if err != nil {
		return nil, err
	}
	return Done{OK: true, TargetID: tab.handle()}, b.closeTab(ctx, tab)
}

func (o CloseTab) find(ctx context.Context, b *Browser) (*record, error) {
	if o.TargetIDMode != "raw" {
		return b.record(ctx, o.TargetID)
	}
	if err := b.tabs.begin(ctx); err != nil {
		return nil, err
	}
	if err := b.tabs.settle(ctx); err != nil {
		return nil, err
	}
	b.tabs.mu.Lock()
	defer b.tabs.mu.Unlock()
	if tab := b.tabs.find(target.ID(o.TargetID)); tab != nil {
		return tab, nil
	}
	return nil, tabNotFound(o.TargetID)
}

// Result is a *Done.
func (CloseTab) Result() any { return new(Done) }

// describe is one tab as it is now.
func (b *Browser) describe(ctx context.Context, tab *record) (Tab, error) {
	tabs, err := b.list(ctx)
	if err != nil {
		return Tab{}, err
	}
	for _, out := range tabs {
		if out.TabID == tab.handle() {
			return out, nil
		}
	}
	return Tab{}, tabNotFound(tab.handle())
}

// activate makes a tab the current one and brings it to the front.
func (b *Browser) activate(ctx context.Context, tab *record) error {
	front := target.ActivateTargetParams{TargetID: b.tabs.raw(tab)}
	if _, err := cdp.Do(ctx, b.conn.Browser(), target.ActivateTarget, front); err != nil {
		return err
	}
	b.tabs.focus(tab)
	return nil
}

// closeTab closes a tab from the browser's side, where no page is asked.
func (b *Browser) closeTab(ctx context.Context, tab *record) error {
	if b.tabs.count() == 1 {
		if _, err := b.create(ctx); err != nil {
			return err
		}
	}
	for {
		_, err := cdp.Do(ctx, b.conn.Browser(), target.CloseTarget, target.CloseTargetParams{TargetID: b.tabs.raw(tab)})
		// A page that is changing to another one at that moment forgets that it is to close.
		again := time.NewTimer(closeAgain)
		select {
		case <-tab.closed: // by this call or by any other cause
			err = nil
		case <-again.C:
			if err == nil {
				continue
			}
		case <-b.conn.Done():
			err = b.conn.Err()
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		again.Stop()
		return err
	}
}

// discard closes a tab that was opened in vain.
func (b *Browser) discard(tab *record) {
	ctx, cancel := context.WithTimeout(context.Background(), quietTimeout)
	defer cancel()
	_, _ = cdp.Do(ctx, b.conn.Browser(), target.CloseTarget, target.CloseTargetParams{TargetID: b.tabs.raw(tab)})
}

// raw is the browser's id of a tab.
func (r *registry) raw(tab *record) target.ID {
	r.mu.Lock()
	defer r.mu.Unlock()
	return tab.id
}

// name gives a tab a label, which no other tab has.
func (r *registry) name(tab *record, label string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, other := range r.tabs {
		if other != tab && other.label == label {
			return problem.New(problem.Conflict, "take another label, or close that tab",
				"the tab %s has the label %q already", other.handle(), label)
		}
	}
	tab.label = label
	return nil
}

// checkLabel reports a label that cannot be one: it would be taken for a handle or an index, or cannot be read.
func checkLabel(flaws *problem.ValidationError, label string) {
	switch {
	case label == "":
	case len(label) > maxLabel:
		flaws.Add("label", "has %d bytes; %d are allowed", len(label), maxLabel)
	case strings.TrimSpace(label) != label || strings.ContainsFunc(label, func(r rune) bool { return !unicode.IsPrint(r) }):
		flaws.Add("label", "%q begins or ends with a space, or has a character that is not shown", label)
	case isNumber(label) || isHandle(label):
		flaws.Add("label", "%q would be taken for a handle or an index", label)
	}
}

// recorded is an address for a record: none that could not be opened, because it may hold a password.
func recorded(address string) string {
	checked, err := CheckURL(address)
	if err != nil {
		return ""
	}
	return checked
}

// sameAddress compares what a tab shows with what is to be opened. The browser writes an empty path as a slash.
func sameAddress(shown, wanted string) bool {
	if shown == wanted {
		return true
	}
	a, errA := url.Parse(shown)
	b, errB := url.Parse(wanted)
	if errA != nil || errB != nil {
		return false
	}
	for _, u := range []*url.URL{a, b} {
		u.Host = strings.ToLower(u.Host)
		if u.Path == "" && u.Host != "" {
			u.Path = "/"
		}
	}
	return a.String() == b.String()
}
