package browser

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/chromedp/cdproto/target"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
)

// maxLabel bounds a label, and maxReference what a tab may be asked for by, in bytes.
const (
	maxLabel     = 64
	maxReference = 256
)

const tabHint = "use action=tabs and pass suggestedTargetId, tabId, label, or raw targetId"

// Tab is one open page.
type Tab struct {
	// SuggestedTargetID is the name to use: the label, or else the handle.
	SuggestedTargetID string `json:"suggestedTargetId"`
	// TargetID is the browser's own id. It may change when a page is replaced; the handle stays.
	TargetID string `json:"targetId"`
	// TabID is the handle, such as t1. Handles are given in the order in which tabs appear, and never again.
	TabID string `json:"tabId"`
	Label string `json:"label,omitempty"`
	Title string `json:"title"`
	URL   string `json:"url"`
	Type  string `json:"type"`
	// IsActive says that it is the current tab, which is meant where none is named.
	IsActive      bool      `json:"isActive"`
	LastFocusedAt time.Time `json:"lastFocusedAt,omitzero"`
	Attached      bool      `json:"attached"` // somebody controls it
	// Crashed says that its process has ended: it shows nothing until it goes to another address.
	Crashed bool `json:"crashed,omitempty"`
}

// Tabs lists the open pages in the order in which they appeared, at most a thousand.
func (b *Browser) Tabs(ctx context.Context) ([]Tab, error) {
	tabs, err := b.list(ctx)
	if err != nil {
		return nil, explain(err, "list the tabs")
	}
	return tabs, nil
}

func (b *Browser) list(ctx context.Context) ([]Tab, error) {
	if err := b.tabs.begin(ctx); err != nil {
		return nil, err
	}
	// Addresses and titles change all the time, so they are asked for and not kept.
	infos, err := b.targets(ctx)
	if err != nil {
		return nil, err
	}
	if err := b.tabs.settle(ctx); err != nil {
		return nil, err
	}
	byID := make(map[target.ID]*target.Info, len(infos))
	for _, info := range infos {
		byID[info.TargetID] = info
	}
	return b.tabs.listing(byID, 0), nil
}

// listing describes the tabs that appeared after a mark.
func (r *registry) listing(infos map[target.ID]*target.Info, mark uint64) []Tab {
	r.mu.Lock()
	defer r.mu.Unlock()
	current := r.currentLocked()
	tabs := make([]Tab, 0, len(r.tabs))
	for _, tab := range r.tabs {
		if tab.number <= mark {
			continue
		}
		out := Tab{
			SuggestedTargetID: tab.suggested(), TargetID: string(tab.id), TabID: tab.handle(), Label: tab.label,
			URL: tab.url, Type: "page", IsActive: tab == current, LastFocusedAt: tab.focused,
			Attached: tab.page != nil && tab.page.open(), Crashed: tab.hasCrashed(),
		}
		if info := infos[tab.id]; info != nil {
			out.URL, out.Title, out.Attached = r.b.shown(info.URL, maxURL), r.b.titled(info.Title), info.Attached
		}
		tabs = append(tabs, out)
	}
	return tabs
}

// mark is a moment, for [Browser.openedSince].
func (b *Browser) mark() uint64 {
	b.tabs.mu.Lock()
	defer b.tabs.mu.Unlock()
	return b.tabs.last
}

// openedSince lists the tabs that appeared after a mark and are still open. It is empty when the browser does not say.
func (b *Browser) openedSince(ctx context.Context, mark uint64) []Tab {
	if b.tabs.begin(ctx) != nil || b.tabs.settle(ctx) != nil || b.mark() == mark {
		return nil
	}
	infos, err := b.targets(ctx)
	if err != nil {
		return nil
	}
	byID := make(map[target.ID]*target.Info, len(infos))
	for _, info := range infos {
		byID[info.TargetID] = info
	}
	if opened := b.tabs.listing(byID, mark); len(opened) > 0 {
		return opened
	}
	return nil
}

// tab returns the page of a tab, for an operation that needs its process and ends when that does. The error's code is
// that of anyTab, or page_crashed.
func (b *Browser) tab(ctx context.Context, ref string) (*Page, error) {
	page, err := b.anyTab(ctx, ref)
	if err == nil {
		err = page.use(ctx)
	}
	if err != nil {
		return nil, err
	}
	return page, nil
}

