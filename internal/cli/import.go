package cli

import (
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/vault"
	"github.com/clawjail/clawjail/internal/weblogin"
	"github.com/clawjail/clawjail/internal/weblogin/cookiefile"
)

const (
	// maxNamed is how many cookies of one kind are named for people; --json has all.
	maxNamed = 20
	// maxDomains is how many domains of a file are listed for people.
	maxDomains = 40
	// nobodysDomain is a domain that no file has cookies of (RFC 6761): with it a file is read for its counts alone.
	nobodysDomain = "clawjail.invalid"
)

// importing is what was said about an import.
type importing struct {
	file    string
	domains []string
	tenant  string
	rules   op.AccountRules
	dryRun  bool
	asJSON  bool
}

// imported is what `cookies import --json` prints.
type imported struct {
	Report cookiefile.Report `json:"report"`
	DryRun bool              `json:"dry_run"`
	// Sets are those that were stored.
	Sets []vault.CookieSet `json:"sets"`
}

func newCookiesImport(p *program) *cobra.Command {
	var i importing
	var values *given
	cmd := &cobra.Command{
		Use:   "import FILE --domain DOMAIN",
		Short: "Store the cookies of accounts from a file",
		Long: "Reads cookies from a file that a browser or a tool has made (a storage state of Playwright, a cookies.txt, the " +
			"JSON of Storage.getCookies), or from the folder of a Firefox profile, and stores those of the named domains: " +
			"one cookie set for each, which replaces the one that is there. Of a storage state, what pages of the domains have " +
			"stored (localStorage, IndexedDB) is stored with them. Everything else stays where it is. - is standard input.\n\nThe file is read here, and is not changed. It opens the accounts to whoever has it: remove it " +
			"afterwards. Without --domain the domains that the file has cookies of are listed.",
		Example: "  clawjail cookies import cookies.txt --domain example.com --dry-run\n" +
			"  clawjail cookies import ~/.mozilla/firefox/abcd.default --domain example.com --domain example.org",
		Args: arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			i.file = args[0]
			i.domains = distinct(i.domains)
			if len(i.domains) == 0 {
				return domainsOf(cmd, p, i.file)
			}
			if err := values.check(nil, ""); err != nil {
				return err
			}
			return p.importCookies(cmd, i)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&i.domains, "domain", nil, "`domain` whose cookies to store, such as example.com")
	p.tenantFlag(cmd, &i.tenant)
	values = &given{p: p, cmd: cmd}
	values.add(reflect.ValueOf(&i.rules).Elem())
	f.BoolVar(&i.dryRun, "dry-run", false, "say what would be stored, and store nothing")
	f.BoolVar(&i.asJSON, "json", false, "print JSON")
	return cmd
}

// readCookies reads a file, or standard input.
func (p *program) readCookies(cmd *cobra.Command, file string, domains []string) (*cookiefile.Result, error) {
	options := cookiefile.Options{Domains: domains, Now: p.now()}
	if file != standardInput {
		return cookiefile.Read(cmd.Context(), file, options)
	}
	if err := options.Validate(); err != nil {
		return nil, err // before anything is read
	}
	data, err := readInput(cmd, cookies.MaxBytes)
	if err != nil {
		return nil, err
	}
	defer clear(data)
	return cookiefile.Parse(data, options)
}

// domainsOf says which domains a file has cookies of: the error of an import that does not name any.
func domainsOf(cmd *cobra.Command, p *program, file string) error {
	read, err := p.readCookies(cmd, file, []string{nobodysDomain})
	if err != nil {
		return err
	}
	read.Wipe()
	domains := slices.DeleteFunc(read.Report.Domains, func(d cookiefile.DomainCount) bool { return d.Domain == nobodysDomain })
	if len(domains) == 0 {
		return problem.New(problem.BadCookieFile, "export the cookies again", "there are no cookies in %s", nameOf(file))
	}
	rows, hint := [][]string{}, ""
	for n, d := range domains {
		if d.Domain != "" && hint == "" {
			hint = "clawjail cookies import " + file + " --domain " + d.Domain
		}
		switch {
		case n < maxDomains:
			rows = append(rows, []string{"  " + domainName(d.Domain), strconv.Itoa(d.Cookies) + andOrigins(d)})
		case n == maxDomains:
			rows = append(rows, []string{fmt.Sprintf("  and %d more", len(domains)-n)})
		}
	}
	var list strings.Builder
	if err := table(&list, rows); err != nil {
		return err
	}
	return problem.New(problem.BadUsage, printable(hint), "say with --domain whose cookies to store; %s has those of\n%s",
		nameOf(file), list.String())
}

// andOrigins says how many origins of a domain have stored something.
func andOrigins(d cookiefile.DomainCount) string {
	if d.Origins == 0 {
		return ""
	}
	return ", and storage of " + count(d.Origins, "origin")
}

func nameOf(file string) string {
	if file == standardInput {
		return "standard input"
	}
	return printable(file)
}

func domainName(domain string) string {
	if domain == "" {
		return "(no registrable domain)"
	}
	return cookies.Printable(domain)
}

func (p *program) importCookies(cmd *cobra.Command, i importing) error {
	read, err := p.readCookies(cmd, i.file, i.domains)
	if err != nil {
		return err
	}
	return p.importRead(cmd, i, read)
}

