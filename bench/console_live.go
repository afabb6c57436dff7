//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
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
	// watchedFor is how long a page is watched for what that costs, and idleRounds how often where a floor depends on it.
	watchedFor = 8 * time.Second
	idleRounds = 3
	// viewersAtOnce look at one session.
	viewersAtOnce = 4
	// calmAfter is how long a browser may take to come to rest.
	calmAfter = 3 * time.Second
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
	return inOrder(
		func() error { return b.idleView(ctx, d, s.ID, "/", "console: idle page, ", idleRounds) },
		// A field that has the focus has a caret, and that blinks: the page is drawn twice a second.
		func() error { return b.idleView(ctx, d, s.ID, "/still", "console: page with a caret, ", 1) },
		func() error { return b.takeOvers(ctx, d, s.ID) },
		func() error { return b.keys(ctx, d, s.ID) },
		func() error {
			_, err := d.api.Navigate(ctx, s.ID, browser.Navigate{URL: b.site.address("/moving")})
			return err
		},
		func() error { return b.viewers(ctx, d, s.ID, 1) },
		func() error { return b.viewers(ctx, d, s.ID, viewersAtOnce) },
		func() error { return b.refreshes(ctx, d) })
}

// button presses one of the page of a session.
func (d *desk) button(ctx context.Context, session, name string) error {
	_, err := d.post(ctx, "/sessions/"+session+"/"+name, nil)
	return err
}

// takeOvers times the button: until the page is told that it has the browser in hand, and for somebody whose page opens only
// then, until the first picture.
func (b *bench) takeOvers(ctx context.Context, d *desk, session string) error {
	var w *watcher
	look := func() (err error) { w, err = d.watch(ctx, session); return err }
	take := func() error { return d.button(ctx, session, "take-over") }
	back := func() error { w.end(); return d.button(ctx, session, "hand-back") }
	_, err := b.inTurn(b.runs, 0, func(t times) error {
		return inOrder(
			func() error { return t.timed("console: live view to first picture", look) },
			func() error {
				err := t.timed("console: take-over until it is told", func() error { return inOrder(take, func() error { return w.hold(ctx) }) })
				return errors.Join(err, back())
			},
			func() error {
				return t.timed("console: take-over to first picture", func() error { return inOrder(take, look) })
			},
			back)
	})
	return err
}

// keys times each key until a picture comes, through the console and by the bare protocol of a plain browser, in turn.
func (b *bench) keys(ctx context.Context, d *desk, session string) (err error) {
	if err := d.button(ctx, session, "take-over"); err != nil {
		return err
	}
	w, err := d.watch(ctx, session)
	if err != nil {
		return err
	}
	defer w.end()
	if err := w.hold(ctx); err != nil {
		return err
	}
	r, err := startRelay(ctx, b.site.URL)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.end()) }()
	plain, err := bareView(ctx, r, b.site.address("/still"))
	if err != nil {
		return fmt.Errorf("the bare protocol: %w", err)
	}
	const ours, bare = "console: key to picture", "console: key to picture, bare CDP of a plain Chromium"
	_, err = b.inTurn(typedKeys, 0, func(t times) error {
		w.settle()
		err := t.timed(ours, func() error {
			return errors.Join(w.send(ctx, browser.LiveInput{Type: "keydown", Key: "a", Code: "KeyA"}), w.next(ctx))
		})
		return errors.Join(err, w.send(ctx, browser.LiveInput{Type: "keyup", Key: "a", Code: "KeyA"}), plain.key(ctx, t, bare))
	})
	if err != nil {
		return err
	}
	b.result.Figures[ours].AtMost(60)
	b.result.Beside("bare CDP of a plain Chromium", bare, ours)
	return d.button(ctx, session, "hand-back")
}

// bare is the screencast of a plain browser, by the protocol alone.
type bare struct {
	session cdp.Session
	frames  *cdp.Subscription
}

func bareView(ctx context.Context, r *relay, address string) (*bare, error) {
	if _, err := r.Navigate(ctx, address); err != nil {
		return nil, err
	}
	page, err := r.Page(ctx)
	if err != nil {
		return nil, err
	}
	v := &bare{session: page.Session()}
	if v.frames, err = v.session.Subscribe("Page.screencastFrame"); err != nil {
		return nil, err
	}
	return v, v.session.Call(ctx, "Page.startScreencast", map[string]any{"format": "jpeg", "quality": liveQuality}, nil)
}

// frame waits for one and lets the next one come.
func (v *bare) frame(ctx context.Context, limit time.Duration) error {
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	event, err := v.frames.Next(within)
	if err != nil {
		return err
	}
	var sent struct {
		SessionID int64 `json:"sessionId"`
	}
	if err := json.Unmarshal(event.Params, &sent); err != nil {
		return err
	}
	return v.session.Call(ctx, "Page.screencastFrameAck", map[string]any{"sessionId": sent.SessionID}, nil)
}

func (v *bare) key(ctx context.Context, t times, name string) error {
	for v.frame(ctx, settled) == nil { // until the page has come to rest
	}
	press := func(kind, text string) error {
		return v.session.Call(ctx, "Input.dispatchKeyEvent", map[string]any{"type": kind, "key": "a", "code": "KeyA", "text": text, "windowsVirtualKeyCode": 65}, nil)
	}
	err := t.timed(name, func() error { return errors.Join(press("keyDown", "a"), v.frame(ctx, pictureLimit)) })
	return errors.Join(err, press("keyUp", ""))
}