// anyTab returns the page of a tab, attached: the current one when ref is empty, which is made when there is none. The
// error's code is tab_not_found or tab_ambiguous.
func (b *Browser) anyTab(ctx context.Context, ref string) (*Page, error) {
	for range maxAttempts {
		tab, err := b.record(ctx, ref)
		if err != nil {
			return nil, err
		}
		page, err := b.attach(ctx, tab)
		if err == nil {
			return page, nil
		}
		if !b.tabs.gone(ctx, tab) {
			return nil, err
		}
		// The next attempt finds another current tab, or says that there is none of that name.
	}
	return nil, problem.New(problem.Conflict, "try again", "the tabs close faster than they can be used")
}

// maxAttempts bounds how often a tab is looked for that closes meanwhile.
const maxAttempts = 3

// gone says whether a tab that could not be attached is closed. The browser ends its session a moment earlier than it
// says so.
func (r *registry) gone(ctx context.Context, tab *record) bool {
	wait := time.NewTimer(quietTimeout)
	defer wait.Stop()
	select {
	case <-tab.closed:
		return true
	case <-wait.C:
	case <-r.b.conn.Done():
	case <-ctx.Done():
	}
	return false
}

// record finds a tab by its handle, its label, its raw id, or a unique beginning of one of them.
func (b *Browser) record(ctx context.Context, ref string) (*record, error) {
	if err := b.tabs.begin(ctx); err != nil {
		return nil, err
	}
	if err := b.tabs.settle(ctx); err != nil {
		return nil, err
	}
	if ref != "" {
		return b.tabs.resolve(ref)
	}
	// Two callers without a tab get the same one.
	release, err := hold(ctx, b.opening)
	if err != nil {
		return nil, err
	}
	defer release()
	if tab := b.tabs.currentTab(); tab != nil {
		return tab, nil
	}
	tab, err := b.create(ctx)
	if err != nil {
		return nil, err
	}
	b.tabs.focus(tab)
	return tab, nil
}

// create opens an empty tab.
func (b *Browser) create(ctx context.Context) (*record, error) {
	tab, err := b.tabs.make(ctx, func() (target.ID, error) {
		made, err := cdp.Do(ctx, b.conn.Browser(), target.CreateTarget, target.CreateTargetParams{URL: blank})
		return made.TargetID, err
	})
	if err != nil {
		return nil, err
	}
	if tab == nil {
		return nil, problem.New(problem.Conflict, "try again", "the new tab was closed at once")
	}
	return tab, nil
}

// currentTab is the tab that is meant when none is named: the one that was focused last, or else the oldest.
func (r *registry) currentTab() *record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.currentLocked()
}

func (r *registry) currentLocked() *record {
	if r.current == nil && len(r.tabs) > 0 {
		r.current = slices.MaxFunc(r.tabs, func(a, b *record) int {
			return cmp.Or(a.focused.Compare(b.focused), -cmp.Compare(a.number, b.number))
		})
	}
	return r.current
}

// focus makes a tab the current one, here and not yet in the browser.
func (r *registry) focus(tab *record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !wake.Closed(tab.closed) {
		r.current, tab.focused = tab, r.b.now()
		r.b.live.poke()
	}
}

func (r *registry) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.tabs)
}

// handleOf is the handle of the tab with a raw id, empty when there is none.
func (r *registry) handleOf(id target.ID) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if tab := r.find(id); tab != nil {
		return tab.handle()
	}
	return ""
}

// named is the tab that a reference names, the current one when it is empty; nil when there is none.
func (r *registry) named(ref string) *record {
	if ref == "" {
		return r.currentTab()
	}
	tab, _ := r.resolve(ref) // nil with an error
	return tab
}

// driven is the page of a tab that is attached here, and nil of another.
func (r *registry) driven(tab *record) *Page {
	r.mu.Lock()
	p := tab.page
	r.mu.Unlock()
	if p == nil || !p.open() {
		return nil
	}
	return p
}

