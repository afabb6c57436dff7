package selftest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/selftest/website"
	"github.com/clawjail/clawjail/internal/session"
)

// accounts logs in at the site with one browser, keeps its cookies, and looks whether the site knows other browsers by
// them: one that starts from nothing, each build, and as many operator sessions as there are cycles.
func (r *run) accounts(ctx context.Context, c *client.Client) error {
	for n, build := range []config.Browser{config.BrowserShell, config.BrowserFull} {
		user := fmt.Sprintf("visitor%d", n+1)
		r.Say("logging in with the browser " + string(build))
		if err := r.logIn(ctx, c, string(build), user); err != nil {
			return fmt.Errorf("log in with the browser %s: %w", build, err)
		}
		if err := r.stranger(ctx, c, string(build)); err != nil {
			return err
		}
		if err := r.known(ctx, c, string(build), user, false); err != nil {
			return fmt.Errorf("carry a login to a new browser %s: %w", build, err)
		}
	}
	for n := range r.Cycles {
		r.Say(fmt.Sprintf("operator cycle %d of %d", n+1, r.Cycles))
		if err := r.known(ctx, c, string(config.BrowserShell), "visitor2", true); err != nil {
			r.fail("operator cycle %d: %v", n+1, err)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			continue
		}
		r.operated++
	}
	return nil
}

// with opens a session, uses it, and closes it whatever happens. It returns how long closing took.
func with(ctx context.Context, c *client.Client, o session.OpenRequest, use func(session.Session) error) (_ time.Duration, err error) {
	s, err := c.Open(ctx, o)
	if err != nil {
		return 0, fmt.Errorf("open: %w", err)
	}
	err = use(s)
	began := time.Now()
	if closed := c.Close(context.WithoutCancel(ctx), s.ID, true); closed != nil {
		err = errors.Join(err, fmt.Errorf("close: %w", closed))
	}
	return time.Since(began), err
}

// logIn visits the site, which sets cookies of every kind, and keeps them.
func (r *run) logIn(ctx context.Context, c *client.Client, build, user string) error {
	_, err := with(ctx, c, session.OpenRequest{Browser: build, TTL: "5m"}, func(s session.Session) error {
		page, err := c.Navigate(ctx, s.ID, browser.Navigate{URL: r.site.URL("/welcome?user=" + user), TimeoutMS: pageLimitMS})
		if err != nil {
			return err
		}
		if page.Title != website.TitleOf(user) {
			return fmt.Errorf("the site answered with the page %q", page.Title)
		}
		captured, err := client.Call(ctx, c, op.CaptureCookies(), op.Captured{ID: s.ID, Body: op.With(op.CaptureRequest{Domains: []string{website.Domain}})})
		if err != nil {
			return fmt.Errorf("capture: %w", err)
		}
		if sets := captured.Sets; len(sets) != 1 || sets[0].Count != website.Cookies() {
			return fmt.Errorf("%d sets were captured, and should be one with %d cookies", len(sets), website.Cookies())
		}
		return nil
	})
	return err
}

// stranger looks whether a browser without accounts is one to the site: nothing of a login may be in the template.
func (r *run) stranger(ctx context.Context, c *client.Client, build string) error {
	_, err := with(ctx, c, session.OpenRequest{Browser: build, TTL: "5m"}, func(s session.Session) error {
		page, err := c.Navigate(ctx, s.ID, browser.Navigate{URL: r.site.URL("/account"), TimeoutMS: pageLimitMS})
		if err == nil && page.Title != website.TitleLogin {
			err = fmt.Errorf("the site knows a browser without accounts: %q", page.Title)
		}
		return err
	})
	return err
}

// known opens an operator session and looks whether the site knows it.
func (r *run) known(ctx context.Context, c *client.Client, build, user string, counted bool) error {
	issued, err := client.Call(ctx, c, op.IssueGrant(), op.NewGrant{Body: op.With(op.GrantRequest{Domains: []string{website.Domain}, TTL: "5m"})})
	if err != nil {
		return fmt.Errorf("issue a grant: %w", err)
	}
	request := session.OpenRequest{Browser: build, TTL: "5m", CredentialMode: session.ModeOperator, Domains: []string{website.Domain}, Grant: grant.ParseToken(issued.Token)}
	_, err = with(ctx, c, request, func(s session.Session) error {
		if s.Injected != website.Cookies() {
			return fmt.Errorf("%d cookies were injected, not %d", s.Injected, website.Cookies())
		}
		page, err := c.Navigate(ctx, s.ID, browser.Navigate{URL: r.site.URL("/account"), TimeoutMS: pageLimitMS})
		if err != nil {
			return fmt.Errorf("navigate: %w", err)
		}
		if page.Title != website.TitleOf(user) {
			return fmt.Errorf("the site does not know the browser: %q", page.Title)
		}
		if counted {
			r.took("inject", time.Duration(s.Timing.Inject*float64(time.Millisecond)))
		}
		return nil
	})
	return err
}
