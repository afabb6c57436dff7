package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/vault"
	"github.com/clawjail/clawjail/internal/weblogin"
)

func newCookiesCommand(p *program) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:     "cookies",
		Aliases: []string{"account"},
		Short:   "Store the logins of accounts, and say who may use them",
		Long: "A cookie set is the login of a tenant at one domain: its cookies, and what its pages have stored, encrypted. Nothing ever shows their values. A " +
			"session gets them with a grant, see `clawjail grant`; an agent also where `clawjail cookies allow` permits it.",
	})
	cmd.AddCommand(newCookiesImport(p), newCookiesRefresh(p), newCookiesCapture(p), newCookiesList(p), newCookiesSet(p), newCookiesRemove(p),
		described(p, op.AllowAccount()), newCookiesDisallow(p), described(p, op.ListPermissions()))
	return cmd
}

// ruleFlags are the flags that say who may use a cookie set.
type ruleFlags struct {
	scope  string
	most   int
	scoped bool // --scope was given
	capped bool // --max-sessions was given
}

func (r *ruleFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&r.scope, "scope", "", "widest `access` of a session with the cookies: tools (where nothing was said), cdp, or none for no session")
	f.IntVar(&r.most, "max-sessions", 0, "`number` of sessions that may have them at the same time, 1 where nothing was said")
	complete(cmd, "scope", string(grant.AccessTools), string(grant.AccessCDP), noScope)
}

// noScope is a set that no session gets.
const noScope = "none"

// check finds out which of the flags were given, and whether they make sense.
func (r *ruleFlags) check(cmd *cobra.Command) error {
	r.scoped, r.capped = cmd.Flags().Changed("scope"), cmd.Flags().Changed("max-sessions")
	switch grant.Access(r.scope) {
	case grant.AccessTools, grant.AccessCDP, noScope:
		return nil
	}
	if r.scoped {
		return usage(cmd, "--scope is tools, cdp or none, not %q", r.scope)
	}
	return nil
}

func (r *ruleFlags) scopes() []string {
	if r.scope == noScope {
		return []string{}
	}
	return []string{r.scope}
}

// rules are those that a set will have; nil leaves them to the control plane. What no flag speaks of stays as it is.
func (r *ruleFlags) rules(ctx context.Context, c *client.Client, tenant, domain string) (*vault.Rules, error) {
	if !r.scoped && !r.capped {
		return nil, nil
	}
	out := vault.Rules{Scopes: []string{string(grant.AccessTools)}, MaxLeases: 1}
	if !r.scoped || !r.capped {
		set, err := c.CookieSet(ctx, tenant, domain)
		switch {
		case err == nil:
			out = vault.Rules{Scopes: set.Scopes, MaxLeases: set.MaxLeases}
		case problem.CodeOf(err) != problem.NotFound:
			return nil, err
		}
	}
	if r.scoped {
		out.Scopes = r.scopes()
	}
	if r.capped {
		out.MaxLeases = r.most
	}
	return &out, nil
}

