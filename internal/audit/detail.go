package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxDetail is how many bytes of JSON a detail may have.
const MaxDetail = 4096

// Fields are what a [Detail] is made of: text, numbers, booleans and lists of texts.
type Fields map[string]any

// Detail is what a record says beyond its columns. It is made by [NewDetail], which is strict, because what is in the
// log stays there and is read by many. The zero Detail says nothing.
type Detail struct {
	_    [0]func()
	json []byte
	err  error
}

// NewDetail makes a detail. It is refused as a whole when
//   - a name is not like this_one, or is that of something secret, such as cookie, api_key or token_value; what merely
//     names or counts them is allowed: cookie_count, token_id
//   - a value's type is not one of string, bool, int…, uint…, float…, []string themselves: a type of its own could be
//     one that hides its content from logs
//   - a text is not UTF-8, or a number is not finite
//   - it has more than [MaxDetail] bytes.
//
// [Log.Begin] and [Log.Event] return the error of a refused detail; what cannot fail records that it was refused.
func NewDetail(fields Fields) Detail {
	for name, value := range fields {
		if err := checkField(name, value); err != nil {
			return Detail{err: err}
		}
	}
	return encodeDetail(fields)
}

// Field is one field of a detail that is made without a map.
type Field struct {
	name string
	kind fieldKind
	text string
	num  int64
}

type fieldKind uint8

const (
	textField fieldKind = iota
	numberField
	truthField
)

// Text is a field with a text.
func Text(name, text string) Field { return Field{name: name, text: text} }

// Number is a field with a whole number.
func Number(name string, n int64) Field { return Field{name: name, kind: numberField, num: n} }

// True is a field that is true. One that is false is left out by its caller.
func True(name string) Field { return Field{name: name, kind: truthField, num: 1} }

// False is a field that is false.
func False(name string) Field { return Field{name: name, kind: truthField} }

// NewDetailOf is [NewDetail] for what is recorded with every request: its fields come in the order of their names, each once.
func NewDetailOf(fields ...Field) Detail {
	if len(fields) == 0 {
		return Detail{}
	}
	data := make([]byte, 0, 64+24*len(fields))
	last := ""
	for n, f := range fields {
		err := checkFieldName(f.name)
		switch {
		case err == nil && f.name <= last:
			err = fmt.Errorf("the detail %s comes after %s", f.name, last)
		case err == nil && f.kind == textField:
			err = checkFieldText(f.name, f.text)
		}
		if err != nil {
			return Detail{err: err}
		}
		last = f.name
		data = append(append(append(data, "{,"[min(n, 1)], '"'), f.name...), '"', ':')
		switch f.kind {
		case textField:
			if data, err = appendText(data, f.text); err != nil {
				return Detail{err: err}
			}
		case numberField:
			data = strconv.AppendInt(data, f.num, 10)
		default:
			data = strconv.AppendBool(data, f.num != 0)
		}
	}
	return bounded(append(data, '}'))
}

func bounded(data []byte) Detail {
	if len(data) > MaxDetail {
		return Detail{err: fmt.Errorf("the detail has %d bytes, more than %d", len(data), MaxDetail)}
	}
	return Detail{json: data}
}

// encodeDetail writes canonical JSON: sorted names, no white space. It is written with every request that leaves a jail,
// and does without reflection where it can.
func encodeDetail(fields map[string]any) Detail {
	if len(fields) == 0 {
		return Detail{}
	}
	names := make([]string, 0, len(fields))
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names)
	data := make([]byte, 0, 64+24*len(names))
	for n, name := range names {
		var err error
		if data, err = appendValue(append(data, "{,"[min(n, 1)]), name); err == nil {
			data, err = appendValue(append(data, ':'), fields[name])
		}
		if err != nil {
			return Detail{err: fmt.Errorf("encode the detail: %w", err)}
		}
	}
	return bounded(append(data, '}'))
}

func appendText(data []byte, text string) ([]byte, error) {
	if plainText(text) {
		return append(append(append(data, '"'), text...), '"'), nil
	}
	return appendJSON(data, text)
}

func appendJSON(data []byte, value any) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return append(data, bytes.TrimSuffix(out.Bytes(), []byte("\n"))...), nil
}

