package browser

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/chromedp/cdproto/target"

	"github.com/clawjail/clawjail/internal/cdp"
)

const (
	// maxTabs bounds the open pages. Beyond it, a tab that a page opens is closed again, and no client may open another.
	maxTabs = 100
	// maxAttached bounds the pages that are under control at the same time.
	maxAttached = 50
	// maxListed bounds a listing, and what is known of tabs.
	maxListed = 1000
	// registryEvents is after how many events somebody who asked is answered, also when more are waiting.
	registryEvents = 4096
	// popupTimeout bounds the closing of a tab that is too many.
	popupTimeout = 5 * time.Second
)

// registry knows the tabs of a browser: what their handles are, in which order they appeared, which one is the current
// one, and which are attached. One goroutine reads the browser's events; it starts with the first operation that needs
// a tab.
//
// Beyond a hundred open pages it closes whatever is opened further, the newest first: a page that opens windows in a
// loop gets no more of them. Among pages that were open before it began, it closes only popups for that reason.
type registry struct {
	b        *Browser
	starting chan struct{} // holds a token while the registry is being started
	limit    int           // open pages, and
	attached int           // those of them that are under control at the same time

	mu      sync.Mutex
	started bool
	events  *cdp.Subscription
	task    sync.WaitGroup
	stop    context.CancelFunc
	done    chan struct{}      // closed when no more events come
	wake    context.CancelFunc // wakes the goroutine while it waits
	asked   []*question
	excess  []target.ID // tabs that are too many, to be closed
	making  int         // tabs that are being made here
	late    []target.ID // tabs without an opener beyond the bound, while one is being made: it may be that one

	last    uint64                 // number of the last handle
	uses    uint64                 // counts, for what was used least recently
	tabs    []*record              // in order of appearance
	hidden  map[target.ID]struct{} // prerendered pages, which are not visible yet
	current *record
	sure    chan struct{}  // while a page of our own is being made: closed when its id is known
	unsure  []*target.Info // what appeared meanwhile: one of them may be such a page
	own     []target.ID    // the last of them, also for a while after their end
}

// question is somebody who waits until all events that have arrived were seen.
type question struct {
	seen chan struct{}
	left int // events that may come before it is answered in any case
}

// record is one tab. The registry's mutex guards what is below id.
type record struct {
	number    uint64        // of the handle
	attaching chan struct{} // holds a token while the tab is being attached
	closed    chan struct{} // closed when the tab is gone

	id      target.ID
	label   string
	url     string // as it was when the tab appeared
	focused time.Time
	used    uint64
	page    *Page
	crashed bool // while it had no page that knows better
}

func newRegistry(b *Browser) *registry {
	return &registry{b: b, starting: make(chan struct{}, 1), limit: maxTabs, attached: maxAttached, hidden: make(map[target.ID]struct{})}
}

// hasCrashed says whether the tab's page has no process. The registry's mutex is held.
func (t *record) hasCrashed() bool {
	if t.page != nil && t.page.open() {
		return t.page.crashed()
	}
	return t.crashed
}

func (t *record) handle() string { return "t" + strconv.FormatUint(t.number, 10) }

// suggested is the name by which a tab is best called.
func (t *record) suggested() string {
	if t.label != "" {
		return t.label
	}
	return t.handle()
}

// pagesOnly asks for tabs and nothing else: no frames, no workers, no windows of the browser itself.
func pagesOnly() target.Filter {
	return target.Filter{{Type: "page"}, {Exclude: true}}
}

