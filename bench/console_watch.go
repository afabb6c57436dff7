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
	pictures chan string // when the server got each
	held     chan bool   // whether it is this person who has the browser in hand, each time it is told
	task     sync.WaitGroup
	err      error // why there are no more pictures; once the channels are closed
}

// watch opens a live view, and waits for its first picture.
func (d *desk) watch(ctx context.Context, session string) (*watcher, error) {
	at := d.base + console.Prefix + "/sessions/" + session + "/live"
	conn, _, err := websocket.Dial(ctx, at, &websocket.DialOptions{HTTPClient: &http.Client{Jar: d.client.Jar}, HTTPHeader: http.Header{"Origin": {d.base}}})
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	conn.SetReadLimit(-1)
	w := &watcher{conn: conn, pictures: make(chan string, 4096), held: make(chan bool, 16)}
	w.task.Go(func() {
		w.err = w.read(ctx)
		close(w.pictures)
		close(w.held)
	})
	if err = w.send(ctx, map[string]any{"type": "visible", "visible": true}); err == nil {
		err = w.next(ctx)
	}
	if err != nil {
		w.end()
		return nil, err
	}
	return w, nil
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
		if kind == websocket.MessageBinary {
			var about struct {
				At string `json:"at"`
			}
			if len(text) < 4 || json.Unmarshal(text[4:4+binary.BigEndian.Uint32(text)], &about) != nil {
				return errors.New("a message is no picture")
			}
			w.pictures <- about.At
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
func (w *watcher) next(ctx context.Context) error {
	return wait(ctx, w, w.pictures, "a picture", func(string) bool { return true })
}

// hold waits until it is told that the person has the browser in hand.
func (w *watcher) hold(ctx context.Context) error {
	return wait(ctx, w, w.held, "word of who has the browser in hand", func(mine bool) bool { return mine })
}

func wait[T any](ctx context.Context, w *watcher, from chan T, what string, wanted func(T) bool) error {
	ctx, cancel := context.WithTimeout(ctx, pictureLimit)
	defer cancel()
	for {
		select {
		case got, ok := <-from:
			if !ok {
				return w.err
			}
			if wanted(got) {
				return nil
			}
		case <-ctx.Done():
			return fmt.Errorf("no %s came: %w", what, ctx.Err())
		}
	}
}

// settle waits until no more pictures come.
func (w *watcher) settle() {
	for {
		select {
		case _, ok := <-w.pictures:
			if !ok {
				return
			}
		case <-time.After(settled):
			return
		}
	}
}