// importRead stores what was read, and wipes it in any case.
func (p *program) importRead(cmd *cobra.Command, i importing, read *cookiefile.Result) (err error) {
	defer read.Wipe()
	out := imported{Report: read.Report, DryRun: i.dryRun, Sets: []vault.CookieSet{}}
	if !i.asJSON {
		if err := showImport(cmd.OutOrStdout(), read); err != nil {
			return err
		}
	}
	failed := nothingLeft(read, i)
	if failed == nil && !i.dryRun {
		out.Sets, failed = p.storeLogins(cmd, i, read)
	}
	switch {
	case i.asJSON:
		err = writeJSON(cmd.OutOrStdout(), out)
	case failed == nil && i.dryRun:
		_, err = fmt.Fprintln(cmd.OutOrStdout(), "nothing was stored: this was a dry run")
	}
	if failed != nil {
		return failed
	}
	return err
}

// storeLogins sends one set per domain. Sets that were stored before an error are returned with it.
func (p *program) storeLogins(cmd *cobra.Command, i importing, read *cookiefile.Result) ([]vault.CookieSet, error) {
	done := []vault.CookieSet{}
	c, err := p.client()
	if err != nil {
		return done, err
	}
	for _, domain := range i.domains {
		set, err := c.ImportLogin(cmd.Context(), i.tenant, domain, read.Of(domain), i.rules)
		if err != nil {
			return done, err
		}
		done = append(done, set)
		if i.asJSON {
			continue
		}
		if err := p.show(cmd, op.CookieSets{Sets: []vault.CookieSet{set}}.Stored()); err != nil {
			return done, err
		}
	}
	return done, nil
}

// nothingLeft refuses an import that would leave a domain without a login: the account would not work, and the set that
// is there would be gone.
func nothingLeft(read *cookiefile.Result, i importing) error {
	var missing, expired []string
	for _, domain := range i.domains {
		if !read.Of(domain).Empty() {
			continue
		}
		missing = append(missing, domain)
		if slices.ContainsFunc(read.Report.Expired, func(id cookies.ID) bool { return ofDomain(id, domain) }) {
			expired = append(expired, domain)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	hint := "clawjail cookies import " + i.file + " lists the domains that it has cookies of"
	if i.file == standardInput {
		hint = "leave --domain out to see which domains there are cookies of"
	}
	if len(expired) > 0 {
		hint = "they have expired: log in to " + strings.Join(expired, ", ") + " again, and export the cookies anew"
	}
	return problem.New(problem.BadCookieFile, printable(hint), "%s has no cookie of %s that can be used; nothing was stored",
		nameOf(i.file), strings.Join(missing, ", "))
}

func ofDomain(id cookies.ID, domain string) bool {
	return cookies.Matches(cookies.Cookie{Domain: id.Domain}, []string{domain})
}

// showImport says what became of the cookies of a file, by their names.
func showImport(w io.Writer, read *cookiefile.Result) error {
	r := read.Report
	others, theirs, origins := 0, 0, 0
	rows := [][]string{{"DOMAIN", "COOKIES", "KEPT"}}
	for _, d := range r.Domains {
		if !d.Wanted {
			others, theirs, origins = others+1, theirs+d.Cookies, origins+d.Origins
			continue
		}
		rows = append(rows, []string{domainName(d.Domain), strconv.Itoa(d.Cookies), strconv.Itoa(len(read.Of(d.Domain).Cookies))})
	}
	if err := table(w, rows); err != nil {
		return err
	}
	var lines []string
	if theirs+origins > 0 {
		left := count(theirs, "cookie")
		if origins > 0 {
			left += ", and storage of " + count(origins, "origin") + ","
		}
		lines = append(lines, fmt.Sprintf("left alone: %s of %s", left, count(others, "other domain")))
	}
	for _, one := range r.Storage {
		lines = append(lines, fmt.Sprintf("storage of %s: %s, %s", printable(one.Origin), entries(one), size(one.Bytes)))
	}
	lines = append(lines, named("expired, left out", r.Expired, cookies.ID.String)...)
	lines = append(lines, named("bound to another machine, will not work for long", r.DeviceBound, cookies.ID.String)...)
	lines = append(lines, named("not valid, left out", r.Invalid, describeInvalid)...)
	for _, note := range r.Notes {
		lines = append(lines, "note: "+printable(note))
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

// entries is how many there are of localStorage, and in databases.
func entries(o weblogin.OriginInfo) string {
	out := "1 entry"
	if o.Items != 1 {
		out = strconv.Itoa(o.Items) + " entries"
	}
	if o.Databases > 0 {
		out += ", " + count(o.Databases, "database") + " with " + count(o.Records, "record")
	}
	return out
}

func describeInvalid(i cookiefile.Invalid) string {
	place := i.Place
	if i.Cookie != nil {
		place = i.Cookie.String()
	}
	return printable(place + ": " + i.Text)
}

// named lists things under a heading, and says how many more there are.
func named[T any](heading string, all []T, text func(T) string) (lines []string) {
	for n, one := range all {
		if n == maxNamed {
			return append(lines, fmt.Sprintf("%s: and %d more", heading, len(all)-n))
		}
		lines = append(lines, heading+": "+text(one))
	}
	return lines
}

// distinct leaves out what is there twice.
func distinct(all []string) (out []string) {
	for _, one := range all {
		if !slices.Contains(out, one) {
			out = append(out, one)
		}
	}
	return out
}

// count is a number with its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if rest, ok := strings.CutSuffix(noun, "try"); ok {
		noun = rest + "trie"
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
