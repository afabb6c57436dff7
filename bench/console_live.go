//go:build linux

package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/coder/websocket/wsjson"

	"github.com/clawjail/clawjail/bench/report"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/console"
	"github.com/clawjail/clawjail/internal/session"
)

const (
	// typedKeys are timed from the key to the picture.
	typedKeys = 100
	// refreshRounds is how often somebody begins to log in, at most: it takes a whole browser each time.
	refreshRounds = 5
	// watchedFor is how long a page is watched for what that costs.
	watchedFor = 8 * time.Second
	// calmAfter is how long a browser may take to come to rest.
	calmAfter = 3 * time.Second
	// settled is how long no picture came when a page has come to rest.
	settled = 40 * time.Millisecond
	// pictureLimit is how long one is waited for.
	pictureLimit = 10 * time.Second
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

// watcher looks at a session, as the page of the console does: what it was sent is drawn at once.
type watcher struct {
	conn     *websocket.Conn
	pictures chan string // when the server got each
	held     chan bool   // whether it is this person who has the browser in hand, each time it is told
	task     sync.WaitGroup
	err      error // why there are no more pictures; once the channels are closed
}

// watch opens a live view, and waits for its first picture. The caller ends it.
func (d *desk) watch(ctx context.Context, session string) *watcher {
	at := d.base + console.Prefix + "/sessions/" + session + "/live"
	conn, _, err := websocket.Dial(ctx, at, &websocket.DialOptions{HTTPClient: &http.Client{Jar: d.client.Jar}, HTTPHeader: http.Header{"Origin": {d.base}}})
	check(err)
	conn.SetReadLimit(-1)
	w := &watcher{conn: conn, pictures: make(chan string, 4096), held: make(chan bool, 16)}
	w.task.Go(func() {
		w.err = w.read(ctx)
		close(w.pictures)
		close(w.held)
	})
	err = attempt(func() {
		w.send(ctx, map[string]any{"type": "visible", "visible": true})
		w.next(ctx)
	})
	if err != nil {
		w.end()
		check(err)
	}
	return w
}

func (w *watcher) end() {
	_ = w.conn.CloseNow() // no answer is waited for
	w.task.Wait()
}

func (w *watcher) send(ctx context.Context, message any) {
	check(wsjson.Write(ctx, w.conn, message))
}

func (w *watcher) read(ctx context.Context) error {
	for {
		kind, text, err := w.conn.Read(ctx)
		if err != nil {
			return err
		}
		if kind == websocket.MessageBinary {
			var about struct {
				At string `json:"at"`
			}
			if len(text) < 4 || json.Unmarshal(text[4:4+binary.BigEndian.Uint32(text)], &about) != nil {
				return errors.New("a message is no picture")
			}
			w.pictures <- about.At
			if err := wsjson.Write(ctx, w.conn, map[string]any{"type": "shown"}); err != nil {
				return err
			}
			continue
		}
		var told map[string]json.RawMessage
		if err := json.Unmarshal(text, &told); err != nil {
			return err
		}
		if failed, ok := told["error"]; ok {
			return fmt.Errorf("an input was refused: %s", failed)
		}
		if control, ok := told["control"]; ok {
			w.held <- strings.Contains(string(control), `"mine":true`)
		}
	}
}

// next waits for a picture.
func (w *watcher) next(ctx context.Context) {
	receive(ctx, w, w.pictures, "a picture", func(string) bool { return true })
}

// hold waits until it is told that the person has the browser in hand.
func (w *watcher) hold(ctx context.Context) {
	receive(ctx, w, w.held, "word of who has the browser in hand", func(mine bool) bool { return mine })
}

func receive[T any](ctx context.Context, w *watcher, from chan T, what string, wanted func(T) bool) {
	ctx, cancel := context.WithTimeout(ctx, pictureLimit)
	defer cancel()
	for {
		select {
		case got, ok := <-from:
			if !ok {
				check(w.err)
			}
			if wanted(got) {
				return
			}
		case <-ctx.Done():
			check(fmt.Errorf("no %s came: %w", what, ctx.Err()))
		}
	}
}

// drain takes all that come until none has come for a while.
func (w *watcher) drain(quiet time.Duration) (all []string) {
	for {
		select {
		case p, ok := <-w.pictures:
			if !ok {
				return all
			}
			all = append(all, p)
		case <-time.After(quiet):
			return all
		}
	}
}

// live measures the live view of a session on a page that stands still, and on one that does not.
func (b *bench) live(ctx context.Context, d *desk, session string) {
	b.idleView(ctx, d, session, "/", "console: idle page, ", 3).AtMost(1)
	// A field that has the focus has a caret, and that blinks: the page is drawn twice a second.
	b.idleView(ctx, d, session, "/still", "console: page with a caret, ", 1)
	b.takeOvers(ctx, d, session)
	check(b.within(func() { b.keys(ctx, d, session) }))
	must(d.api.Navigate(ctx, session, browser.Navigate{URL: b.site.address("/moving")}))
	b.viewers(ctx, d, session, 1)
	b.viewers(ctx, d, session, 4)
	b.refreshes(ctx, d)
}

// takeOvers times the button: until the page is told that it has the browser in hand, and for somebody whose page opens only
// then, until the first picture.
func (b *bench) takeOvers(ctx context.Context, d *desk, session string) {
	b.inTurn(b.runs, 0, func(t times) {
		var w *watcher
		look := func() { w = d.watch(ctx, session) }
		take := func() { d.post(ctx, "/sessions/"+session+"/take-over", nil) }
		back := func() {
			w.end()
			d.post(ctx, "/sessions/"+session+"/hand-back", nil)
		}
		t.timed("console: live view to first picture", look)
		t.timed("console: take-over until it is told", func() {
			take()
			w.hold(ctx)
		})
		back()
		t.timed("console: take-over to first picture", func() {
			take()
			look()
		})
		back()
	})
}

// keys times each key until a picture comes, through the console and by the bare protocol of a plain browser, in turn.
func (b *bench) keys(ctx context.Context, d *desk, session string) {
	d.post(ctx, "/sessions/"+session+"/take-over", nil)
	w := d.watch(ctx, session)
	defer w.end()
	w.hold(ctx)
	plain := bareView(ctx, b.startRelay(ctx), b.site.address("/still"))
	const ours, bare = "console: key to picture", "console: key to picture, bare CDP of a plain Chromium"
	b.inTurn(typedKeys, 0, func(t times) {
		w.drain(settled)
		t.timed(ours, func() {
			w.send(ctx, browser.LiveInput{Type: "keydown", Key: "a", Code: "KeyA"})
			w.next(ctx)
		})
		w.send(ctx, browser.LiveInput{Type: "keyup", Key: "a", Code: "KeyA"})
		for plain.frame(ctx, settled) == nil { // until the page has come to rest
		}
		t.timed(bare, func() {
			plain.press(ctx, "keyDown", "a")
			check(plain.frame(ctx, pictureLimit))
		})
		plain.press(ctx, "keyUp", "")
	})
	b.result.Figures[ours].AtMost(60)
	b.result.Beside("bare CDP of a plain Chromium", bare, ours)
	d.post(ctx, "/sessions/"+session+"/hand-back", nil)
}

// bare is the screencast of a plain browser, by the protocol alone.
type bare struct {
	session cdp.Session
	frames  *cdp.Subscription
}

// bareView begins with the quality of a live view.
func bareView(ctx context.Context, r *relay, address string) *bare {
	must(r.Navigate(ctx, address))
	session := must(r.Page(ctx)).Session()
	v := &bare{session, must(session.Subscribe("Page.screencastFrame"))}
	check(session.Call(ctx, "Page.startScreencast", map[string]any{"format": "jpeg", "quality": 70}, nil))
	return v
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
	check(json.Unmarshal(event.Params, &sent))
	return v.session.Call(ctx, "Page.screencastFrameAck", &sent, nil)
}

func (v *bare) press(ctx context.Context, kind, text string) {
	check(v.session.Call(ctx, "Input.dispatchKeyEvent", map[string]any{"type": kind, "key": "a", "code": "KeyA", "text": text, "windowsVirtualKeyCode": 65}, nil))
}

// refreshes times how somebody begins to log in for an agent: the form, the page it leads to, and the first picture; next to
// the same browser opened by the API and not looked at.
func (b *bench) refreshes(ctx context.Context, d *desk) {
	const ours, opened = "console: refresh to first picture", "console: full browser opened by the API, nobody watches"
	b.inTurn(min(b.runs, refreshRounds), 0, func(t times) {
		var id string
		t.timed(opened, func() { id = must(d.api.Open(ctx, session.OpenRequest{Browser: string(config.BrowserFull)})).ID })
		d.gone(ctx, id)
		var w *watcher
		t.timed(ours, func() {
			to := d.post(ctx, "/refresh", url.Values{"domain": {"clawjail.test"}, "url": {b.site.address("/still")}})
			d.get(ctx, console.Prefix+to)
			id = strings.TrimPrefix(to, "/refresh/")
			w = d.watch(ctx, id)
		})
		w.end()
		d.gone(ctx, id)
	})
	b.result.Beside("opened by the API, nobody watches", opened, ours)
}

// idleView is the cost of one viewer of an idle page, beside what it costs alone: the medians, so that what
// a daemon does once in a while is not taken for what watching costs. It returns what a viewer adds.
func (b *bench) idleView(ctx context.Context, d *desk, session, page, name string, rounds int) *report.Figure {
	must(d.api.Navigate(ctx, session, browser.Navigate{URL: b.site.address(page)}))
	shares, pictures := map[string][]float64{}, 0
	for range rounds {
		time.Sleep(calmAfter)
		d.costs(shares, ", nobody watches")
		w := d.watch(ctx, session)
		time.Sleep(calmAfter)
		w.drain(time.Millisecond)
		d.costs(shares, ", one viewer")
		pictures += len(w.drain(time.Millisecond))
		w.end()
	}
	added := 0.0
	for _, who := range []string{"jail", "daemons"} {
		alone, watched := who+", nobody watches", who+", one viewer"
		b.result.Value(name+alone, "% of a core", median(shares[alone]))
		b.result.Value(name+watched, "% of a core", median(shares[watched]))
		b.result.Beside("nobody watches", name+alone, name+watched)
		added += median(shares[watched]) - median(shares[alone])
	}
	b.result.Value(name+"pictures of one viewer", "1/s", float64(pictures)/float64(rounds)/watchedFor.Seconds())
	return b.result.Value(name+"what a viewer adds", "% of a core", added)
}

// viewers is what a page that moves costs while some look at it. When the pictures of all are the same, they were made once.
func (b *bench) viewers(ctx context.Context, d *desk, session string, count int) {
	var all []*watcher
	for range count {
		w := d.watch(ctx, session)
		defer w.end()
		all = append(all, w)
	}
	time.Sleep(calmAfter)
	for _, w := range all {
		w.drain(time.Millisecond) // from here on they are counted
	}
	shares := map[string][]float64{}
	d.costs(shares, "")
	distinct, limit := map[string]bool{}, 0
	for _, w := range all {
		pictures := w.drain(time.Millisecond)
		limit = max(limit, len(pictures))
		for _, p := range pictures {
			distinct[p] = true
		}
	}
	if limit == 0 {
		check(errors.New("no picture came of a page that moves"))
	}
	const one = "console: moving page, viewers: 1, "
	name := fmt.Sprintf("console: moving page, viewers: %d, ", count)
	for who, share := range shares {
		b.result.Value(name+who, "% of a core", share[0])
		if count > 1 {
			b.result.Beside("one viewer", one+who, name+who)
		}
	}
	b.result.Value(name+"pictures of one", "1/s", float64(limit)/watchedFor.Seconds())
	if count > 1 {
		b.result.Value(name+"pictures of all, to those of one", "×", float64(len(distinct))/float64(limit)).AtMost(1.2)
	}
}

// costs adds what both daemons and all jails use for as long as a page is watched, in percent of a core.
func (d *desk) costs(shares map[string][]float64, how string) {
	used := func() map[string]float64 {
		daemons, jailed := d.processes()
		return map[string]float64{"daemons": ticks(daemons), "jail": ticks(jailed)}
	}
	began, before := time.Now(), used()
	time.Sleep(watchedFor)
	for who, after := range used() {
		shares[who+how] = append(shares[who+how], (after-before[who])/time.Since(began).Seconds())
	}
}

// ticks is the processor time of processes, in hundredths of a second. One that has ended has none.
func ticks(processes []string) (sum float64) {
	for _, dir := range processes {
		text, _ := os.ReadFile(filepath.Join(dir, "stat"))
		_, behind, _ := strings.Cut(string(text), ") ")
		if fields := strings.Fields(behind); len(fields) > 12 {
			for _, field := range fields[11:13] { // utime and stime, see proc_pid_stat(5)
				n, _ := strconv.ParseFloat(field, 64) // the kernel writes numbers
				sum += n
			}
		}
	}
	return sum
}