// begin makes sure that the registry knows the tabs that are open.
func (r *registry) begin(ctx context.Context) error {
	if r.isStarted() {
		return nil
	}
	release, err := hold(ctx, r.starting)
	if err != nil {
		return err
	}
	defer release()
	if r.isStarted() {
		return nil
	}
	root := r.b.conn.Browser()
	events, err := root.Subscribe(target.TargetCreated.Method, target.TargetDestroyed.Method, target.TargetInfoChanged.Method,
		target.TargetCrashed.Method)
	if err != nil {
		return err
	}
	reading, stop := context.WithCancel(context.Background())
	r.mu.Lock()
	r.events, r.stop, r.done = events, stop, make(chan struct{})
	r.mu.Unlock()
	r.task.Go(func() { r.read(reading) })
	_, err = cdp.Do(ctx, root, target.SetDiscoverTargets,
		target.SetDiscoverTargetsParams{Discover: true, Filter: pagesOnly()})
	if err == nil {
		err = r.settle(ctx)
	}
	if err != nil {
		r.end()
		// So that the next attempt is told of all tabs again.
		tidy, cancel := context.WithTimeout(context.WithoutCancel(ctx), quietTimeout)
		defer cancel()
		_, _ = cdp.Do(tidy, root, target.SetDiscoverTargets, target.SetDiscoverTargetsParams{})
		return err
	}
	r.mu.Lock()
	r.started = true
	r.mu.Unlock()
	return nil
}

func (r *registry) isStarted() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.started
}

// end ends the goroutines of the registry and of all pages.
func (r *registry) end() {
	r.mu.Lock()
	stop, events := r.stop, r.events
	r.mu.Unlock()
	if stop == nil {
		return
	}
	stop()
	r.task.Wait()
	events.Close()
	r.mu.Lock()
	tabs := r.tabs
	r.tabs, r.current, r.started = nil, nil, false
	clear(r.hidden)
	for _, tab := range tabs {
		close(tab.closed)
	}
	r.mu.Unlock()
	for _, tab := range tabs {
		r.drop(tab)
	}
}

// drop ends the goroutines of a tab's page.
func (r *registry) drop(tab *record) {
	r.mu.Lock()
	page := tab.page
	tab.page = nil
	r.mu.Unlock()
	if page != nil {
		page.release()
	}
}

// read takes the browser's events until its context or the connection ends.
func (r *registry) read(ctx context.Context) {
	defer close(r.done)
	for {
		wait, wake := context.WithCancel(ctx)
		r.mu.Lock()
		r.wake = wake
		if len(r.asked) > 0 {
			wake()
		}
		r.mu.Unlock()
		event, err := r.events.Next(wait)
		wake()
		var lost *cdp.LostError
		switch {
		case err == nil:
			r.see(event)
			r.closeExcess(ctx)
			r.answer(false)
		case errors.As(err, &lost):
			r.resync(ctx)
		case ctx.Err() == nil && errors.Is(err, context.Canceled):
			r.answer(true)
		default:
			return
		}
	}
}