func appendValue(data []byte, value any) ([]byte, error) {
	switch v := value.(type) {
	case bool:
		return strconv.AppendBool(data, v), nil
	case int:
		return strconv.AppendInt(data, int64(v), 10), nil
	case int64:
		return strconv.AppendInt(data, v, 10), nil
	case string:
		return appendText(data, v)
	}
	return appendJSON(data, value)
}

// plainText says whether a text stands in JSON as it is.
func plainText(text string) bool {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// Err says why the detail was refused.
func (d Detail) Err() error { return d.err }

// String is the detail as it is recorded.
func (d Detail) String() string { return string(d.bytes()) }

// LogValue is the detail as it is recorded.
func (d Detail) LogValue() slog.Value { return slog.StringValue(d.String()) }

func (d Detail) bytes() []byte {
	if len(d.json) == 0 {
		return []byte("{}")
	}
	return d.json
}

func checkField(name string, value any) error {
	if err := checkFieldName(name); err != nil {
		return err
	}
	switch v := value.(type) {
	case string:
		return checkFieldText(name, v)
	case []string:
		for _, text := range v {
			if err := checkFieldText(name, text); err != nil {
				return err
			}
		}
	case bool, int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64:
	case float32:
		return checkFinite(name, float64(v))
	case float64:
		return checkFinite(name, v)
	default:
		return fmt.Errorf("the detail %s has the type %T: only texts, numbers, booleans and lists of texts are recorded", name, value)
	}
	return nil
}

func checkFieldText(name, text string) error {
	if !utf8.ValidString(text) || strings.IndexByte(text, 0) >= 0 {
		return fmt.Errorf("the detail %s is not UTF-8 without NUL", name)
	}
	return nil
}

func checkFinite(name string, f float64) error {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return fmt.Errorf("the detail %s is not a finite number", name)
	}
	return nil
}

// checkFieldName refuses what is not a plain name, so that no other spelling gets past the list of what is secret.
func checkFieldName(name string) error {
	if everyDay(name) {
		return nil
	}
	if name == "" || len(name) > 40 || name[0] < 'a' || name[0] > 'z' {
		return fmt.Errorf("%q is not the name of a detail: 1 to 40 of a-z, 0-9 and _, a letter first", name)
	}
	for _, c := range name {
		if c != '_' && (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return fmt.Errorf("%q is not the name of a detail: 1 to 40 of a-z, 0-9 and _, a letter first", name)
		}
	}
	words := strings.Split(name, "_")
	if harmless(words[len(words)-1]) {
		return nil
	}
	if slices.ContainsFunc(words, secret) || secret(strings.Join(words, "")) {
		return fmt.Errorf("a detail named %s may hold something secret, which is never recorded", name)
	}
	return nil
}

// everyDay are names that records of every request have; a test looks at them as at all others.
func everyDay(name string) bool {
	switch name {
	case "method", "scheme", "allowed", "path", "rule", "service", "code", "agent", "injected", "bytes_out", "bytes_in", "ms", "address", "status", "reused":
		return true
	}
	return false
}

// harmless says whether a last word makes a name that of a number or a name of something, not of the thing.
func harmless(word string) bool {
	switch word {
	case "count", "counts", "id", "ids", "name", "names", "kind", "kinds", "domain", "domains", "bytes", "at":
		return true
	}
	return false
}

// secret says whether a word of a name is one of something that must not be recorded.
func secret(word string) bool {
	for _, part := range []string{
		"value", "cookie", "token", "secret", "passw", "passphrase", "passcode", "passkey", "authoriz", "authoris", "bearer",
		"credential", "apikey", "privatekey", "signature",
	} {
		if strings.Contains(word, part) {
			return true
		}
	}
	switch word {
	case "auth", "key", "keys", "otp", "totp", "pin", "jwt", "pat", "jar", "pass", "header", "headers", "body":
		return true
	}
	return false
}

// maxNames bounds the names of a list in a record, in bytes: a record has room for 4 KiB.
const maxNames = 1200

// Names are as many names of a list as a record has room for. How many there are is recorded beside them.
func Names(names []string) []string {
	out := []string{} // a record has no null
	size := 0
	for _, name := range names {
		if size += len(name) + 3; size > maxNames {
			break
		}
		out = append(out, name)
	}
	return out
}
