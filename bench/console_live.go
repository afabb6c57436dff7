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
	"syscall"
	"time"

	"github.com/coder/websocket"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/console"
)

const (
	// typedKeys are timed from the key to the picture.
	typedKeys = 100
	// watchedFor is how long a page is watched for what that costs, and idleRounds how often.
	watchedFor = 10 * time.Second
	idleRounds = 2
	// viewersAtOnce look at one session.
	viewersAtOnce = 4
	// calmAfter is how long a browser may take to come to rest.
	calmAfter = 3 * time.Second
	// settled is how long no picture came when a page has come to rest.
	settled = 40 * time.Millisecond
	// pictureLimit is how long one is waited for.
	pictureLimit = 10 * time.Second
	// liveQuality is that of the pictures of a live view.
	liveQuality = 70
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
	pictures chan picture
	held     chan bool // whether it is this person who has the browser in hand, each time it is told
	task     sync.WaitGroup
	err      error // why there are no more pictures; once the channel is closed
}

type picture struct {
	came  time.Time
	taken string // when the server got it
	bytes int
}

// watch opens a live view.
func (d *desk) watch(ctx context.Context, session string) (*watcher, error) {
	at := d.base + console.Prefix + "/sessions/" + session + "/live"
	conn, _, err := websocket.Dial(ctx, at, &websocket.DialOptions{HTTPClient: &http.Client{Jar: d.jar}, HTTPHeader: http.Header{"Origin": {d.base}}})
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	conn.SetReadLimit(-1)
	w := &watcher{conn: conn, pictures: make(chan picture, 4096), held: make(chan bool, 16)}
	w.task.Go(func() {
		w.err = w.read(ctx)
		close(w.pictures)
	})
	return w, w.send(ctx, map[string]any{"type": "visible", "visible": true})
}

func (w *watcher) end() {
	_ = w.conn.CloseNow() // nobody waits for an answer
	w.task.Wait()
}

func (w *watcher) send(ctx context.Context, message any) error {
	text, err := json.Marshal(message)
	if err != nil {
		return err
	}
	return w.conn.Write(ctx, websocket.MessageText, text)
}