// refreshes times how somebody begins to log in for an agent: the form, the page it leads to, and the first picture; next to
// the same browser opened by the API and not looked at.
func (b *bench) refreshes(ctx context.Context, d *desk) error {
	const ours, opened = "console: refresh to first picture", "console: full browser opened by the API, nobody watches"
	_, err := b.inTurn(min(b.runs, refreshRounds), 0, func(t times) error {
		s, err := d.open(ctx, t, opened, api.OpenRequest{Browser: string(config.BrowserFull)})
		if err != nil {
			return err
		}
		if err := d.api.Close(ctx, s.ID, true); err != nil {
			return err
		}
		var to string
		err = t.timed(ours, func() (err error) {
			if to, err = d.post(ctx, "/refresh", url.Values{"domain": {"clawjail.test"}, "url": {b.site.address("/still")}}); err != nil {
				return err
			}
			if _, err := d.get(ctx, console.Prefix+to); err != nil {
				return err
			}
			w, err := d.watch(ctx, strings.TrimPrefix(to, "/refresh/"))
			if err == nil {
				defer w.end()
			}
			return err
		})
		return errors.Join(err, d.api.Close(ctx, strings.TrimPrefix(to, "/refresh/"), true))
	})
	b.result.Beside("opened by the API, nobody watches", opened, ours)
	return err
}

// idleView is what one viewer of a page on which nobody does anything costs, beside what it costs alone: the medians, so that what
// a daemon does once in a while is not taken for what watching costs.
func (b *bench) idleView(ctx context.Context, d *desk, session, page, name string, rounds int) error {
	if _, err := d.api.Navigate(ctx, session, browser.Navigate{URL: b.site.address(page)}); err != nil {
		return err
	}
	shares, pictures := map[string][]float64{}, 0
	costs := func(who string) error {
		daemons, jail, err := d.costs()
		shares["daemons, "+who], shares["jail, "+who] = append(shares["daemons, "+who], daemons), append(shares["jail, "+who], jail)
		return err
	}
	for range rounds {
		time.Sleep(calmAfter)
		if err := costs("nobody watches"); err != nil {
			return err
		}
		w, err := d.watch(ctx, session)
		if err != nil {
			return err
		}
		time.Sleep(calmAfter)
		before := len(w.pictures)
		err = costs("one viewer")
		pictures += len(w.pictures) - before
		w.end()
		if err != nil {
			return err
		}
	}
	added := 0.0
	for _, who := range []string{"jail", "daemons"} {
		for _, how := range []string{", nobody watches", ", one viewer"} {
			b.result.Value(name+who+how, "% of a core", median(shares[who+how]))
		}
		added += median(shares[who+", one viewer"]) - median(shares[who+", nobody watches"])
		b.result.Beside("nobody watches", name+who+", nobody watches", name+who+", one viewer")
	}
	b.result.Value(name+"pictures of one viewer", "1/s", float64(pictures)/float64(rounds)/watchedFor.Seconds())
	f := b.result.Value(name+"what a viewer adds", "% of a core", added)
	if rounds == idleRounds {
		f.AtMost(1)
	}
	return nil
}

// viewers is what a page that moves costs while some look at it. When the pictures of all are the same, they were made once.
func (b *bench) viewers(ctx context.Context, d *desk, session string, count int) error {
	var all []*watcher
	for range count {
		w, err := d.watch(ctx, session)
		if err != nil {
			return err
		}
		defer w.end()
		all = append(all, w)
	}
	time.Sleep(calmAfter)
	for _, w := range all { // from here on they are counted
		for len(w.pictures) > 0 {
			<-w.pictures
		}
	}
	daemons, jail, err := d.costs()
	if err != nil {
		return err
	}
	distinct, most := map[string]bool{}, 0
	for _, w := range all {
		n := len(w.pictures)
		most = max(most, n)
		for range n {
			distinct[<-w.pictures] = true
		}
	}
	if most == 0 {
		return errors.New("no picture came of a page that moves")
	}
	const one = "console: moving page, viewers: 1, "
	name := fmt.Sprintf("console: moving page, viewers: %d, ", count)
	b.result.Value(name+"jail", "% of a core", jail)
	b.result.Value(name+"daemons", "% of a core", daemons)
	b.result.Value(name+"pictures of one", "1/s", float64(most)/watchedFor.Seconds())
	if count > 1 {
		b.result.Value(name+"pictures of all, to those of one", "×", float64(len(distinct))/float64(most)).AtMost(1.2)
		b.result.Beside("one viewer", one+"jail", name+"jail")
		b.result.Beside("one viewer", one+"daemons", name+"daemons")
	}
	return nil
}

// costs is what both daemons and all jails use for as long as a page is watched, in percent of a core.
func (d *desk) costs() (daemons, jail float64, err error) {
	began := time.Now()
	beforeDaemons, beforeJail, err := d.used()
	if err != nil {
		return 0, 0, err
	}
	time.Sleep(watchedFor)
	daemons, jail, err = d.used()
	took := time.Since(began).Seconds()
	return (daemons - beforeDaemons) / took, (jail - beforeJail) / took, err
}

// used is the processor time of both daemons and all jails so far, in hundredths of a second.
func (d *desk) used() (daemons, jail float64, err error) {
	ours, jailed, err := d.processes()
	return ticks(ours), ticks(jailed), err
}

// ticks is the processor time of processes, in hundredths of a second. One that has ended has none.
func ticks(processes []string) (sum float64) {
	for _, dir := range processes {
		text, _ := os.ReadFile(filepath.Join(dir, "stat"))
		behind := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if len(behind) < 13 {
			continue
		}
		for _, field := range behind[11:13] { // utime and stime, see proc_pid_stat(5)
			n, _ := strconv.ParseFloat(field, 64) // the kernel writes numbers
			sum += n
		}
	}
	return sum
}
