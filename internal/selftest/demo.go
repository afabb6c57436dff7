package selftest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/selftest/website"
)

// Demo is the main job once, told step by step: a jailed browser loads a page through the only way out, is refused
// what it must not reach, and is gone without a trace. The picture is written to file. An empty address is the page
// that the demo serves itself; another one needs the public web.
func Demo(ctx context.Context, o Options, address, file string) error {
	if os.Geteuid() != 0 {
		return problem.New(problem.NoRoot, "run it with sudo", "the demo makes a jail, which needs root")
	}
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
	s, err := c.Open(ctx, api.OpenRequest{})
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
	page, err := c.Navigate(ctx, s.ID, browser.Navigate{URL: address, TimeoutMS: 30000})
	if err != nil {
		return err
	}
	say(fmt.Sprintf("It loaded %s through the gateway:\n  %q", address, page.Title))
	for _, inside := range []string{"http://169.254.169.254/latest/meta-data/", "http://127.0.0.1:22/"} {
		said, err := refusal(ctx, c, s.ID, inside)
		if err != nil {
			return err
		}
		say(fmt.Sprintf("It was refused %s:\n  %s", inside, said))
	}
	if _, err := c.Navigate(ctx, s.ID, browser.Navigate{URL: address, TimeoutMS: 30000}); err != nil {
		return err
	}
	picture, err := c.Picture(ctx, s.ID, browser.Screenshot{})
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, picture, 0o644); err != nil {
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

// refusal asks for an address that the gateway must not let through, and returns what it said: the title of its page
// for plain HTTP, the browser's error for a tunnel.
func refusal(ctx context.Context, c *client.Client, id, address string) (string, error) {
	page, err := c.Navigate(ctx, id, browser.Navigate{URL: address, TimeoutMS: 10000})
	var refused *problem.Error
	switch {
	case errors.As(err, &refused):
		return refused.Message, nil
	case err != nil:
		return "", err
	case page.Status != http.StatusForbidden:
		return "", fmt.Errorf("%s was not refused: status %d", address, page.Status)
	}
	return page.Title, nil
}
