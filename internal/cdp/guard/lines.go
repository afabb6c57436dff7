package guard

import (
	_ "embed"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/net/http/httpguts"
)

// fields lists every text that a client can put into a command, and how it is checked before anything else is done
// with the command. The kinds of checks are [checks]; "none" is for texts that become no part of the line or the
// header of a request, an answer or a cookie.
//
//go:embed fields.tsv
var fields string

// methods are those that a client may choose. TRACE and TRACK show a cookie that no script reads; others are no method
// or end the line early.
var methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}

// check refuses a value that could be read as more than the one part of a line that it is.
type check func(mode Mode, value jsontext.Value) error

// checks are the kinds that fields.tsv names.
func checks() map[string]check {
	return map[string]check{
		"none": nil,
		// The method of a request.
		"method": each(func(_ Mode, text string) string {
			if slices.Contains(methods, text) {
				return ""
			}
			return "is not one of " + strings.Join(methods, ", ")
		}),
		// Where a request goes.
		"address": each(func(mode Mode, text string) string {
			if mode == Operator && hasUser(text) {
				return "has a login of the client's own, which would take the place of the operator's"
			}
			// Browsers leave these out of an address, and so does the guard.
			return controlled(strings.TrimFunc(text, func(r rune) bool { return r <= ' ' }), "\t\r\n")
		}),
		// A text within a line.
		"line": each(func(_ Mode, text string) string { return inLine(text) }),
		// A part of a cookie or of a login, which may have letters of any language.
		"text": each(func(_ Mode, text string) string { return controlled(text, "") }),
		// An object with a name and a value.
		"header": func(_ Mode, value jsontext.Value) error {
			var name, content string
			err := object(value, func(member []byte, v jsontext.Value) (err error) {
				switch string(member) {
				case "name":
					name, err = text(v)
				case "value":
					content, err = text(v)
				}
				return err
			})
			if err != nil {
				return notText(err)
			}
			return headerLine(name, content)
		},
		// An object of names with their values.
		"headers": func(_ Mode, value jsontext.Value) error {
			return object(value, func(name []byte, v jsontext.Value) error {
				content, err := text(v)
				if err != nil {
					return notText(err)
				}
				return headerLine(string(name), content)
			})
		},
		// Lines of a header in base64, each ended by a zero.
		"raw": func(_ Mode, value jsontext.Value) error {
			given, err := text(value)
			if err != nil {
				return notText(err)
			}
			raw, err := base64.StdEncoding.DecodeString(given)
			if err != nil {
				return &refusal{"the header is no base64", "Use responseHeaders."}
			}
			for line := range strings.SplitSeq(strings.TrimSuffix(string(raw), "\x00"), "\x00") {
				name, content, found := strings.Cut(line, ":")
				if line != "" && !found {
					return &refusal{fmt.Sprintf("%.40q is no line of a header", line), "Use responseHeaders."}
				}
				if err := headerLine(name, strings.TrimSpace(content)); line != "" && err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// each makes the check of a text.
func each(wrong func(mode Mode, text string) string) check {
	return func(mode Mode, value jsontext.Value) error {
		given, err := text(value)
		if err != nil {
			return notText(err)
		}
		if why := wrong(mode, given); why != "" && string(value) != "null" {
			return &refusal{fmt.Sprintf("%.40q %s", given, why), "Write one plain value."}
		}
		return nil
	}
}

func notText(err error) error { return &refusal{err.Error(), "Write one plain value."} }

// inLine says why a text can end the line that it stands in. Letters beyond Latin-1 are refused as well: a header is
// bytes, and programs that keep the low half of "Ċ" read the end of a line.
func inLine(text string) string {
	for _, r := range text {
		if r > 0xff {
			return "has a letter that no header can carry"
		}
	}
	return controlled(text, "\t")
}

// controlled says that a text has a control character, other than those in except.
func controlled(text, except string) string {
	for _, r := range text {
		if (r < ' ' || r >= 0x7f && r < 0xa0) && !strings.ContainsRune(except, r) {
			return "has a control character, which could end the line that it stands in"
		}
	}
	return ""
}

// headerLine decides about one header. A header that tells the server another method is held to the same ones: the
// Fetch standard forbids scripts the same (section 2.2.2).
func headerLine(name, value string) error {
	if !httpguts.ValidHeaderFieldName(name) {
		return &refusal{fmt.Sprintf("%.40q is no name of a header", name), "Write letters, digits and hyphens."}
	}
	if why := inLine(value); why != "" {
		return &refusal{fmt.Sprintf("the value of the header %.40s %s", name, why), "Write one plain line."}
	}
	override := slices.Contains([]string{"x-http-method", "x-http-method-override", "x-method-override"}, strings.ToLower(name))
	for method := range strings.SplitSeq(value, ",") {
		method = strings.ToUpper(strings.TrimSpace(method))
		// Programs look for a method in headers of many names.
		if override && !slices.Contains(methods, method) || slices.Contains([]string{"TRACE", "TRACK", "CONNECT"}, method) {
			return &refusal{fmt.Sprintf("the header %.40s names a method that is not one of %s", name, strings.Join(methods, ", ")), hintUnknown}
		}
	}
	return nil
}

// hasUser says whether an address of the web has a user name or a password. Browsers read any number of slashes and
// backslashes before the host.
func hasUser(address string) bool {
	scheme, rest, _ := strings.Cut(strings.TrimLeftFunc(address, func(r rune) bool { return r <= ' ' }), ":")
	scheme = strings.NewReplacer("\t", "", "\n", "", "\r", "").Replace(scheme)
	if !strings.EqualFold(scheme, "http") && !strings.EqualFold(scheme, "https") {
		return false
	}
	rest = strings.TrimLeft(rest, "/\\\t\r\n")
	if end := strings.IndexAny(rest, `/\?#`); end >= 0 {
		rest = rest[:end]
	}
	return strings.Contains(rest, "@")
}

// field is a value that is checked: where it is in the parameters, and how.
type field struct {
	path  []string // names of members; "[]" is every element
	check check
}

// fieldsOf reads fields.tsv: for each command the fields that are checked.
func fieldsOf(table string) (map[string][]field, error) {
	known := checks()
	out := make(map[string][]field)
	for i, line := range strings.Split(strings.TrimSuffix(table, "\n"), "\n") {
		if i == 0 {
			continue // the names of the columns
		}
		cells := strings.Split(line, "\t")
		if len(cells) != 3 {
			return nil, fmt.Errorf("fields.tsv:%d: %d columns, not 3", i+1, len(cells))
		}
		check, ok := known[cells[1]]
		if !ok {
			return nil, fmt.Errorf("fields.tsv:%d: there is no check %q", i+1, cells[1])
		}
		var whole []string
		for _, path := range strings.Fields(cells[2]) {
			if check == nil {
				continue
			}
			if cells[1] == "header" { // both are looked at together
				path = path[:strings.LastIndexByte(path, '.')]
			}
			if path = strings.TrimSuffix(path, "{}"); slices.Contains(whole, path) {
				continue
			}
			whole = append(whole, path)
			steps := strings.Split(strings.ReplaceAll(path, "[]", ".[]"), ".")
			out[cells[0]] = append(out[cells[0]], field{steps, check})
		}
	}
	return out, nil
}

// look checks all values that a field has in the parameters. A value of another form than the path says is refused.
func (f field) look(mode Mode, raw jsontext.Value) error {
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return nil
	case len(f.path) == 0:
		return f.check(mode, raw)
	}
	rest := field{f.path[1:], f.check}
	if f.path[0] == "[]" {
		return array(raw, func(value jsontext.Value) error { return rest.look(mode, value) })
	}
	return object(raw, func(name []byte, value jsontext.Value) error {
		if string(name) != f.path[0] {
			return nil
		}
		return rest.look(mode, value)
	})
}

// inLines checks what a command puts into lines of requests and answers.
func (r *commandRule) inLines(mode Mode, params jsontext.Value) error {
	for _, f := range r.fields {
		if err := f.look(mode, params); err != nil {
			return err
		}
	}
	return nil
}
