package console

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/clawjail/clawjail/internal/problem"
)

// form is what somebody has filled in, and what was wrong with it. The zero form is an empty one.
type form struct {
	Values url.Values
	// Problem is about the whole, and flaws are about fields.
	Problem *said
	flaws   map[string][]problem.Flaw
}

// form reads the form that was sent. A value that is no text is refused.
func (q *request) form() (*form, error) {
	limit := int64(maxForm)
	if q.in.ID == "" {
		limit = maxFormSignedOut
	}
	q.r.Body = http.MaxBytesReader(q.w, q.r.Body, limit)
	if err := q.r.ParseForm(); err != nil {
		return nil, problem.Wrap(err, problem.BadRequest, "send less, or send it again", "the form did not arrive")
	}
	for name, values := range q.r.PostForm {
		if slices.ContainsFunc(append(values, name), func(v string) bool { return !utf8.ValidString(v) || strings.ContainsRune(v, 0) }) {
			return nil, problem.New(problem.BadRequest, "write text", "the form has a field that is not text")
		}
	}
	return &form{Values: q.r.PostForm}, nil
}

// blank is a form with the values that a page begins with.
func blank(pairs ...string) *form {
	f := &form{Values: url.Values{}}
	for n := 0; n+1 < len(pairs); n += 2 {
		f.Values.Set(pairs[n], pairs[n+1])
	}
	return f
}

// Get is a field without the space around it.
func (f *form) Get(name string) string {
	if f == nil {
		return ""
	}
	return strings.TrimSpace(f.Values.Get(name))
}

// Has says whether a box is ticked.
func (f *form) Has(name string) bool { return f != nil && f.Values.Get(name) != "" }

// Words are the parts of a field between spaces, commas and ends of lines.
func (f *form) Words(name string) []string {
	return strings.FieldsFunc(f.Get(name), func(r rune) bool { return strings.ContainsRune(" \t\r\n,", r) })
}

// wrong notes a mistake in a field.
func (f *form) wrong(field, message, hint string) {
	if f.flaws == nil {
		f.flaws = map[string][]problem.Flaw{}
	}
	f.flaws[field] = append(f.flaws[field], problem.Flaw{Field: field, Message: message, Hint: hint})
}

// ok says that nothing is wrong.
func (f *form) ok() bool { return len(f.flaws) == 0 && f.Problem == nil }

// refuse takes what a service did not like: flaws go to the fields of their names, or of those that names maps them to;
// everything else is about the whole. It is false for what is no mistake of whoever filled it in, which is returned.
func (f *form) refuse(err error, names map[string]string) (mine bool) {
	s := sayProblem(err)
	if s.Status >= http.StatusInternalServerError {
		return false
	}
	rest := s.Flaws[:0:0]
	for _, flaw := range s.Flaws {
		name := flaw.Field
		if to, ok := names[name]; ok {
			name = to
		}
		if _, there := f.Values[name]; there {
			f.wrong(name, flaw.Message, flaw.Hint)
		} else {
			rest = append(rest, flaw)
		}
	}
	s.Flaws = rest
	f.Problem = &s
	return true
}

// field is one field as a page shows it: see fields.html.
type field struct {
	ID, Name, Label, Help, Value string
	Kind                         string // text, password, number, search, url, textarea, checkbox, select
	Flaws                        []problem.Flaw
	Required, Checked            bool
	Placeholder, Autocomplete    string
	Options                      []option
	Rows                         int
}

// option is one line of a list to choose from.
type option struct {
	Value, Label string
	Selected     bool
}

// Described are the ids of what explains the field.
func (f field) Described() string {
	var ids []string
	if f.Help != "" {
		ids = append(ids, f.ID+"-help")
	}
	if len(f.Flaws) > 0 {
		ids = append(ids, f.ID+"-wrong")
	}
	return strings.Join(ids, " ")
}

// newField makes one, for templates: {{template "field" (field .Form "name" "Name" "help")}}.
func newField(f *form, name, label, help string) *field {
	out := &field{ID: "f-" + name, Name: name, Label: label, Help: help, Kind: "text"}
	if f != nil {
		out.Value, out.Flaws, out.Checked = f.Values.Get(name), f.flaws[name], f.Has(name)
	}
	return out
}

// The rest shape a field in a template: {{field … | as "password" | must}}.
func as(kind string, f *field) *field {
	f.Kind = kind
	if kind == "password" {
		f.Value = "" // nothing secret goes back
		// Browsers fill in the key of this console where they know it, unless it is said that another secret is meant.
		f.Autocomplete = "new-password"
	}
	if kind == "textarea" {
		f.Rows = 4
	}
	return f
}

func must(f *field) *field                      { f.Required = true; return f }
func placeholder(text string, f *field) *field  { f.Placeholder = text; return f }
func autocomplete(text string, f *field) *field { f.Autocomplete = text; return f }
func rows(n int, f *field) *field               { f.Rows = n; return f }

// withID gives it another id, where a page has two fields of one name.
func withID(id string, f *field) *field { f.ID = "f-" + id; return f }

// of gives a field a list to choose from.
func of(options []option, f *field) *field {
	f.Kind = "select"
	f.Options = slices.Clone(options)
	for n := range f.Options {
		f.Options[n].Selected = f.Options[n].Value == f.Value
	}
	return f
}

// options makes a list of values that are their own labels.
func options[T ~string](values ...T) []option {
	out := make([]option, 0, len(values))
	for _, v := range values {
		label := string(v)
		if label == "" {
			label = "—"
		}
		out = append(out, option{Value: string(v), Label: label})
	}
	return out
}