func newCookiesCapture(p *program) *cobra.Command {
	var domains []string
	var rules ruleFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "capture SESSION --domain DOMAIN",
		Short: "Store the cookies that a session has",
		Long: "Stores what the browser of a session has of the named domains, for instance after somebody has logged in there: " +
			"one cookie set for each domain, which replaces the one that is there. With it is stored what pages of the domain have " +
			"in localStorage and IndexedDB, of the origins that were open in a tab. When the session has nothing of one of them, nothing is stored.",
		Example:           "  clawjail cookies capture s_abcdefgh23456789 --domain example.com",
		Args:              arguments(1, 1),
		ValidArgsFunction: p.completeSessions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(domains) == 0 {
				return usage(cmd, "whose cookies to store is missing: --domain example.com")
			}
			if err := rules.check(cmd); err != nil {
				return err
			}
			request := api.CaptureRequest{Domains: distinct(domains)}
			if rules.scoped {
				request.Scopes = rules.scopes()
			}
			if rules.capped {
				request.MaxSessions = &rules.most
			}
			c, err := p.client()
			if err != nil {
				return err
			}
			sets, err := c.Capture(cmd.Context(), args[0], request)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), sets)
			}
			for _, set := range sets {
				if _, err := fmt.Fprintln(cmd.OutOrStdout(), "stored "+describeSet(set)); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringSliceVar(&domains, "domain", nil, "`domain` whose cookies to store; may be repeated")
	rules.add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newCookiesList(p *program) *cobra.Command {
	var tenant string
	var asJSON bool
	cmd := &cobra.Command{
		Use:               "ls [DOMAIN]",
		Aliases:           []string{"list"},
		Short:             "List cookie sets, or the cookies of one without their values",
		Args:              arguments(0, 1),
		ValidArgsFunction: p.completeFirst(domainsOfSets),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if len(args) == 0 {
				sets, err := listSets(cmd.Context(), c, tenant)
				if err != nil {
					return err
				}
				if asJSON {
					return writeJSON(out, sets)
				}
				return table(out, setRows(sets, p.now()))
			}
			set, err := c.CookieSet(cmd.Context(), tenant, args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(out, set)
			}
			return showSet(out, set, p.now())
		},
	}
	p.tenantFlag(cmd, &tenant)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// listedSet is a cookie set as a listing has it.
type listedSet struct {
	vault.CookieSet
	// NeedsRefresh is why somebody has to log in again.
	NeedsRefresh string `json:"needs_refresh,omitempty"`
	// Agents are the names of those that may use it without a grant.
	Agents []string `json:"agents,omitempty"`
}

// listSets lists the cookie sets, with those marked that somebody has to log in to again.
func listSets(ctx context.Context, c *client.Client, tenant string) ([]listedSet, error) {
	sets, err := c.Cookies(ctx, tenant)
	if err != nil {
		return nil, err
	}
	alerts, err := c.NeedsRefresh(ctx, tenant)
	if err != nil {
		return nil, err
	}
	permitted, err := client.Call(ctx, c, op.ListPermissions(), op.PermissionsListed{OfTenant: op.OfTenant{Tenant: tenant}})
	if err != nil {
		return nil, err
	}
	out := []listedSet{}
	for _, s := range sets {
		one := listedSet{CookieSet: s}
		for _, a := range alerts {
			if a.Tenant == s.Tenant && a.Domain == s.Domain {
				one.NeedsRefresh = a.Reason
			}
		}
		for _, p := range permitted.Permissions {
			if p.Tenant == s.Tenant && p.Domain == s.Domain {
				one.Agents = append(one.Agents, p.AgentName)
			}
		}
		out = append(out, one)
	}
	return out, nil
}

// problemOf is what somebody has to do something about.
func problemOf(s listedSet) string {
	if s.Problem == "" && s.NeedsRefresh != "" {
		return problem.NeedsRefresh + " (" + printable(s.NeedsRefresh) + ")"
	}
	return dash(s.Problem)
}

func setRows(sets []listedSet, now time.Time) [][]string {
	rows := [][]string{{"DOMAIN", "TENANT", "COOKIES", "STORAGE", "SCOPES", "SESSIONS", "STORED", "USED", "EXPIRES", "AGENTS", "PROBLEM"}}
	for _, s := range sets {
		rows = append(rows, []string{printable(s.Domain), s.Tenant, strconv.Itoa(s.Count), storageOf(s.Storage),
			dash(printable(strings.Join(s.Scopes, ","))),
			strconv.Itoa(s.MaxLeases), when(s.LastRefreshedAt, now), when(s.LastInjectedAt, now), when(s.ExpiresAt, now), dash(printable(strings.Join(s.Agents, ","))), problemOf(s)})
	}
	return manyTenants(rows, 1)
}

// storageOf is how much pages have stored, in a list.
func storageOf(list []weblogin.OriginInfo) string {
	if len(list) == 0 {
		return dash("")
	}
	return size(weblogin.Total(list).Bytes)
}

// showSet lists the cookies of a set, and the origins whose pages have stored something.
func showSet(w io.Writer, s vault.CookieSet, now time.Time) error {
	rows := [][]string{{"NAME", "DOMAIN", "PATH", "FLAGS", "EXPIRES"}}
	for _, c := range s.Cookies {
		expires := "with the session"
		if !c.Session {
			expires = when(c.ExpiresAt, now)
		}
		if c.Expired {
			expires += " (expired)"
		}
		rows = append(rows, []string{cookies.Printable(c.Name), cookies.Printable(c.Domain), cookies.Printable(c.Path),
			cookieFlags(c), expires})
	}
	if err := table(w, rows); err != nil {
		return err
	}
	if len(s.Storage) > 0 {
		rows = [][]string{{"STORAGE OF", "ENTRIES", "DATABASES", "RECORDS", "SIZE", "LEFT OUT"}}
		for _, o := range s.Storage {
			rows = append(rows, []string{printable(o.Origin), strconv.Itoa(o.Items), strconv.Itoa(o.Databases), strconv.Itoa(o.Records), size(o.Bytes), dash(printable(strings.Join(o.LeftOut, "; ")))})
		}
		if _, err := fmt.Fprintln(w); err != nil {
			return err
		}
		if err := table(w, rows); err != nil {
			return err
		}
	}
	if s.Problem == "" {
		return nil
	}
	return problem.New(s.Problem, "look at the keys with clawjail vault status, or store the cookies anew",
		"the cookies of %s cannot be read", printable(s.Domain))
}

func cookieFlags(c vault.CookieInfo) string {
	var flags []string
	add := func(given bool, name string) {
		if given {
			flags = append(flags, name)
		}
	}
	add(c.Secure, "Secure")
	add(c.HTTPOnly, "HttpOnly")
	add(c.SameSite != "", "SameSite="+cookies.Printable(c.SameSite))
	add(c.TopLevelSite != "", "Partitioned="+cookies.Printable(c.TopLevelSite))
	add(c.DeviceBound, "bound to another machine")
	return dash(strings.Join(flags, ", "))
}

func newCookiesSet(p *program) *cobra.Command {
	var tenant string
	var rules ruleFlags
	var signedIn signedInFlags
	cmd := &cobra.Command{
		Use:   "set DOMAIN [--scope ACCESS] [--max-sessions N] [--signed-in-page URL] [--signed-in-marker SELECTOR] [--login-check on|off]",
		Short: "Say who may use a cookie set, and how to see that its login is gone",
		Long: "Says who may use a cookie set, and how to see whether its site still knows the login. Its cookies stay as they are, and so " +
			"does what no flag speaks of.",
		Example: "  clawjail cookies set example.com --scope cdp --max-sessions 2\n" +
			"  clawjail cookies set example.com --signed-in-page https://example.com/inbox --signed-in-marker '.avatar'",
		Args:              arguments(1, 1),
		ValidArgsFunction: p.completeFirst(domainsOfSets),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := rules.check(cmd); err != nil {
				return err
			}
			looks, err := signedIn.given(cmd)
			if err != nil {
				return err
			}
			if !rules.scoped && !rules.capped && !looks {
				return usage(cmd, "say what to change: --scope, --max-sessions, --signed-in-page, --signed-in-marker or --login-check")
			}
			c, err := p.client()
			if err != nil {
				return err
			}
			set, err := rules.rules(cmd.Context(), c, tenant, args[0])
			if err != nil {
				return err
			}
			var changed vault.CookieSet
			if looks {
				if changed, err = signedIn.set(cmd, c, tenant, args[0]); err != nil {
					return err
				}
			}
			if set != nil {
				if changed, err = c.SetCookieRules(cmd.Context(), tenant, args[0], *set); err != nil {
					return err
				}
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), describeSet(changed))
			return err
		},
	}
	p.tenantFlag(cmd, &tenant)
	rules.add(cmd)
	signedIn.add(cmd)
	return cmd
}

