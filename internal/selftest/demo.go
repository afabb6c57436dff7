package selftest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/selftest/website"
	"github.com/clawjail/clawjail/internal/session"
)

// Demo is the main job once, told step by step: a jailed browser loads a page through the only way out, is refused
// what it must not reach, and is gone without a trace. The picture is written to file. An empty address is the page
// that the demo serves itself; another one needs the public web.
func Demo(ctx context.Context, o Options, address, file string) error {
	if os.Geteuid() != 0 {
		return problem.New(problem.NoRoot, "run it with sudo", "the demo makes a jail, which needs root")
	}
	release, err := claim(folder(o.Config.DataDir))
	if err != nil {
		return err
	}
	defer release()
	o.Say("The template is what it was built as:")
	if err := o.Verify(ctx); err != nil {
		return err
	}
	o.Say("  every file unchanged, no credentials in it.")
	site, err := website.New()
	if err != nil {
		return err
	}
	defer site.Close()
	if address == "" {
		address = site.URL("/")
	}
	// The run's own sentences are for the self-test.
	tell := o.Say
	o.Say = func(string) {}
	r := &run{Options: o, site: site}
	err = r.inInstance(ctx, func(inst *instance.Instance) error {
		c, err := inst.Client()
		if err != nil {
			return err
		}
		defer c.CloseIdle()
		return tour(ctx, c, address, file, tell)
	})
	if err != nil {
		return err
	}
	if len(r.residue) > 0 {
		return fmt.Errorf("left on this host: %v", r.residue)
	}
	tell("Nothing is left: no process, mount, interface, firewall entry, control group or file.")
	return nil
}

// tour is what happens between the start and the end of the instance.
func tour(ctx context.Context, c *client.Client, address, file string, say func(string)) (err error) {
	s, err := c.Open(ctx, session.OpenRequest{})
	if err != nil {
		return err
	}
	closed := false
	defer func() {
		if !closed {
			err = errors.Join(err, c.Close(context.WithoutCancel(ctx), s.ID, true))
		}
	}()
	say(fmt.Sprintf("A jail and a browser in %.0f ms (clone %.1f, jail %.0f, browser %.0f):", s.Timing.Total, s.Timing.Clone, s.Timing.Start, s.Timing.Ready))
	say(fmt.Sprintf("  %s in jail %s at %s, not root, read-only, its own sandbox on.", s.BrowserVersion, s.Jail, s.Address))
	page, err := c.Navigate(ctx, s.ID, browser.Navigate{URL: address, TimeoutMS: pageLimitMS})
	if err != nil {
		return err
	}
	say(fmt.Sprintf("It loaded %s through the gateway:\n  %q", address, page.Title))
	host, err := listen(ctx)
	if err != nil {
		return err
	}
	defer host.Close()
	for _, inside := range []string{"http://169.254.169.254/latest/meta-data/", "http://" + host.Addr().String() + "/"} {
		said, err := refusal(ctx, c, s.ID, inside)
		if err != nil {
			return err
		}
		say(fmt.Sprintf("The gateway refused %s:\n  %s", inside, said))
	}
	if n := host.connections.Load(); n != 0 {
		return fmt.Errorf("the listener of this host at %s was reached %d times", host.Addr(), n)
	}
	say(fmt.Sprintf("  At %s a program of this host listens, and nobody has connected to it from the jail.", host.Addr()))
	if _, err := c.Navigate(ctx, s.ID, browser.Navigate{URL: address, TimeoutMS: pageLimitMS}); err != nil {
		return err
	}
	picture, err := c.Picture(ctx, s.ID, browser.Screenshot{TimeoutMS: pageLimitMS})
	if err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, picture, 0o644)); err != nil {
		return fmt.Errorf("write the screenshot: %w", err)
	}
	say(fmt.Sprintf("Its screenshot is %s (%d bytes).", file, len(picture)))
	closed = true
	if err := c.Close(ctx, s.ID, true); err != nil {
		return err
	}
	say("The session is closed and its jail is gone.")
	return nil
}

// counting is a listener of the host that counts who connects.
type counting struct {
	net.Listener
	connections atomic.Int64
	ended       chan struct{}
}

// listen opens a counting listener at a port that browsers ask for, and tries that it counts.
func listen(ctx context.Context) (*counting, error) {
	var from net.ListenConfig
	l, err := from.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen on this host: %w", err)
	}
	c := &counting{Listener: l, ended: make(chan struct{})}
	tried := make(chan struct{}, 1)
	go func() { // until Close, which waits for it
		defer close(c.ended)
		for first := true; ; first = false {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			conn.Close()
			if first {
				tried <- struct{}{}
				continue
			}
			c.connections.Add(1)
		}
	}()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", l.Addr().String())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("reach a listener of this host: %w", err), c.Close())
	}
	conn.Close()
	select {
	case <-tried:
		return c, nil
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), c.Close())
	}
}

func (c *counting) Close() error {
	err := c.Listener.Close()
	<-c.ended
	return err
}

// refusal asks for an address that the gateway must not let through, and returns the title of its page. A refusal of
// the browser itself shows nothing.
func refusal(ctx context.Context, c *client.Client, id, address string) (string, error) {
	page, err := c.Navigate(ctx, id, browser.Navigate{URL: address, TimeoutMS: 10000})
	if err != nil {
		return "", fmt.Errorf("ask for %s, which the gateway answers: %w", address, err)
	}
	if page.Status != http.StatusForbidden {
		return "", fmt.Errorf("%s was not refused: status %d", address, page.Status)
	}
	return page.Title, nil
}
