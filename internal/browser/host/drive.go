package host

import (
	"context"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/problem"
)

// Drive runs an operation in the browser. One that opens a page starts the browser where it is missing, after the
// operation was found to be valid; no other does.
func (k *Keeper) Drive(ctx context.Context, op browser.Operation) (any, error) {
	if err := k.Enabled(); err != nil {
		return nil, err
	}
	if err := op.Validate(); err != nil {
		return nil, err
	}
	r, err := k.settled(ctx)
	if err != nil {
		return nil, err
	}
	if r == nil {
		if answer, ok := withoutBrowser(op); ok {
			return answer, nil
		}
		if !opens(op) || k.settings.AttachOnly {
			return nil, k.notRunning()
		}
		if err := k.Start(ctx, nil); err != nil {
			return nil, err
		}
		if r = k.current(); r == nil {
			return nil, k.notRunning()
		}
	}
	return r.browser.Do(ctx, op)
}

// opens says whether an operation may start the browser.
func opens(op browser.Operation) bool {
	switch o := op.(type) {
	case *browser.OpenTab, browser.OpenTab, *browser.Navigate, browser.Navigate:
		return true
	case *browser.TabAction:
		return o.Action == "new"
	case browser.TabAction:
		return o.Action == "new"
	}
	return false
}

// withoutBrowser is the answer to operations that have one when there is no browser.
func withoutBrowser(op browser.Operation) (any, bool) {
	none := browser.TabsResult{Tabs: []browser.Tab{}}
	switch op.(type) {
	case *browser.Tabs, browser.Tabs:
		return none, true
	case *browser.Status, browser.Status:
		return browser.StatusResult{}, true
	}
	return nil, false
}

func (k *Keeper) notRunning() error {
	hint := "start it: clawjail browser start"
	if k.settings.AttachOnly {
		hint = "browser.attach_only is set, so only you can start it: clawjail browser serve --start"
	}
	message := "browser not running"
	k.mu.Lock()
	last := k.last
	k.mu.Unlock()
	p := problem.New(problem.BrowserNotRunning, hint, "%s", message)
	if last != "" {
		p = p.With("ended", last)
	}
	return p
}

// Version is what the browser says about itself.
func (k *Keeper) Version(ctx context.Context) (browser.Version, error) {
	if err := k.Enabled(); err != nil {
		return browser.Version{}, err
	}
	r, err := k.settled(ctx)
	if err != nil {
		return browser.Version{}, err
	}
	if r == nil {
		return browser.Version{}, k.notRunning()
	}
	return r.browser.Version(), nil
}

// DevtoolsAddress is where DevTools clients connect to, such as 127.0.0.1:18792.
func (k *Keeper) DevtoolsAddress() string {
	_, devtools, _ := k.settings.Local()
	return devtools.String()
}