// resolve finds a tab by a reference that is not empty.
func (r *registry) resolve(ref string) (*record, error) {
	if len(ref) > maxReference {
		return nil, tabNotFound(ref)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, tab := range r.tabs {
		if ref == tab.label || ref == tab.handle() || ref == string(tab.id) {
			return tab, nil
		}
	}
	if isNumber(ref) {
		return nil, r.numbered(ref)
	}
	var found []*record
	for _, tab := range r.tabs {
		for _, name := range []string{tab.label, tab.handle(), string(tab.id)} {
			if len(name) >= len(ref) && strings.EqualFold(name[:len(ref)], ref) {
				found = append(found, tab)
				break
			}
		}
	}
	switch len(found) {
	case 0:
		return nil, tabNotFound(ref)
	case 1:
		return found[0], nil
	}
	names := make([]string, 0, 5)
	for _, tab := range found[:min(len(found), cap(names))] {
		names = append(names, tab.suggested())
	}
	return nil, problem.New(problem.TabAmbiguous, "it can be "+strings.Join(names, ", ")+"; "+tabHint,
		"ambiguous browser tab reference %q", bounded(ref, 80))
}

// numbered refuses a bare number, which is an index for some and a handle for others. r.mu is held.
func (r *registry) numbered(ref string) error {
	hint := tabHint
	for i, tab := range r.tabs {
		if tab.handle() == "t"+ref {
			hint = "numbers alone are not taken: say " + tab.handle() + " for that tab; " + tabHint
			break
		}
		if strconv.Itoa(i) == ref {
			hint = "numbers alone are not taken: the tab at index " + ref + " is " + tab.handle() + "; " + tabHint
		}
	}
	e := tabNotFound(ref)
	e.Hint = hint
	return e
}

func tabNotFound(ref string) *problem.Error {
	return problem.New(problem.TabNotFound, tabHint, "tab not found: browser tab %q not found", bounded(ref, 80))
}

func isNumber(text string) bool {
	return text != "" && strings.Trim(text, "0123456789") == ""
}

// isHandle says whether a text looks like a handle, so that no label may be it.
func isHandle(text string) bool {
	return len(text) > 1 && (text[0] == 't' || text[0] == 'T') && isNumber(text[1:])
}

// attach returns the page of a tab. When too many are attached, the one that was used least recently is let go.
func (b *Browser) attach(ctx context.Context, tab *record) (*Page, error) {
	release, err := hold(ctx, tab.attaching)
	if err != nil {
		return nil, err
	}
	defer release()
	r := b.tabs
	r.mu.Lock()
	page := tab.page
	r.uses++
	tab.used = r.uses
	r.mu.Unlock()
	if page != nil && page.open() {
		return page, page.await(ctx)
	}
	r.drop(tab)
	page, err = attachPage(ctx, b, tab.id)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	if wake.Closed(tab.closed) {
		r.mu.Unlock()
		page.release()
		return nil, cdp.ErrSessionGone
	}
	tab.page = page
	idle := r.idle(tab)
	r.mu.Unlock()
	if idle != nil {
		idle.release()
		idle.detach()
	}
	return page, nil
}

// idle takes away the page to let go: of those beyond the bound the one that was used least recently and is not being
// steered. r.mu is held.
func (r *registry) idle(but *record) *Page {
	attached := 0
	var oldest *record
	for _, tab := range r.tabs {
		if tab.page == nil {
			continue
		}
		attached++
		if tab != but && len(tab.page.steering) == 0 && (oldest == nil || tab.used < oldest.used) {
			oldest = tab
		}
	}
	if attached <= r.attached || oldest == nil {
		return nil
	}
	page := oldest.page
	oldest.page = nil
	return page
}

// replace gives the tab of a page that cannot be left another target, and closes the old one. The handle, the label and
// the place in the list stay.
func (b *Browser) replace(ctx context.Context, page *Page) (*Page, error) {
	r := b.tabs
	r.mu.Lock()
	tab := r.find(page.id)
	r.mu.Unlock()
	if tab == nil {
		return nil, cdp.ErrSessionGone
	}
	fresh, err := b.create(ctx)
	if err != nil {
		return nil, err
	}
	release, err := hold(ctx, tab.attaching)
	if err != nil {
		b.discard(fresh)
		return nil, err
	}
	r.mu.Lock()
	old := tab.id
	tab.id = fresh.id
	r.tabs = slices.DeleteFunc(r.tabs, func(t *record) bool { return t == fresh })
	close(fresh.closed)
	if r.current == fresh {
		r.current = tab
	}
	r.mu.Unlock()
	r.b.live.poke()
	r.drop(tab)
	release()
	closing, cancel := context.WithTimeout(ctx, quietTimeout)
	defer cancel()
	// It closes by and by; what is left of it has no tab any more.
	_, _ = cdp.Do(closing, b.conn.Browser(), target.CloseTarget, target.CloseTargetParams{TargetID: old})
	return b.attach(ctx, tab)
}
