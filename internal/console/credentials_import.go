package console

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/credential"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/vault"
	"github.com/clawjail/clawjail/internal/weblogin"
	"github.com/clawjail/clawjail/internal/weblogin/cookiefile"
)

const (
	// maxImport bounds what is sent: the largest file, and the fields around it.
	maxImport = cookies.MaxBytes + 1<<20
	// maxField bounds one field that is no file.
	maxField = 1 << 10
	// maxNamed is how many domains of a file are named.
	maxNamed = 12
	// nobodysDomain is a domain that no file has cookies of (RFC 6761): with it a file is read for its counts alone.
	nobodysDomain = "clawjail.invalid"
)

type importPage struct {
	Form    *form
	Tenants []option
	// Replaces is the domain whose account is there already.
	Replaces string
}

func (c *Console) showImport(q *request, f *form) (*importPage, error) {
	page := &importPage{Form: f}
	var err error
	if q.by.Tenant == "" {
		page.Tenants, err = c.tenantOptions(q)
	}
	return page, err
}

func (c *Console) newImport(q *request) error {
	f := formOfRules(credential.DefaultRules())
	f.Values.Set("domain", q.query("domain"))
	f.Values.Set("tenant", q.by.TenantOr(q.query("tenant")))
	if err := c.Identity.Authorize(q.ctx(), q.by, identity.CookiesImport, f.Get("tenant")); err != nil {
		return err
	}
	page, err := c.showImport(q, f)
	if err != nil {
		return err
	}
	if domain := f.Get("domain"); domain != "" {
		// The account's rules are in the form, so that they stay as they are unless the person changes them.
		if set, err := c.Credentials.CookieSet(q.ctx(), q.by, f.Get("tenant"), domain); err == nil {
			page.Replaces = set.Domain
			page.Form = formOfRules(vault.Rules{Scopes: set.Scopes, MaxLeases: set.MaxLeases})
			page.Form.Values.Set("domain", set.Domain)
			page.Form.Values.Set("tenant", set.Tenant)
		}
	}
	return q.show("credentials_import", "Import cookies", page)
}

func (c *Console) importAccount(q *request) error {
	f, file, err := q.upload()
	defer clear(file)
	if err != nil {
		return err
	}
	set, left, err := c.importFile(q, f, file)
	if err != nil {
		return err
	}
	if !f.ok() {
		page, err := c.showImport(q, f)
		if err != nil {
			return err
		}
		return q.again("credentials_import", "Import cookies", page)
	}
	return q.done(accountRow{CookieSet: set}.Path(), "%s", strings.TrimSpace(fmt.Sprintf("%s now has %s. %s", set.Domain, sayLogin(set), left)))
}

// importFile stores what a file has of the domain in the form, and says what it left out. Mistakes are put into the form.
func (c *Console) importFile(q *request, f *form, file []byte) (set vault.CookieSet, left string, err error) {
	domain, rules := strings.ToLower(f.Get("domain")), f.rules()
	// A caller without the right learns nothing about the file.
	if err := c.Identity.Authorize(q.ctx(), q.by, identity.CookiesImport, q.by.TenantOr(f.Get("tenant"))); err != nil {
		return set, "", err
	}
	switch {
	case len(file) == 0:
		f.wrong("cookies", "choose a file, or paste what is in it", "")
	case domain == "":
		message, err := domainsOf(file, c.Now())
		if err != nil {
			return set, "", f.settleField("cookies", err)
		}
		f.wrong("domain", message, "")
	}
	if !f.ok() {
		return set, "", nil
	}
	read, err := cookiefile.Parse(file, cookiefile.Options{Domains: []string{domain}, Now: c.Now()})
	if err != nil {
		field := "cookies"
		if problem.CodeOf(err) == problem.BadDomain {
			field = "domain"
		}
		return set, "", f.settleField(field, err)
	}
	defer read.Wipe()
	if read.Of(domain).Empty() {
		f.wrong("cookies", "has no cookie of "+domain+" that can be used; nothing was stored", hintOf(read.Report, domain))
		return set, "", nil
	}
	set, err = c.Credentials.Import(q.ctx(), q.by, credential.Import{Tenant: f.Get("tenant"), Domain: domain, Cookies: read.Cookies, Origins: read.Origins, Rules: &rules})
	return set, leftOut(read.Report), f.settle(err, map[string]string{"max_sessions": "max_sessions", "scopes": "max_sessions", "tenant": "tenant"})
}

// settleField puts an error about one field into the form, and returns what is no mistake of whoever filled it in.
func (f *form) settleField(name string, err error) error {
	if flaws := flawsOf(err); len(flaws) > 0 {
		for _, flaw := range flaws {
			f.wrong(name, flaw.Message, flaw.Hint)
		}
		return nil
	}
	if f.blame(name, err) {
		return nil
	}
	return err
}

