package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/problem"
)

func newGrantCommand(p *program) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "grant",
		Short: "Permit one session to use accounts",
		Long: "A grant permits one session to use the accounts of named domains, once, for some time. Its token goes to " +
			"whoever opens that session.",
	})
	cmd.AddCommand(newGrantIssue(p), newGrantList(p), newGrantRevoke(p), newGrantKeys(p), newGrantRotateKeys(p))
	return cmd
}

func newGrantIssue(p *program) *cobra.Command {
	var request api.GrantRequest
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "issue --domain DOMAIN",
		Short: "Issue a grant, and print its token",
		Long: "Issues a grant. The token alone is on standard output, so that a script can keep it; what it permits is on " +
			"standard error. Give the token to whoever opens the session, in the variable " + grantVariable + " or on standard " +
			"input: an argument can be read by other users of the machine.",
		Example: "  export " + grantVariable + "=$(clawjail grant issue --domain example.com --ttl 10m)\n" +
			"  clawjail session open --mode operator --domain example.com https://example.com/",
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(request.Domains) == 0 {
				return usage(cmd, "whose accounts it permits is missing: --domain example.com")
			}
			if err := duration(cmd, "ttl", request.TTL); err != nil {
				return err
			}
			c, err := p.client()
			if err != nil {
				return err
			}
			issued, err := c.IssueGrant(cmd.Context(), request)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), issued)
			}
			if _, err := fmt.Fprintln(cmd.OutOrStdout(), issued.Token); err != nil {
				return err
			}
			return permits(cmd.ErrOrStderr(), issued.Grant, p.now())
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&request.Domains, "domain", nil, "`domain` whose accounts the session may use; may be repeated")
	f.StringSliceVar(&request.EgressDomains, "egress-domain", nil, "`domain` or host that the session may reach besides; may be repeated")
	f.StringVar(&request.Access, "access", "", "what the session may be steered with: tools (the default), or cdp: "+grant.CDPReads)
	f.StringVar(&request.TTL, "ttl", "", "how long the grant is good, such as 10m (the default)")
	p.tenantFlag(cmd, &request.Tenant)
	f.StringVar(&request.Origin, "origin", "", "`session` that alone may use it")
	f.BoolVar(&asJSON, "json", false, "print the token and the grant as JSON")
	p.completeFlag(cmd, "domain", domainsOfSets)
	complete(cmd, "access", string(grant.AccessTools), string(grant.AccessCDP))
	if err := cmd.RegisterFlagCompletionFunc("origin", p.completeSessions); err != nil {
		panic(err) // there is no such flag: a mistake in this package
	}
	return cmd
}

// permits says in words what a grant is good for.
func permits(w io.Writer, g api.Grant, now time.Time) error {
	text := fmt.Sprintf("grant %s lets one session of %s use %s with %s, until %s (%s)",
		g.ID, g.Tenant, printable(strings.Join(g.Domains, ", ")), g.Access, when(g.ExpiresAt, now), age(g.ExpiresAt.Sub(now)))
	if len(g.EgressDomains) > 0 {
		text += "; it may also reach " + printable(strings.Join(g.EgressDomains, ", "))
	}
	if g.Origin != "" {
		text += "; only for " + printable(g.Origin)
	}
	_, err := fmt.Fprintln(w, text)
	return err
}

func newGrantList(p *program) *cobra.Command {
	var tenant string
	var all, asJSON bool
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the grants that can be used",
		Args:    arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			grants, err := c.Grants(cmd.Context(), tenant)
			if err != nil {
				return err
			}
			if !all {
				grants = slices.DeleteFunc(grants, func(g api.Grant) bool { return !usable(g) })
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), grants)
			}
			return table(cmd.OutOrStdout(), grantRows(grants, p.now()))
		},
	}
	p.tenantFlag(cmd, &tenant)
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also those that were used or revoked, or have expired")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// usable says that a grant is good, or will be when its time comes.
func usable(g api.Grant) bool { return g.State == "active" || g.State == "pending" }

func grantRows(grants []api.Grant, now time.Time) [][]string {
	rows := [][]string{{"ID", "TENANT", "STATE", "DOMAINS", "ACCESS", "EXPIRES", "ISSUED BY", "USED BY"}}
	for _, g := range grants {
		rows = append(rows, []string{g.ID, g.Tenant, g.State, printable(strings.Join(g.Domains, ",")), g.Access, when(g.ExpiresAt, now),
			printable(g.Operator), dash(printable(g.UsedBy))})
	}
	return manyTenants(rows, 1)
}

func newGrantRevoke(p *program) *cobra.Command {
	var tenant string
	var closing bool
	cmd := &cobra.Command{
		Use:   "revoke ID…",
		Short: "Revoke grants",
		Long: "Revokes grants, so that nobody can use them any more. A session that one of them has opened runs on; --close " +
			"closes it too.",
		Example:           "  clawjail grant revoke g_abcdefgh23456789abcd --close",
		Args:              arguments(1, -1),
		ValidArgsFunction: p.completeAll(grantIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			return each(cmd, args, func(id string) error { return revokeGrant(cmd, c, tenant, id, closing) })
		},
	}
	p.tenantFlag(cmd, &tenant)
	cmd.Flags().BoolVar(&closing, "close", false, "close the session that the grant has opened")
	return cmd
}

func revokeGrant(cmd *cobra.Command, c *client.Client, tenant, id string, closing bool) error {
	g, err := c.RevokeGrant(cmd.Context(), tenant, id)
	if err != nil || g.UsedBy == "" {
		return err
	}
	used := printable(g.UsedBy)
	if !closing {
		_, err = fmt.Fprintf(cmd.ErrOrStderr(), "the session %s was opened with it and may run on; to close it: clawjail "+
			"session close %s\n", used, used)
		return err
	}
	err = c.Close(cmd.Context(), g.UsedBy, false)
	switch problem.CodeOf(err) {
	case problem.NotFound, problem.SessionClosed:
		return nil // it is what was wanted
	}
	return err
}

func grantIDs(ctx context.Context, c *client.Client, tenant string) ([]string, error) {
	grants, err := c.Grants(ctx, tenant)
	return namesOf(slices.DeleteFunc(grants, func(g api.Grant) bool { return !usable(g) }), err,
		func(g api.Grant) (string, string) { return g.ID, strings.Join(g.Domains, ", ") })
}

func newGrantKeys(p *program) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "keys",
		Short: "List the keys that grants are signed with",
		Args:  arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			keys, err := c.GrantKeys(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), keys)
			}
			return table(cmd.OutOrStdout(), grantKeyRows(keys, p.now()))
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func grantKeyRows(keys []api.GrantKey, now time.Time) [][]string {
	rows := [][]string{{"ID", "MADE", "STATE"}}
	for _, k := range keys {
		state := "signs"
		if !k.Signs {
			state = "verifies until " + when(k.VerifiesUntil, now)
		}
		rows = append(rows, []string{k.ID, when(k.CreatedAt, now), state})
	}
	return rows
}

func newGrantRotateKeys(p *program) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "rotate-keys",
		Short: "Sign grants with a new key",
		Long:  "Makes a new key that grants are signed with from now on. Grants that have been issued stay good.",
		Args:  arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			key, err := c.RotateGrantKeys(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), key)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "grants are signed with %s from now on\n", key.ID)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