// signedInFlags are the flags that say how to see whether a site still knows an account.
type signedInFlags struct{ page, marker, check string }

const (
	checkOn  = "on"
	checkOff = "off"
)

func (s *signedInFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&s.page, "signed-in-page", "", "`address` of a page that shows whether somebody is signed in; empty for the first page of the domain")
	f.StringVar(&s.marker, "signed-in-marker", "", "CSS `selector` of what only a signed-in page has; empty for none")
	f.StringVar(&s.check, "login-check", "", "`on` or off: whether sessions look if the site has forgotten the login")
	complete(cmd, "login-check", checkOn, checkOff)
}

// given says whether one of the flags was.
func (s *signedInFlags) given(cmd *cobra.Command) (bool, error) {
	changed := cmd.Flags().Changed
	if changed("login-check") && s.check != checkOn && s.check != checkOff {
		return false, usage(cmd, "--login-check is on or off, not %q", s.check)
	}
	return changed("signed-in-page") || changed("signed-in-marker") || changed("login-check"), nil
}

// set changes what the flags speak of.
func (s *signedInFlags) set(cmd *cobra.Command, c *client.Client, tenant, domain string) (vault.CookieSet, error) {
	set, err := c.CookieSet(cmd.Context(), tenant, domain)
	if err != nil {
		return set, err
	}
	to, changed := set.SignedIn, cmd.Flags().Changed
	if changed("signed-in-page") {
		to.Page = s.page
	}
	if changed("signed-in-marker") {
		to.Marker = s.marker
	}
	if changed("login-check") {
		to.Unwatched = s.check == checkOff
	}
	return c.SetSignedIn(cmd.Context(), tenant, domain, to)
}

func newCookiesRemove(p *program) *cobra.Command {
	var tenant string
	cmd := &cobra.Command{
		Use:               "rm DOMAIN…",
		Aliases:           []string{"remove"},
		Short:             "Remove cookie sets",
		Long:              "Removes cookie sets. Sessions that have the cookies already keep them until they end.",
		Args:              arguments(1, -1),
		ValidArgsFunction: p.completeAll(domainsOfSets),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			return each(cmd, args, func(domain string) error { return c.DeleteCookies(cmd.Context(), tenant, domain) })
		},
	}
	p.tenantFlag(cmd, &tenant)
	return cmd
}
