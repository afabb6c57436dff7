package browser

import (
	"context"
	"slices"
	"sync"
	"time"

	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/systeminfo"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// networkType is what SystemInfo.getProcessInfo calls the process that has the cookies and makes the connections:
	// the name of its service in services/network/public/mojom/network_service.mojom.
	networkType = "network.mojom.NetworkService"
	// jarAnswer bounds one question to the jar: a process that dies while it is asked does not answer.
	jarAnswer = 5 * time.Second
	// listedTries and listedPause bound how long a process that answers may be missing in the browser's list.
	listedTries, listedPause = 5, 50 * time.Millisecond
)

// netProcess is the process that has the cookies, as it was when it was first asked for.
type netProcess struct {
	mu        sync.Mutex
	starting  chan struct{} // holds a token while it is looked for
	known     bool
	processes []int64 // one, or none where the browser itself makes the connections
	lost      bool
}

// Network says whether the cookies are still those of the first call. All jars of a browser are in the memory of one
// process. When that process ends, Chromium starts another one with empty jars, and says so to nobody. The code is
// cookies_lost then, and stays so.
//
// A connection that was made before a call which returns nil was made with the jars of the first call: a new process
// makes connections only after the browser has listed it.
func (b *Browser) Network(ctx context.Context) error {
	n := &b.network
	known, first, lost := n.state()
	if lost {
		return cookiesLost()
	}
	if !known {
		return b.firstNetwork(ctx)
	}
	now, err := b.networkProcesses(ctx)
	if err != nil {
		return explain(err, "look for the process that has the cookies")
	}
	if slices.Equal(first, now) {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lost = true
	return cookiesLost()
}

func (n *netProcess) state() (known bool, processes []int64, lost bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.known, n.processes, n.lost
}

// firstNetwork waits until the process is there, and remembers it.
func (b *Browser) firstNetwork(ctx context.Context) error {
	n := &b.network
	release, err := hold(ctx, n.starting)
	if err != nil {
		return explain(err, "look for the process that has the cookies")
	}
	defer release()
	if known, _, _ := n.state(); known {
		return nil
	}
	// Chromium starts the process when it is first needed.
	if err := b.askJar(ctx); err != nil {
		return err
	}
	var found []int64
	for range listedTries {
		if found, err = b.networkProcesses(ctx); err != nil {
			return explain(err, "look for the process that has the cookies")
		}
		if len(found) > 0 {
			break
		}
		pause := time.NewTimer(listedPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return explain(context.Cause(ctx), "look for the process that has the cookies")
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.known, n.processes = true, found
	return nil
}

// askJar waits until a jar answers.
func (b *Browser) askJar(ctx context.Context) error {
	for {
		asking, cancel := context.WithTimeout(ctx, jarAnswer)
		jar, err := b.Cookies(asking, "")
		late := asking.Err() != nil
		cancel()
		if err == nil {
			cookies.Wipe(jar)
			return nil
		}
		if !late || ctx.Err() != nil {
			return err
		}
	}
}

func (b *Browser) networkProcesses(ctx context.Context) ([]int64, error) {
	result, err := cdp.Do(ctx, b.conn.Browser(), systeminfo.GetProcessInfo, protocol.Empty{})
	if err != nil {
		return nil, err
	}
	var out []int64
	for _, p := range result.ProcessInfo {
		if p != nil && p.Type == networkType {
			out = append(out, p.ID)
		}
	}
	slices.Sort(out)
	return out, nil
}

func cookiesLost() error {
	return problem.New(problem.CookiesLost, "open a new session, and log in again",
		"the browser's network process ended, and the cookies with it")
}