// domainsOf says whose cookies a file has.
func domainsOf(file []byte, now time.Time) (string, error) {
	read, err := cookiefile.Parse(file, cookiefile.Options{Domains: []string{nobodysDomain}, Now: now})
	if err != nil {
		return "", err
	}
	read.Wipe()
	var names []string
	for _, d := range read.Report.Domains {
		if d.Domain != "" && d.Domain != nobodysDomain {
			storage := ""
			if d.Origins > 0 {
				storage = " and storage"
			}
			names = append(names, fmt.Sprintf("%s (%d%s)", d.Domain, d.Cookies, storage))
		}
	}
	if len(names) == 0 {
		return "is missing, and the file has no cookies", nil
	}
	if len(names) > maxNamed {
		names = append(names[:maxNamed], fmt.Sprintf("%d more", len(names)-maxNamed))
	}
	return "is missing. The file has cookies of " + listed(names) + ". Write one of them, and choose the file again", nil
}

// sayLogin is how much an account has.
func sayLogin(set vault.CookieSet) string {
	if len(set.Storage) == 0 {
		return plural(set.Count, "cookie")
	}
	return plural(set.Count, "cookie") + " and storage of " + plural(len(set.Storage), "origin")
}

// sayStored is what pages of an origin have stored, by numbers.
func sayStored(o weblogin.OriginInfo) string {
	entries := "1 entry"
	if o.Items != 1 {
		entries = fmt.Sprint(o.Items, " entries")
	}
	if o.Databases == 0 {
		return entries
	}
	return entries + ", " + plural(o.Databases, "database") + " with " + plural(o.Records, "record")
}

// hintOf says what to do about a file that has nothing of a domain.
func hintOf(r cookiefile.Report, domain string) string {
	if slices.ContainsFunc(r.Expired, func(id cookies.ID) bool { return cookies.Matches(cookies.Cookie{Domain: id.Domain}, []string{domain}) }) {
		return "they have expired: log in there again, and export them anew"
	}
	return "leave the domain out to see whose cookies the file has"
}

// leftOut says what of the domain was not stored, and what will not work for long.
func leftOut(r cookiefile.Report) string {
	var out []string
	if n := len(r.Expired); n > 0 {
		out = append(out, "Left out, because it had expired: "+plural(n, "cookie")+".")
	}
	if n := len(r.Invalid); n > 0 {
		out = append(out, "Left out, because no browser takes it: "+plural(n, "line")+".")
	}
	if n := len(r.DeviceBound); n > 0 {
		out = append(out, "Bound to another device, and of no use for long: "+plural(n, "cookie")+".")
	}
	return strings.Join(out, " ")
}

// upload reads the form with a file, or with what is in it pasted. The file is held in memory alone; the caller clears it.
func (q *request) upload() (*form, []byte, error) {
	q.r.Body = http.MaxBytesReader(q.w, q.r.Body, maxImport)
	f := &form{Values: url.Values{}}
	parts, err := q.r.MultipartReader()
	if err != nil {
		return nil, nil, problem.Wrap(err, problem.BadRequest, "use the form of the console", "the request is not the form of this page")
	}
	var file []byte
	for {
		part, err := parts.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, file, notArrived(err)
		}
		name := part.FormName()
		if name == "file" || name == "cookies" {
			text, err := readSecret(part, cookies.MaxBytes+1)
			if err != nil {
				clear(text)
				return nil, file, notArrived(err)
			}
			if len(bytes.TrimSpace(text)) > 0 {
				clear(file)
				file = text
			}
			f.Values.Set("cookies", "") // so that what is wrong with it stands there; nothing secret goes back
			continue
		}
		text, err := io.ReadAll(io.LimitReader(part, maxField+1))
		if err != nil {
			return nil, file, notArrived(err)
		}
		if len(text) > maxField || len(f.Values) > 20 || !utf8.Valid(text) || bytes.IndexByte(text, 0) >= 0 {
			return nil, file, problem.New(problem.BadRequest, "write less, and text", "the form has a field that is too long, or not text")
		}
		f.Values.Set(name, string(text))
	}
	return f, file, nil
}

// readSecret reads up to limit bytes, and leaves no copies of them behind when it has to make room.
func readSecret(from io.Reader, limit int64) ([]byte, error) {
	from = io.LimitReader(from, limit)
	out := make([]byte, 0, 64<<10)
	for {
		if len(out) == cap(out) {
			larger := make([]byte, len(out), 4*cap(out))
			copy(larger, out)
			clear(out)
			out = larger
		}
		n, err := from.Read(out[len(out):cap(out)])
		out = out[:len(out)+n]
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
	}
}

func notArrived(err error) error {
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return problem.Wrap(err, problem.BadCookieFile, "export the cookies of one site only", "the file has more than %d MiB", cookies.MaxBytes>>20)
	}
	return problem.Wrap(err, problem.BadRequest, "send it again", "the form did not arrive")
}
