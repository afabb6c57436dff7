package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/vault"
)

// refreshPoll is how often it is asked whether a refresh session is over.
const refreshPoll = time.Second

// refreshing is what `cookies refresh --json` prints first: where to log in.
type refreshing struct {
	Session session.Session `json:"session"`
	// URL signs its opener in to the console, once, and leads to the page on which to log in.
	URL       string    `json:"url"`
	ExpiresAt time.Time `json:"url_expires_at"`
}

func newCookiesRefresh(p *program) *cobra.Command {
	var request api.RefreshRequest
	var asJSON, wait, noBuild bool
	cmd := &cobra.Command{
		Use:   "refresh DOMAIN [--url URL]",
		Short: "Log in to a site for the agents",
		Long: "Opens a session in which you log in to a site, and prints a link to it. Open the link in your browser: it signs you in to the console, once, " +
			"and shows the jailed browser. Log in there, choose what to keep, and press Done; nobody else sees or steers it, and nothing is recorded. It ends by itself after " +
			age(session.RefreshLife) + ".\n\nWith --wait the command ends with the session, and says what was stored. With --json, that is a second document.",
		Example:           "  sudo clawjail cookies refresh example.com\n  clawjail cookies refresh example.com --url https://login.example.com/ --wait",
		Args:              arguments(1, 1),
		ValidArgsFunction: p.completeFirst(domainsOfSets),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Domain = args[0]
			c, err := p.client()
			if err != nil {
				return err
			}
			var opened refreshing
			open := func() (err error) {
				opened, err = openRefresh(cmd.Context(), c, request)
				return err
			}
			if err := p.withTemplate(cmd, "", noBuild, open); err != nil {
				return err
			}
			if err := p.sayRefresh(cmd, args[0], opened, asJSON); err != nil || !wait {
				return err
			}
			sets, err := refreshed(cmd.Context(), c, opened.Session, args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), sets)
			}
			return p.show(cmd, op.CookieSets{Sets: sets}.Stored())
		},
	}
	p.tenantFlag(cmd, &request.Tenant)
	noBuildFlag(cmd, &noBuild)
	cmd.Flags().StringVar(&request.URL, "url", "", "`page` to begin with, https://DOMAIN/ when it is left out")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until it is over, and say what was stored")
	return cmd
}

// openRefresh opens a session to log in with, and makes the link to it. A session that nobody can reach is closed.
func openRefresh(ctx context.Context, c *client.Client, request api.RefreshRequest) (refreshing, error) {
	opened, err := c.OpenRefresh(ctx, request)
	if err != nil {
		return refreshing{}, err
	}
	link, err := consoleAt(ctx, c, "/console/refresh/"+url.PathEscape(opened.Session.ID))
	if err != nil {
		return refreshing{}, errors.Join(err, c.Close(context.WithoutCancel(ctx), opened.Session.ID, false))
	}
	return refreshing{Session: opened.Session, URL: link.URL, ExpiresAt: link.ExpiresAt}, nil
}

// sayRefresh prints the link alone, so that a script can take it, and the words beside it.
func (p *program) sayRefresh(cmd *cobra.Command, domain string, opened refreshing, asJSON bool) error {
	if asJSON {
		return writeJSON(cmd.OutOrStdout(), opened)
	}
	if err := p.printLink(cmd, opened.URL); err != nil {
		return err
	}
	now := p.now()
	words := fmt.Sprintf("open it within %s: it signs you in once, and you log in to %s there", age(opened.ExpiresAt.Sub(now)), printable(domain))
	if ends := opened.Session.ExpiresAt; ends != nil {
		words += fmt.Sprintf(", until %s (%s)", when(*ends, now), age(ends.Sub(now)))
	}
	_, err := fmt.Fprintln(cmd.ErrOrStderr(), words)
	return err
}

// refreshed waits until nothing of a session is left, and returns the accounts that were stored from it.
func refreshed(ctx context.Context, c *client.Client, s session.Session, domain string) ([]vault.CookieSet, error) {
	for s.State != session.StateClosed && s.State != session.StateFailed {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(refreshPoll):
		}
		var err error
		if s, err = c.Get(ctx, s.ID); err != nil {
			return nil, err
		}
	}
	domains, err := capturedFrom(ctx, c, s.ID)
	if err != nil {
		return nil, err
	}
	if len(domains) == 0 {
		why := "the session is over"
		if s.Ended != nil {
			why = s.Ended.Message
		}
		return nil, problem.New(problem.SessionClosed, "begin again: clawjail cookies refresh "+domain, "nothing was stored: %s", why)
	}
	var sets []vault.CookieSet
	for _, domain := range domains {
		set, err := client.Call(ctx, c, op.ShowCookies(), op.AccountNamed{Domain: domain, InTenant: op.InTenant{Tenant: s.Tenant}})
		if err != nil {
			return nil, err
		}
		sets = append(sets, set)
	}
	return sets, nil
}

// capturedFrom says whose cookies were stored from a session, by the records of it.
func capturedFrom(ctx context.Context, c *client.Client, id string) (domains []string, err error) {
	const many = 1000
	query := op.AuditQuery{AuditFilter: op.AuditFilter{Session: id, Action: string(identity.CookiesCapture)}, Limit: many}
	all, err := client.Call(ctx, c, op.ListAudit(), query)
	if err != nil {
		return nil, err
	}
	rows := all.Rows
	for _, outcome := range rows {
		if outcome.Phase != audit.PhaseOutcome || outcome.Result != string(audit.OK) {
			continue
		}
		of := slices.IndexFunc(rows, func(r op.AuditRow) bool { return r.ID == outcome.Ref })
		if of < 0 {
			continue
		}
		var detail struct {
			Domains []string `json:"domains"`
		}
		if err := json.Unmarshal(rows[of].Detail, &detail); err != nil {
			return nil, fmt.Errorf("read a record of the control plane: %w", err)
		}
		domains = append(domains, detail.Domains...)
	}
	return distinct(domains), nil
}
