package browser

import (
	"context"
	"sync"
	"time"

	"github.com/chromedp/cdproto/target"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/problem"
)

// jarAnswer bounds one question to a jar: a process that dies while it is asked does not answer.
const jarAnswer = 5 * time.Second

// jarMark is what is known of the process that makes the connections and has the jars of all contexts in its memory.
type jarMark struct {
	marking chan struct{} // holds a token while the jar is marked
	mu      sync.Mutex
	context string // of our own, with a cookie that no page sees, in the jar of the first process
	marked  bool
	lost    bool
}

// Network says whether the cookies are still those of the first call. When Chromium's network process ends, Chromium
// starts another one with empty jars, and sends no event. The code is cookies_lost then, and stays so.
//
// A connection that was made before a call which returns nil was made with the jars of the first call: the process that
// answers has the mark, and another one is started only after it has ended.
func (b *Browser) Network(ctx context.Context) error {
	n := &b.network
	id, marked, lost := n.state()
	if lost {
		return cookiesLost()
	}
	if !marked {
		return explain(b.markJar(ctx), "mark the cookies")
	}
	var count int
	err := untilAnswered(ctx, func(ctx context.Context) error {
		jar, err := b.Cookies(ctx, id)
		count = len(jar)
		cookies.Wipe(jar)
		return err
	})
	if err != nil {
		return err
	}
	if count > 0 {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lost = true
	return cookiesLost()
}

func (n *jarMark) state() (context string, marked, lost bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.context, n.marked, n.lost
}

// markJar makes a context and puts a cookie into its jar.
func (b *Browser) markJar(ctx context.Context) error {
	n := &b.network
	release, err := hold(ctx, n.marking)
	if err != nil {
		return err
	}
	defer release()
	id, marked, _ := n.state()
	if marked {
		return nil
	}
	if id == "" {
		made, err := cdp.DoSeen(ctx, b.conn.Browser(), target.CreateBrowserContext, target.CreateBrowserContextParams{},
			func(made target.CreateBrowserContextResult) {
				n.mu.Lock()
				defer n.mu.Unlock()
				n.context = string(made.BrowserContextID)
			})
		if err != nil {
			return err
		}
		id = string(made.BrowserContextID)
	}
	mark := []cookies.Cookie{{Name: "mark", Value: secret.New([]byte("1")), Domain: "mark.invalid", Path: "/", Expires: cookies.Session, Session: true}}
	if err := untilAnswered(ctx, func(ctx context.Context) error { return b.SetCookies(ctx, id, mark) }); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.marked = true
	return nil
}

// untilAnswered asks a jar again when there was no answer in time.
func untilAnswered(ctx context.Context, ask func(context.Context) error) error {
	for {
		asking, cancel := context.WithTimeout(ctx, jarAnswer)
		err := ask(asking)
		late := asking.Err() != nil
		cancel()
		if err == nil || !late || ctx.Err() != nil {
			return err
		}
	}
}

func cookiesLost() error {
	return problem.New(problem.CookiesLost, "open a new session, and log in again",
		"the browser's network process ended, and the cookies with it")
}
