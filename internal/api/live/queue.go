package live

import (
	"context"
	"slices"
	"sync"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// maxQueue is how many inputs may wait, and maxWaiting how much of what they say, in bytes: somebody may paste while a page hangs.
	maxQueue   = 256
	maxWaiting = 4 << 20
)

// queue has the inputs that wait for those before them.
type queue struct {
	mu      sync.Mutex
	waiting []browser.LiveInput
	changed wake.Signal // holds at most one reason to look again
}

func newQueue() *queue { return &queue{changed: wake.New()} }

// push adds an input. A move takes the place of the move before it, which nobody needs any more. When too many wait, the oldest
// goes that is missed least. The code is rate_limited when all would be missed, such as a key that never goes up, or when texts of more
// than maxWaiting bytes would wait. A text that is alone is taken whatever its size.
func (q *queue) push(in browser.LiveInput) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := len(q.waiting); n > 0 && follows(q.waiting[n-1], in) {
		q.waiting[n-1] = in
		return nil
	}
	if len(q.waiting) >= maxQueue && !q.shed() {
		return problem.New(problem.RateLimited, "connect again, and wait until the page takes what is done",
			"more than %d inputs wait for the page", maxQueue)
	}
	if said := q.said(); said > 0 && said+bytesOf(in) > maxWaiting {
		return problem.New(problem.RateLimited, "connect again, and wait until the page takes what is done",
			"more than %d MiB wait for the page", maxWaiting>>20)
	}
	q.waiting = append(q.waiting, in)
	q.changed.Send()
	return nil
}

// follows says whether a move leads on from another, with the same buttons.
func follows(before, in browser.LiveInput) bool {
	return before.Type == typeMove && in.Type == typeMove && before.Buttons == in.Buttons && before.Button == in.Button && before.Modifiers == in.Modifiers
}

// shed leaves out one input, and says whether there was one that can be. The caller holds q.mu.
func (q *queue) shed() bool {
	for _, spare := range []func(browser.LiveInput) bool{
		func(in browser.LiveInput) bool { return in.Type == typeMove },
		func(in browser.LiveInput) bool { return in.Type == typeWheel || in.Type == typeKeyDown && in.Repeat },
	} {
		if n := slices.IndexFunc(q.waiting, spare); n >= 0 {
			q.waiting = slices.Delete(q.waiting, n, n+1)
			return true
		}
	}
	return false
}

// said is how much the inputs say that wait, in bytes. The caller holds q.mu.
func (q *queue) said() (bytes int) {
	for _, in := range q.waiting {
		bytes += bytesOf(in)
	}
	return bytes
}

// bytesOf is about how much memory an input takes for what the client chose the length of.
func bytesOf(in browser.LiveInput) int {
	const one, number = 16, 8 // an empty text, and a number
	bytes := number * len(in.Options)
	for _, text := range in.Files {
		bytes += one + len(text)
	}
	for _, text := range []string{in.Type, in.Button, in.Key, in.Code, in.Text, in.URL, in.Tab, in.Popup, in.User, in.Password} {
		bytes += len(text)
	}
	return bytes
}

// take waits for the next one.
func (q *queue) take(ctx context.Context) (browser.LiveInput, error) {
	for {
		if ctx.Err() != nil {
			return browser.LiveInput{}, ctx.Err() // also with something there
		}
		q.mu.Lock()
		if len(q.waiting) > 0 {
			in := q.waiting[0]
			q.waiting = slices.Delete(q.waiting, 0, 1) // what was typed does not stay in memory behind it
			q.mu.Unlock()
			return in, nil
		}
		q.mu.Unlock()
		select {
		case <-q.changed:
		case <-ctx.Done():
			return browser.LiveInput{}, ctx.Err()
		}
	}
}
