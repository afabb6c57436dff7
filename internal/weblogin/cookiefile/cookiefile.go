// Package cookiefile reads cookies out of the files in which browsers and tools keep them: Playwright's storage state,
// the JSON of the DevTools Protocol, Netscape's cookies.txt, and Firefox profiles. It finds out by itself which one a
// file is. From a storage state it reads what pages have stored, too.
//
// [Read] keeps what is of the registrable domains that are wanted, if a browser will take it, and reports about
// all others: how many of which domain, which ones have expired, which are bound to another machine, which are not
// valid and why. Neither the report nor an error holds a value. The files are hostile input, and reading is bounded.
package cookiefile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/weblogin"
	"github.com/clawjail/clawjail/internal/weblogin/cookiefile/firefox"
)

// Format is a kind of file.
type Format string

// The formats.
const (
	Playwright Format = "playwright"
	CDP        Format = "cdp"
	Netscape   Format = "netscape"
	Firefox    Format = "firefox"
)

// Options of [Read]. All but TempDir must be set.
type Options struct {
	// Domains are the registrable domains whose cookies are kept.
	Domains []string
	// Now decides what has expired.
	Now time.Time
	// TempDir is where a private copy of a Firefox database is made for as long as it is read; empty is the
	// system's folder for such files.
	TempDir string
}

// Validate reports everything that is wrong at once.
func (o Options) Validate() error {
	wrong := &problem.ValidationError{Code: problem.BadDomain, Hint: "name registrable domains, such as example.com"}
	if len(o.Domains) == 0 {
		wrong.Add("domain", "is missing")
	}
	for _, domain := range o.Domains {
		switch registrable, err := cookies.RegistrableDomain(domain); {
		case err != nil:
			wrong.Add("domain", "%s", err)
		case registrable != domain:
			wrong.AddFlaw(problem.Flaw{Field: "domain", Message: cookies.Printable(domain) + " is not a registrable domain", Hint: "write " + registrable})
		}
	}
	if o.Now.IsZero() {
		wrong.Add("now", "is missing")
	}
	return wrong.Err()
}

// Result is what was read. Its cookies are sorted, valid, not expired, of the wanted domains, and no two have the same
// ID. Origins are those of the wanted domains, within their bounds. The caller wipes it.
type Result struct {
	Cookies []cookies.Cookie
	Origins []weblogin.Origin
	Report  Report
}

// Wipe overwrites all values.
func (r *Result) Wipe() { weblogin.Login{Cookies: r.Cookies, Origins: r.Origins}.Wipe() }

// Of is what was read of one domain.
func (r *Result) Of(domain string) weblogin.Login {
	list, _ := cookies.Select(r.Cookies, []string{domain})
	origins, _ := weblogin.Select(r.Origins, []string{domain})
	return weblogin.Login{Cookies: list, Origins: origins}
}

// Read reads a file, or the folder of a Firefox profile. It changes neither. Pipes are read as files are.
func Read(ctx context.Context, path string, o Options) (*Result, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, unreadable(path, err)
	}
	if info.IsDir() {
		if path, err = profileDatabase(path); err != nil {
			return nil, err
		}
		return readFirefox(ctx, path, o)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, unreadable(path, err)
	}
	defer f.Close()
	head := make([]byte, len(firefox.Magic))
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, unreadable(path, err)
	}
	if string(head[:n]) == firefox.Magic {
		if !info.Mode().IsRegular() {
			return nil, bad("give the path of the database itself", "a database cannot be read from a pipe")
		}
		return readFirefox(ctx, path, o)
	}
	data, err := io.ReadAll(io.LimitReader(io.MultiReader(bytes.NewReader(head[:n]), f), cookies.MaxBytes+1))
	defer clear(data)
	if err != nil {
		return nil, unreadable(path, err)
	}
	return Parse(data, o)
}

// Parse reads the content of a file of any format but Firefox's. It does not keep data.
func Parse(data []byte, o Options) (*Result, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if len(data) > cookies.MaxBytes {
		return nil, bad("export the cookies of one site only", "the file has more than %d MiB", cookies.MaxBytes>>20)
	}
	text := bytes.TrimSpace(bytes.TrimPrefix(data, []byte("\ufeff")))
	switch {
	case len(text) == 0:
		return nil, bad("export the cookies again", "the file is empty")
	case bytes.IndexByte(text, 0) >= 0:
		return nil, bad(formats, "the file is not text in UTF-8, and not a Firefox database")
	}
	parse := parseNetscape
	if text[0] == '{' || text[0] == '[' {
		parse = parseJSON
	}
	found, err := parse(text)
	if err != nil {
		return nil, err
	}
	return sift(found, o)
}

func readFirefox(ctx context.Context, path string, o Options) (*Result, error) {
	profile, err := firefox.Read(ctx, path, o.TempDir)
	if err != nil {
		return nil, problem.Wrap(err, problem.BadCookieFile, firefoxHint(err), "the cookies of Firefox could not be read")
	}
	return sift(fromProfile(profile), o)
}

func firefoxHint(err error) string {
	switch {
	case errors.Is(err, firefox.ErrEncrypted):
		return "Chromium encrypts what it stores; log in through a session of clawjail instead, or export cookies.txt"
	case errors.Is(err, firefox.ErrChanging), errors.Is(err, firefox.ErrDamaged):
		return "close Firefox and try again"
	case errors.Is(err, fs.ErrPermission):
		return "run the command as the user whose profile it is"
	}
	return formats
}

// profileDatabase finds the database in a profile's folder, and says what to give when the folder is another one.
func profileDatabase(folder string) (string, error) {
	path := filepath.Join(folder, firefox.Database)
	_, err := os.Stat(path)
	if err == nil {
		return path, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", unreadable(path, err)
	}
	if profiles, err := filepath.Glob(filepath.Join(escapeGlob(folder), "*", firefox.Database)); err == nil && len(profiles) > 0 {
		var names []string
		for _, p := range profiles {
			names = append(names, filepath.Dir(p))
		}
		return "", bad("give one of "+strings.Join(names, ", "), "%s holds profiles and is not one itself", folder)
	}
	for _, name := range []string{"Cookies", filepath.Join("Network", "Cookies"), filepath.Join("Default", "Cookies")} {
		if _, err := os.Stat(filepath.Join(folder, name)); err == nil {
			return "", bad(firefoxHint(firefox.ErrEncrypted), "%s is the profile of a Chromium", folder)
		}
	}
	return "", bad(formats, "%s is not the profile of a Firefox: it has no %s", folder, firefox.Database)
}

func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// formats is what to say when a file is none of ours.
const formats = "give a storage state of Playwright, a cookies.txt, the JSON of Storage.getCookies, or the folder of a Firefox profile"

func bad(hint, format string, args ...any) error {
	return problem.New(problem.BadCookieFile, hint, format, args...)
}

func unreadable(path string, err error) error {
	// The cause names the path once more.
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		err = pathError.Err
	}
	return problem.Wrap(err, problem.BadCookieFile, "check the path, and whether you may read it", "%s cannot be read", path)
}

// found is what a parser made of a file.
type found struct {
	format  Format
	cookies []cookies.Cookie
	origins []weblogin.Origin
	// broken are entries that are not even a cookie.
	broken []Invalid
	notes  []string
}

func (f *found) note(count int, format string, args ...any) {
	if count > 0 {
		f.notes = append(f.notes, fmt.Sprintf("%d %s", count, fmt.Sprintf(format, args...)))
	}
}
