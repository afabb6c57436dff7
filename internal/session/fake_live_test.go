package session

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"

	"github.com/clawjail/clawjail/internal/browser"
)

// fakeLive is how people see and steer a fakeBrowser. Its steps are "hold dialogs", "let go", "renew", "secrets", "do" and
// "thumbnail".
type fakeLive struct{ b *fakeBrowser }

// Live implements Browser.
func (b *fakeBrowser) Live() LiveBrowser { return fakeLive{b} }

func (l fakeLive) Watch() LiveViewer {
	v := &fakeViewer{b: l.b, frames: make(chan *browser.Frame, 10), gone: make(chan struct{})}
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	l.b.viewers = append(l.b.viewers, v)
	return v
}

func (l fakeLive) Hold(ctx context.Context) error  { return l.b.within(ctx, "hold dialogs") }
func (l fakeLive) LetGo(ctx context.Context) error { return l.b.within(ctx, "let go") }
func (l fakeLive) Renew(ctx context.Context) error { return l.b.within(ctx, "renew") }

func (l fakeLive) Secrets(context.Context) ([]string, error) {
	if err := l.b.step("secrets"); err != nil {
		return nil, err
	}
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	return l.b.secrets, nil
}

func (l fakeLive) Thumbnail(ctx context.Context) ([]byte, error) {
	return []byte("a small picture"), l.b.within(ctx, "thumbnail")
}

// Do keeps what was typed. An input of type hang takes for as long as its context.
func (l fakeLive) Do(ctx context.Context, in browser.LiveInput) (string, error) {
	if in.Type == "hang" {
		<-ctx.Done()
		return "", ctx.Err()
	}
	if err := l.b.step("do"); err != nil {
		return "", err
	}
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	l.b.typed = append(l.b.typed, in.Text)
	return "copied", nil
}

// fakeViewer sees what a test gives it.
type fakeViewer struct {
	b      *fakeBrowser
	frames chan *browser.Frame
	once   sync.Once
	gone   chan struct{}
}

func (v *fakeViewer) Next(ctx context.Context) (*browser.Frame, *browser.LiveState, error) {
	select {
	case f := <-v.frames:
		return f, nil, nil
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	case <-v.b.done:
		return nil, nil, errors.New("the browser is gone")
	case <-v.gone:
		return nil, nil, errors.New("the viewer is closed")
	}
}

func (v *fakeViewer) Shown()       {}
func (v *fakeViewer) Visible(bool) {}
func (v *fakeViewer) Close()       { v.once.Do(func() { close(v.gone) }) }

// Hosts implements Gateway.
func (g way) Hosts(netip.Addr) []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.hosts)
}