// settle waits until the goroutine has seen every event that has arrived until now.
func (r *registry) settle(ctx context.Context) error {
	q := &question{seen: make(chan struct{}), left: registryEvents}
	r.mu.Lock()
	r.asked = append(r.asked, q)
	if r.wake != nil {
		r.wake()
	}
	done := r.done
	r.mu.Unlock()
	select {
	case <-q.seen:
		return r.becomeSure(ctx)
	case <-done:
		if err := r.b.conn.Err(); err != nil {
			return err
		}
		return cdp.ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// becomeSure waits until it is known of everything that was seen whether it is a tab.
func (r *registry) becomeSure(ctx context.Context) error {
	r.mu.Lock()
	sure := r.sure
	r.mu.Unlock()
	if sure == nil {
		return nil
	}
	select {
	case <-sure:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// answer tells those who asked that everything was seen. While events are waiting it does so only after as many as the
// subscription holds: what was there when they asked is among these.
func (r *registry) answer(drained bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kept := r.asked[:0]
	for _, q := range r.asked {
		if q.left--; drained || q.left <= 0 {
			close(q.seen)
		} else {
			kept = append(kept, q)
		}
	}
	clear(r.asked[len(kept):])
	r.asked = kept
}

// see takes one event. An event that cannot be decoded is passed over, as an event of no tab.
func (r *registry) see(event cdp.EventMessage) {
	switch event.Method {
	case target.TargetCreated.Method:
		var e target.EventTargetCreated
		if cdp.Decode(event.Params, &e) == nil && e.TargetInfo != nil {
			r.appeared(e.TargetInfo)
			r.visits(e.TargetInfo.TargetID, e.TargetInfo.URL)
		}
	case target.TargetInfoChanged.Method:
		var e struct {
			TargetInfo struct {
				TargetID target.ID `json:"targetId"`
				Subtype  string    `json:"subtype"`
				URL      string    `json:"url"`
			} `json:"targetInfo"`
		}
		switch {
		case cdp.Decode(event.Params, &e) != nil:
		case ofWindow(e.TargetInfo.URL):
			r.vanished(e.TargetInfo.TargetID)
		case e.TargetInfo.Subtype == "":
			r.shown(e.TargetInfo.TargetID)
			r.noteCrash(e.TargetInfo.TargetID, false)
			r.visits(e.TargetInfo.TargetID, e.TargetInfo.URL)
			r.b.live.poke() // it has another title, or another address
		}
	case target.TargetCrashed.Method:
		var e struct {
			TargetID target.ID `json:"targetId"`
		}
		if cdp.Decode(event.Params, &e) == nil {
			r.noteCrash(e.TargetID, true)
			r.b.live.poke()
		}
	case target.TargetDestroyed.Method:
		var e target.EventTargetDestroyed
		if cdp.Decode(event.Params, &e) == nil {
			r.vanished(e.TargetID)
		}
	}
}

// appeared takes a target that the browser has reported. One that is known already is left as it is.
func (r *registry) appeared(info *target.Info) {
	if !r.b.isTab(info) || len(info.TargetID) > maxText {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.find(info.TargetID) != nil {
		return
	}
	if r.sure != nil && info.OpenerID == "" && len(r.unsure) < maxListed {
		r.unsure = append(r.unsure, info)
		return
	}
	if info.Subtype != "" {
		// A prerendered page has this type too, but is not visible.
		if len(r.hidden) < maxListed {
			r.hidden[info.TargetID] = struct{}{}
		}
		return
	}
	if len(r.tabs) >= r.limit && (r.started || info.OpenerID != "") || len(r.tabs) >= maxListed {
		switch {
		case r.making > 0 && info.OpenerID == "" && len(r.late) < maxListed:
			r.late = append(r.late, info.TargetID)
		case len(r.excess) < maxListed:
			r.excess = append(r.excess, info.TargetID)
		}
		return
	}
	r.add(info.TargetID, r.b.shown(info.URL, maxURL))
	if added := r.tabs[len(r.tabs)-1]; info.OpenerID != "" && r.b.live.held.Load() {
		// A person looks next at the tab that their click opens.
		r.current, added.focused = added, r.b.now()
	}
}

// make makes a tab, which is one also where there are as many as there may be: its caller is about to close another.
func (r *registry) make(ctx context.Context, create func() (target.ID, error)) (*record, error) {
	r.mu.Lock()
	r.making++
	r.mu.Unlock()
	id, err := create()
	if err == nil {
		err = r.settle(ctx)
	}
	r.mu.Lock()
	tab := r.find(id)
	if at := slices.Index(r.late, id); err == nil && tab == nil && at >= 0 {
		r.late = slices.Delete(r.late, at, at+1)
		tab = r.add(id, blank)
	}
	if r.making--; r.making == 0 {
		r.excess, r.late = append(r.excess, r.late...), nil
	}
	r.mu.Unlock()
	r.closeExcess(context.WithoutCancel(ctx))
	return tab, err
}

// aside makes a page that is no tab. The browser reports it before it answers what its id is: until make has called seen with
// that, or has failed, nothing that no page has opened becomes a tab. It is called by one at a time.
func (r *registry) aside(create func(seen func(target.ID)) error) error {
	sure := make(chan struct{})
	r.mu.Lock()
	r.sure = sure
	r.mu.Unlock()
	err := create(func(id target.ID) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.own = append(r.own, id)
		if extra := len(r.own) - hiddenKept; extra > 0 {
			r.own = slices.Delete(r.own, 0, extra)
		}
	})
	r.mu.Lock()
	unsure := r.unsure
	r.sure, r.unsure = nil, nil
	r.mu.Unlock()
	for _, info := range unsure {
		r.appeared(info)
	}
	close(sure)
	return err
}

// isOwn says whether a target is a page that was made aside.
func (r *registry) isOwn(id target.ID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.own, id)
}

// shown takes a prerendered page that became a tab.
func (r *registry) shown(id target.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, was := r.hidden[id]; was && len(r.tabs) < maxListed {
		delete(r.hidden, id)
		r.add(id, "")
	}
}

// add gives a tab the next handle. r.mu is held.
func (r *registry) add(id target.ID, url string) *record {
	r.last++
	tab := &record{number: r.last, id: id, url: url, attaching: make(chan struct{}, 1), closed: make(chan struct{})}
	r.tabs = append(r.tabs, tab)
	r.b.live.poke()
	return tab
}

func (r *registry) vanished(id target.ID) {
	r.mu.Lock()
	delete(r.hidden, id)
	r.late = slices.DeleteFunc(r.late, func(late target.ID) bool { return late == id })
	r.unsure = slices.DeleteFunc(r.unsure, func(info *target.Info) bool { return info.TargetID == id })
	var gone *record
	for i, tab := range r.tabs {
		if tab.id == id {
			gone = tab
			r.tabs = append(r.tabs[:i:i], r.tabs[i+1:]...)
			break
		}
	}
	if gone != nil {
		close(gone.closed)
		if r.current == gone {
			r.current = nil
		}
	}
	r.mu.Unlock()
	if gone != nil {
		r.drop(gone)
		r.b.live.poke()
	}
}

// noteCrash notes whether a tab has no process. It goes to another address with one.
func (r *registry) noteCrash(id target.ID, crashed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if tab := r.find(id); tab != nil {
		tab.crashed = crashed
	}
}

// visits notes the address of a tab.
func (r *registry) visits(id target.ID, address string) {
	r.mu.Lock()
	tab := r.find(id)
	r.mu.Unlock()
	if tab != nil {
		r.b.visits(address, false)
	}
}

// find returns a tab by its raw id. r.mu is held.
func (r *registry) find(id target.ID) *record {
	for _, tab := range r.tabs {
		if tab.id == id {
			return tab
		}
	}
	return nil
}

// resync compares with what the browser has, after events were lost.
func (r *registry) resync(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, popupTimeout)
	defer cancel()
	infos, err := r.b.targets(ctx)
	if err != nil {
		return // the browser is gone, which the next event will say
	}
	there := make(map[target.ID]bool, len(infos))
	for _, info := range infos {
		there[info.TargetID] = true
		r.appeared(info)
		if info.Subtype == "" {
			r.shown(info.TargetID)
		}
	}
	var gone []target.ID
	r.mu.Lock()
	for _, tab := range r.tabs {
		if !there[tab.id] {
			gone = append(gone, tab.id)
		}
	}
	for id := range r.hidden {
		if !there[id] {
			gone = append(gone, id)
		}
	}
	r.mu.Unlock()
	for _, id := range gone {
		r.vanished(id)
	}
	r.closeExcess(ctx)
}

// closeExcess closes the tabs that are too many.
func (r *registry) closeExcess(ctx context.Context) {
	r.mu.Lock()
	excess := r.excess
	r.excess = nil
	r.mu.Unlock()
	for _, id := range excess {
		closing, cancel := context.WithTimeout(ctx, popupTimeout)
		// An error means that it is gone already, as the browser may be.
		_, _ = cdp.Do(closing, r.b.conn.Browser(), target.CloseTarget, target.CloseTargetParams{TargetID: id})
		cancel()
	}
}