func (w *watcher) read(ctx context.Context) error {
	for {
		kind, text, err := w.conn.Read(ctx)
		if err != nil {
			return err
		}
		came := time.Now()
		if kind == websocket.MessageBinary {
			var about struct {
				At string `json:"at"`
			}
			if len(text) < 4 || json.Unmarshal(text[4:4+binary.BigEndian.Uint32(text)], &about) != nil {
				return errors.New("a message is no picture")
			}
			w.pictures <- picture{came, about.At, len(text)}
			if err := w.send(ctx, map[string]any{"type": "shown"}); err != nil {
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
func (w *watcher) next(ctx context.Context) (picture, error) {
	ctx, cancel := context.WithTimeout(ctx, pictureLimit)
	defer cancel()
	select {
	case p, ok := <-w.pictures:
		if !ok {
			return p, w.err
		}
		return p, nil
	case <-ctx.Done():
		return picture{}, fmt.Errorf("no picture came: %w", ctx.Err())
	}
}

// settle waits until no more pictures come, and returns those that came.
func (w *watcher) settle() (all []picture) {
	for {
		select {
		case p, ok := <-w.pictures:
			if !ok {
				return all
			}
			all = append(all, p)
		case <-time.After(settled):
			return all
		}
	}
}

// hold waits until it is told that the person has the browser in hand, or has not.
func (w *watcher) hold(ctx context.Context, mine bool) error {
	ctx, cancel := context.WithTimeout(ctx, pictureLimit)
	defer cancel()
	for {
		select {
		case got := <-w.held:
			if got == mine {
				return nil
			}
		case <-ctx.Done():
			return fmt.Errorf("nothing was told of who has the browser in hand: %w", ctx.Err())
		}
	}
}

// live measures the live view of a session on a page that stands still, and on one that does not.
func (b *bench) live(ctx context.Context, d *desk) (err error) {
	s, err := d.api.Open(ctx, api.OpenRequest{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.api.Close(context.WithoutCancel(ctx), s.ID, true)) }()
	if err := b.idleView(ctx, d, s.ID); err != nil {
		return fmt.Errorf("an idle page: %w", err)
	}
	if _, err := d.api.Navigate(ctx, s.ID, browser.Navigate{URL: b.site.address("/still")}); err != nil {
		return err
	}
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

// idleView is what one viewer of a page that stands still costs.
func (b *bench) idleView(ctx context.Context, d *desk, session string) error {
	if _, err := d.api.Navigate(ctx, session, browser.Navigate{URL: b.site.address("/")}); err != nil {
		return err
	}
	var without, with cost
	pictures := 0
	for range idleRounds {
		c, err := d.costs()
		if err != nil {
			return err
		}
		without.add(c)
		w, err := d.watch(ctx, session)
		if err != nil {
			return err
		}
		if _, err := w.next(ctx); err != nil {
			w.end()
			return err
		}
		c, err = d.costs()
		pictures += len(w.pictures)
		w.end()
		if err != nil {
			return err
		}
		with.add(c)
	}
	name := "console: idle page, "
	b.result.value(name+"jail, nobody watches", "% of a core", without.jail/idleRounds)
	b.result.value(name+"jail, one viewer", "% of a core", with.jail/idleRounds)
	b.result.value(name+"daemons, nobody watches", "% of a core", without.daemons/idleRounds)
	b.result.value(name+"daemons, one viewer", "% of a core", with.daemons/idleRounds)
	b.result.value(name+"pictures of one viewer", "1/s", float64(pictures)/idleRounds/watchedFor.Seconds())
	b.result.value(name+"what a viewer adds", "% of a core", (with.daemons+with.jail-without.daemons-without.jail)/idleRounds)
	b.result.floor(name+"what a viewer adds", 1, false)
	return nil
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
	b.result.times("console: live view to first picture", looked)
	b.result.times("console: take-over until it is told", told)
	b.result.times("console: take-over to first picture", seen)
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
	b.result.times("console: key to picture", ours)
	b.result.floor("console: key to picture", 60, false)
	b.result.times("console: key to picture, bare CDP of a plain Chromium", plain)
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

// viewers is what a page that moves costs while some look at it. When the pictures of all are the same, they were made once.
func (b *bench) viewers(ctx context.Context, d *desk, session string, count int) error {
	var all []*watcher
	defer func() {
		for _, w := range all {
			w.end()
		}
	}()
	for range count {
		w, err := d.watch(ctx, session)
		if err != nil {
			return err
		}
		all = append(all, w)
		if _, err := w.next(ctx); err != nil {
			return err
		}
	}
	for _, w := range all { // from here on they are counted
		for len(w.pictures) > 0 {
			<-w.pictures
		}
	}
	c, err := d.costs()
	if err != nil {
		return err
	}
	distinct, most := map[string]bool{}, 0
	for _, w := range all {
		n := len(w.pictures)
		most = max(most, n)
		for range n {
			distinct[(<-w.pictures).taken] = true
		}
	}
	if most == 0 {
		return errors.New("no picture came of a page that moves")
	}
	name := fmt.Sprintf("console: moving page, %d viewers: ", count)
	b.result.value(name+"jail", "% of a core", c.jail)
	b.result.value(name+"daemons", "% of a core", c.daemons)
	b.result.value(name+"pictures of one", "1/s", float64(most)/watchedFor.Seconds())
	b.result.value(name+"pictures of all, to those of one", "×", float64(len(distinct))/float64(most))
	b.result.floor(name+"pictures of all, to those of one", 1.2, false)
	return nil
}

// refreshes times how somebody begins to log in for an agent: the form, the page it leads to, and the first picture.
func (b *bench) refreshes(ctx context.Context, d *desk) error {
	var took []time.Duration
	for range min(b.runs, 5) {
		began := time.Now()
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
	b.result.times("console: refresh to first picture", took)
	return nil
}

// cost is processor time in percent of a core.
type cost struct{ daemons, jail float64 }

func (c *cost) add(o cost) { c.daemons, c.jail = c.daemons+o.daemons, c.jail+o.jail }

// costs is what both daemons and all jails use for as long as a page is watched, once what has just begun is over.
func (d *desk) costs() (cost, error) {
	time.Sleep(calmAfter)
	began := time.Now()
	before, err := d.used()
	if err != nil {
		return cost{}, err
	}
	time.Sleep(watchedFor)
	after, err := d.used()
	took := time.Since(began).Seconds()
	return cost{(after.daemons - before.daemons) / took, (after.jail - before.jail) / took}, err
}

// used is the processor time of both daemons and all jails so far, in hundredths of a second.
func (d *desk) used() (out cost, err error) {
	daemons, err := d.Processes()
	if err != nil {
		return out, err
	}
	for _, pid := range daemons[1:] {
		out.daemons += ticks(fmt.Sprintf("/proc/%d", pid))
	}
	scope, err := d.Scope()
	if err != nil {
		return out, err
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return out, err
	}
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if err != nil {
			continue // it has ended
		}
		if uid := info.Sys().(*syscall.Stat_t).Uid; uid >= scope.UIDBase && uid < scope.UIDBase+scope.UIDs {
			out.jail += ticks(dir)
		}
	}
	return out, nil
}

// ticks is the processor time of a process, in hundredths of a second; 0 when it has ended.
func ticks(dir string) (sum float64) {
	text, _ := os.ReadFile(filepath.Join(dir, "stat"))
	behind := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(behind) < 13 {
		return 0
	}
	for _, field := range behind[11:13] { // utime and stime, see proc_pid_stat(5)
		n, _ := strconv.ParseFloat(field, 64) // the kernel writes numbers
		sum += n
	}
	return sum
}
