//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/console"
)

const (
	// typedKeys are timed from the key to the picture.
	typedKeys = 100
	// liveQuality is that of the pictures of a live view.
	liveQuality = 70
	// refreshRounds is how often somebody begins to log in, at most: it takes a whole browser each time.
	refreshRounds = 5
)

// still is a page of text on which nothing moves, its caret included.
func still() string {
	return `<textarea autofocus rows=6 cols=80 style="caret-color:transparent"></textarea>` + strings.Repeat("<p>some lines of text that stand still</p>", 40)
}

// moving is a page that is never the same twice.
func moving() string {
	return `<style>@keyframes turn { to { transform: rotate(1turn) } }
div { width: 300px; height: 300px; margin: 100px; background: linear-gradient(red, blue); animation: turn 3s linear infinite }</style><div></div>` +
		strings.Repeat("<p>some lines of text that stand still</p>", 20)
}

// live measures the live view of a session on a page that stands still, and on one that does not.
func (b *bench) live(ctx context.Context, d *desk) (err error) {
	s, err := d.api.Open(ctx, api.OpenRequest{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.api.Close(context.WithoutCancel(ctx), s.ID, true)) }()
	const idle = "console: idle page, "
	added, err := b.idleView(ctx, d, s.ID, "/", idle, idleRounds)
	if err != nil {
		return fmt.Errorf("an idle page: %w", err)
	}
	b.result.Value(idle+"what a viewer adds", "% of a core", added)
	b.result.AtMost(idle+"what a viewer adds", 1)
	// A field that has the focus has a caret, and that blinks: the page is drawn twice a second.
	if added, err = b.idleView(ctx, d, s.ID, "/still", "console: page with a caret, ", 1); err != nil {
		return fmt.Errorf("a page with a caret: %w", err)
	}
	b.result.Value("console: page with a caret, what a viewer adds", "% of a core", added)
	if err := b.takeOvers(ctx, d, s.ID); err != nil {
		return fmt.Errorf("take-over: %w", err)
	}
	if err := b.keys(ctx, d, s.ID); err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	if _, err := d.api.Navigate(ctx, s.ID, browser.Navigate{URL: b.site.address("/moving")}); err != nil {
		return err
	}
	for _, viewers := range []int{1, viewersAtOnce} {
		if err := b.viewers(ctx, d, s.ID, viewers); err != nil {
			return fmt.Errorf("%d viewers: %w", viewers, err)
		}
	}
	return b.refreshes(ctx, d)
}

// takeOvers times the button: until the page is told that it has the browser in hand, and for somebody whose page opens only
// then, until the first picture.
func (b *bench) takeOvers(ctx context.Context, d *desk, session string) error {
	var told, seen, looked []time.Duration
	for range b.runs {
		began := time.Now()
		w, err := d.watch(ctx, session)
		if err != nil {
			return err
		}
		p, err := w.next(ctx)
		if err != nil {
			w.end()
			return err
		}
		looked = append(looked, p.came.Sub(began))
		began = time.Now()
		_, err = d.post(ctx, "/sessions/"+session+"/take-over", nil)
		if err == nil {
			err = w.hold(ctx, true)
		}
		told = append(told, time.Since(began))
		w.end()
		if err == nil {
			_, err = d.post(ctx, "/sessions/"+session+"/hand-back", nil)
		}
		if err != nil {
			return err
		}
		began = time.Now()
		if _, err = d.post(ctx, "/sessions/"+session+"/take-over", nil); err != nil {
			return err
		}
		if w, err = d.watch(ctx, session); err != nil {
			return err
		}
		p, err = w.next(ctx)
		seen = append(seen, p.came.Sub(began))
		w.end()
		if err == nil {
			_, err = d.post(ctx, "/sessions/"+session+"/hand-back", nil)
		}
		if err != nil {
			return err
		}
	}
	b.result.Times("console: live view to first picture", looked)
	b.result.Times("console: take-over until it is told", told)
	b.result.Times("console: take-over to first picture", seen)
	return nil
}

