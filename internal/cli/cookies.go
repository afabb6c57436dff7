package cli

import (
	"context"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/client"
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
	cmd.AddCommand(newCookiesImport(p), newCookiesRefresh(p), described(p, op.CaptureCookies()), newCookiesList(p), newCookiesSet(p), described(p, op.RemoveCookies()),
		described(p, op.AllowAccount()), newCookiesDisallow(p), described(p, op.ListPermissions()))
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
			one := op.ShowCookies()
			set, err := client.Call(cmd.Context(), c, one, op.AccountNamed{Domain: args[0], InTenant: op.InTenant{Tenant: tenant}})
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(out, set)
			}
			if err := p.show(cmd, one.View(set)); err != nil {
				return err
			}
			return one.Fails(set)
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
	of := op.OfTenant{Tenant: tenant}
	all, err := client.Call(ctx, c, op.ListCookies(), of)
	if err != nil {
		return nil, err
	}
	needed, err := client.Call(ctx, c, op.ListNeedsRefresh(), of)
	if err != nil {
		return nil, err
	}
	permitted, err := client.Call(ctx, c, op.ListPermissions(), op.PermissionsListed{OfTenant: of})
	if err != nil {
		return nil, err
	}
	out := []listedSet{}
	for _, s := range all.Sets {
		one := listedSet{CookieSet: s}
		for _, a := range needed.Accounts {
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

func newCookiesSet(p *program) *cobra.Command {
	var in op.RulesChanged
	var signedIn signedInFlags
	cmd := &cobra.Command{
		Use:   "set DOMAIN [--scope ACCESS] [--max-sessions N] [--signed-in-page URL] [--signed-in-marker SELECTOR] [--login-check on|off]",
		Short: "Set who may use a cookie set, and how to check its login",
		Long: "Sets who may use a cookie set, and how to check whether the account is still signed in. Its cookies, and settings without a flag, " +
			"stay as they are.",
		Example: "  clawjail cookies set example.com --scope cdp --max-sessions 2\n" +
			"  clawjail cookies set example.com --signed-in-page https://example.com/inbox --signed-in-marker '.avatar'",
		Args: arguments(1, 1),
	}
	values := &given{p: p, cmd: cmd}
	values.add(reflect.ValueOf(&in).Elem())
	signedIn.add(cmd)
	cmd.ValidArgsFunction = values.complete(false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := values.check(args, ""); err != nil {
			return err
		}
		looks, err := signedIn.given(cmd)
		if err != nil {
			return err
		}
		if in.Of.Scopes == nil && in.Of.MaxSessions == nil && !looks {
			return usage(cmd, "say what to change: --scope, --max-sessions, --signed-in-page, --signed-in-marker or --login-check")
		}
		values.take(args)
		c, err := p.client()
		if err != nil {
			return err
		}
		if looks {
			if in.Of.SignedIn, err = signedIn.changed(cmd, c, in); err != nil {
				return err
			}
		}
		set, err := client.Call(cmd.Context(), c, op.SetCookieRules(), in)
		if err != nil {
			return err
		}
		return p.show(cmd, op.SetCookieRules().View(set))
	}
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

// changed is how to see whether the site of an account still knows it, with the changes of the flags.
func (s *signedInFlags) changed(cmd *cobra.Command, c *client.Client, in op.RulesChanged) (*vault.SignedIn, error) {
	set, err := client.Call(cmd.Context(), c, op.ShowCookies(), op.AccountNamed{Domain: in.Domain, InTenant: op.InTenant{Tenant: in.Of.Tenant}})
	if err != nil {
		return nil, err
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
	return &to, nil
}
