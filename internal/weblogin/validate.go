package weblogin

import (
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/problem"
)

// Validate refuses origins that are not of a registrable domain, or more than is stored. The code is bad_storage.
func Validate(list []Origin, domain string) error {
	wrong := &problem.ValidationError{Code: problem.BadStorage, Source: "storage of " + cookies.Printable(domain)}
	if len(list) > MaxOrigins {
		wrong.Add("origins", "are %d, more than %d", len(list), MaxOrigins)
		return wrong
	}
	var before []string
	for _, o := range list {
		field := cookies.Printable(o.Origin)
		of, err := DomainOf(o.Origin)
		switch {
		case err != nil:
			wrong.AddFlaw(problem.Flaw{Field: field, Message: err.Error(), Hint: "write scheme, host and port, and nothing else"})
		case of != domain:
			wrong.AddFlaw(problem.Flaw{Field: field, Message: "is of " + of + ", and not of the account's domain", Hint: "store it with the account of " + of})
		case slices.Contains(before, o.Origin):
			wrong.Add(field, "is there twice")
		}
		before = append(before, o.Origin)
		o.check(wrong, field)
	}
	return wrong.Err()
}

func (o Origin) check(wrong *problem.ValidationError, field string) {
	if len(o.Local) > MaxItems {
		wrong.Add(field, "has %d entries, more than %d", len(o.Local), MaxItems)
		return
	}
	names := make(map[string]bool, len(o.Local))
	for n, item := range o.Local {
		size := len(item.Name) + item.Value.Len()
		switch {
		case size > MaxValue:
			wrong.AddFlaw(problem.Flaw{Field: field, Hint: "leave it out: it is more than a login needs",
				Message: fmt.Sprintf("entry %d has %d bytes, more than %d MiB", n+1, size, MaxValue>>20)})
		case names[item.Name]:
			wrong.Add(field, "has a name twice, the second time in entry %d", n+1)
		case !utf8.ValidString(item.Name) || !valid(item):
			wrong.Add(field, "entry %d is not text in UTF-8", n+1)
		}
		names[item.Name] = true
	}
	o.checkDatabases(wrong, field)
	if size := o.Size(); size > MaxOrigin {
		wrong.AddFlaw(problem.Flaw{Field: field, Hint: "leave out what a login does not need",
			Message: fmt.Sprintf("has %d bytes, more than %d MiB", size, MaxOrigin>>20)})
	}
}

func (o Origin) checkDatabases(wrong *problem.ValidationError, field string) {
	if len(o.Databases) > MaxDatabases {
		wrong.Add(field, "has %d databases, more than %d", len(o.Databases), MaxDatabases)
		return
	}
	names := make(map[string]bool, len(o.Databases))
	for _, d := range o.Databases {
		name, hint := cookies.Printable(d.Name), "leave it out: it is more than a login needs"
		switch {
		case names[d.Name]:
			wrong.Add(field, "has the database %s twice", name)
		case d.Version < 1 || d.Version > maxVersion:
			wrong.Add(field, "has the database %s in version %d, which browsers do not have", name, d.Version)
		case d.Records > MaxRecords:
			wrong.AddFlaw(problem.Flaw{Field: field, Hint: hint, Message: fmt.Sprintf("has the database %s with %d records, more than %d", name, d.Records, MaxRecords)})
		case d.JSON.Len() > MaxDatabase:
			wrong.AddFlaw(problem.Flaw{Field: field, Hint: hint, Message: fmt.Sprintf("has the database %s with %d bytes, more than %d MiB", name, d.JSON.Len(), MaxDatabase>>20)})
		}
		names[d.Name] = true
	}
}

// maxVersion is the largest version of a database: what JavaScript has a whole number for.
const maxVersion = 1<<53 - 1

func valid(item Item) (ok bool) {
	// The function returns no error.
	_ = item.Value.Use(func(value []byte) error { ok = utf8.Valid(value); return nil })
	return ok
}