// keys times each key until a picture comes, through the console and by the bare protocol of a plain browser, in turn.
func (b *bench) keys(ctx context.Context, d *desk, session string) (err error) {
	if _, err := d.post(ctx, "/sessions/"+session+"/take-over", nil); err != nil {
		return err
	}
	w, err := d.watch(ctx, session)
	if err != nil {
		return err
	}
	defer w.end()
	if err := w.hold(ctx, true); err != nil {
		return err
	}
	r, err := startRelay(ctx, b.site.plain(""))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.end()) }()
	bare, err := bareView(ctx, r, b.site.address("/still"))
	if err != nil {
		return fmt.Errorf("the bare protocol: %w", err)
	}
	var ours, plain []time.Duration
	for range typedKeys {
		w.settle()
		began := time.Now()
		if err := w.send(ctx, browser.LiveInput{Type: "keydown", Key: "a", Code: "KeyA"}); err != nil {
			return err
		}
		p, err := w.next(ctx)
		if err != nil {
			return err
		}
		ours = append(ours, p.came.Sub(began))
		if err := w.send(ctx, browser.LiveInput{Type: "keyup", Key: "a", Code: "KeyA"}); err != nil {
			return err
		}
		took, err := bare.key(ctx)
		if err != nil {
			return fmt.Errorf("the bare protocol: %w", err)
		}
		plain = append(plain, took)
	}
	b.result.Times("console: key to picture", ours)
	b.result.AtMost("console: key to picture", 60)
	b.result.Times("console: key to picture, bare CDP of a plain Chromium", plain)
	b.result.Beside("console: key to picture", "console: key to picture, bare CDP of a plain Chromium", "bare CDP of a plain Chromium")
	_, err = d.post(ctx, "/sessions/"+session+"/hand-back", nil)
	return err
}

// bare is the screencast of a plain browser, by the protocol alone.
type bare struct {
	session cdp.Session
	frames  *cdp.Subscription
}

func bareView(ctx context.Context, r *relay, page string) (*bare, error) {
	if _, err := r.Navigate(ctx, page); err != nil {
		return nil, err
	}
	id, err := attachedPage(ctx, r)
	if err != nil {
		return nil, err
	}
	v := &bare{session: r.Conn().Session(id)}
	if v.frames, err = v.session.Subscribe("Page.screencastFrame"); err != nil {
		return nil, err
	}
	return v, v.session.Call(ctx, "Page.startScreencast", map[string]any{"format": "jpeg", "quality": liveQuality}, nil)
}

// frame waits for one and lets the next one come.
func (v *bare) frame(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	event, err := v.frames.Next(ctx)
	if err != nil {
		return err
	}
	var sent struct {
		SessionID int64 `json:"sessionId"`
	}
	if err := json.Unmarshal(event.Params, &sent); err != nil {
		return err
	}
	return v.session.Call(context.WithoutCancel(ctx), "Page.screencastFrameAck", map[string]any{"sessionId": sent.SessionID}, nil)
}

func (v *bare) key(ctx context.Context) (time.Duration, error) {
	for v.frame(ctx, settled) == nil { // until the page has come to rest
	}
	began := time.Now()
	key := map[string]any{"type": "keyDown", "key": "a", "code": "KeyA", "text": "a", "windowsVirtualKeyCode": 65}
	if err := v.session.Call(ctx, "Input.dispatchKeyEvent", key, nil); err != nil {
		return 0, err
	}
	if err := v.frame(ctx, pictureLimit); err != nil {
		return 0, err
	}
	took := time.Since(began)
	key["type"] = "keyUp"
	delete(key, "text")
	return took, v.session.Call(ctx, "Input.dispatchKeyEvent", key, nil)
}

// refreshes times how somebody begins to log in for an agent: the form, the page it leads to, and the first picture; next to
// the same browser opened by the API and not looked at.
func (b *bench) refreshes(ctx context.Context, d *desk) error {
	var took, opened []time.Duration
	for range min(b.runs, refreshRounds) {
		began := time.Now()
		s, err := d.api.Open(ctx, api.OpenRequest{Browser: string(config.BrowserFull)})
		if err != nil {
			return err
		}
		opened = append(opened, time.Since(began))
		if err := d.api.Close(ctx, s.ID, true); err != nil {
			return err
		}
		began = time.Now()
		to, err := d.post(ctx, "/refresh", url.Values{"domain": {"clawjail.test"}, "url": {b.site.address("/still")}})
		if err != nil {
			return fmt.Errorf("refresh: %w", err)
		}
		id := strings.TrimPrefix(to, "/refresh/")
		if _, _, err := d.get(ctx, d.client, console.Prefix+to); err != nil {
			return fmt.Errorf("refresh: %w", err)
		}
		w, err := d.watch(ctx, id)
		if err != nil {
			return fmt.Errorf("refresh: %w", err)
		}
		p, err := w.next(ctx)
		took = append(took, p.came.Sub(began))
		w.end()
		if err = errors.Join(err, d.api.Close(ctx, id, true)); err != nil {
			return fmt.Errorf("refresh: %w", err)
		}
	}
	b.result.Times("console: refresh to first picture", took)
	b.result.Times("console: full browser opened by the API, nobody watches", opened)
	b.result.Beside("console: refresh to first picture", "console: full browser opened by the API, nobody watches", "opened by the API, nobody watches")
	return nil
}
