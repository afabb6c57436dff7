//go:build linux

package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/clawjail/clawjail/internal/console"
)

const (
	// settled is how long no picture came when a page has come to rest.
	settled = 40 * time.Millisecond
	// pictureLimit is how long one is waited for.
	pictureLimit = 10 * time.Second
)

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
