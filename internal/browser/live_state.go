package browser

import (
	"context"
	"reflect"
)

const (
	// maxLiveTitle and maxLiveURL bound what a tab says of itself, in bytes: a hundred tabs are told at once.
	maxLiveTitle = 300
	maxLiveURL   = 2 << 10
)

// describe tells the viewers what is beside the picture, when it has changed.
func (l *Live) describe(ctx context.Context) {
	if viewers, _ := l.lookedAt(); viewers == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, liveCommand)
	defer cancel()
	tabs, err := l.b.list(ctx)
	if err != nil {
		return // the browser is gone, or the next event asks again
	}
	state := &LiveState{Tabs: make([]LiveTab, 0, len(tabs))}
	for _, tab := range tabs {
		state.Tabs = append(state.Tabs, LiveTab{ID: tab.TabID, Title: bounded(tab.Title, maxLiveTitle),
			URL: bounded(tab.URL, maxLiveURL), Current: tab.IsActive, Crashed: tab.Crashed})
		if tab.IsActive {
			state.URL = bounded(tab.URL, maxURL)
		}
	}
	if current := l.b.tabs.currentTab(); current != nil {
		l.b.tabs.mu.Lock()
		p := current.page
		l.b.tabs.mu.Unlock()
		if p != nil {
			state.Loading = p.isLoading()
			if history, err := p.history(ctx); err == nil {
				state.Back = history.CurrentIndex > 0
				state.Forward = history.CurrentIndex+1 < int64(len(history.Entries))
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, asked := range l.popups {
		state.Popups = append(state.Popups, asked.Popup)
	}
	if l.state != nil && reflect.DeepEqual(l.state, state) {
		return
	}
	l.states++
	l.state = state
	l.tellLocked()
}

// isLoading says whether the main frame's document is on its way.
func (p *Page) isLoading() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.loading
}
