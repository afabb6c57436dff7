package weblogin

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	// maxWhole is up to how many bytes a value is a secret as a whole: as long as a cookie may be.
	maxWhole = 4096
	// minToken is from how many bytes on a text within a value may be a token.
	minToken = 16
	// maxSecrets bounds the bytes of the secrets of one login; the shortest are left out.
	maxSecrets = 1 << 20
	// maxNested is how deep JSON may be in texts of JSON.
	maxNested = 4
)

// Secrets are copies of the secret parts of a login: the values of cookies, those of localStorage up to 4 KiB, and
// within longer ones, within JSON and within databases what looks like a token. They are for looking for them; the caller wipes them.
//
// Pages store much that is no secret and that they show: a whole list that a page has stored is nothing that anybody would
// find on it, and its words are.
func (l Login) Secrets() [][]byte {
	var out [][]byte
	for _, c := range l.Cookies {
		out = append(out, c.Value.Append(nil))
	}
	var stored [][]byte
	add := func(part []byte) { stored = append(stored, bytes.Clone(part)) }
	for _, o := range l.Origins {
		for _, item := range o.Local {
			// The function returns no error.
			_ = item.Value.Use(func(value []byte) error { secretsOf(value, add); return nil })
		}
		for _, d := range o.Databases {
			// The function returns no error.
			_ = d.JSON.Use(func(raw []byte) error { tokensIn(raw, 0, add); return nil })
		}
	}
	return append(out, longest(stored)...)
}

func secretsOf(value []byte, add func([]byte)) {
	if len(value) <= maxWhole {
		add(value)
	}
	tokensIn(value, 0, add)
}

// tokensIn finds tokens in a text: all of it, or texts in the JSON that it is.
func tokensIn(text []byte, depth int, add func([]byte)) {
	text = bytes.TrimSpace(text)
	if len(text) > 0 && (text[0] == '{' || text[0] == '[' || text[0] == '"') && depth < maxNested && jsontext.Value(text).IsValid() {
		d := jsontext.NewDecoder(bytes.NewBuffer(text))
		for {
			token, err := d.ReadToken()
			if err != nil {
				return
			}
			if token.Kind() == '"' {
				part := []byte(token.String())
				tokensIn(part, depth+1, add)
				clear(part)
			}
		}
	}
	if isToken(text) {
		for len(text) > maxWhole {
			add(text[:maxWhole])
			text = text[maxWhole:]
		}
		add(text)
	}
}

// isToken says whether a text looks like something that a program made up: letters and digits, no
// spaces, and of signs only those that tokens are written with. Addresses, paths and dates are none.
func isToken(text []byte) bool {
	if len(text) < minToken || bytes.Contains(text, []byte("://")) || isPath(text) || isDate(text) {
		return false
	}
	letters, digits := false, false
	for _, c := range text {
		switch {
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z':
			letters = true
		case c >= '0' && c <= '9':
			digits = true
		case bytes.IndexByte([]byte("-_.~+/=:|!*%$,"), c) < 0:
			return false
		}
	}
	return letters && digits
}

// isPath says whether a text is the path of a page, and no base64 that begins with a stroke: of that, one in 64 is a stroke.
func isPath(text []byte) bool {
	if text[0] != '/' {
		return false
	}
	if n := bytes.Count(text, []byte("/")); n > 1 && n*24 >= len(text) {
		return true
	}
	_, err := base64.StdEncoding.Decode(make([]byte, base64.StdEncoding.DecodedLen(len(text))), text)
	return err != nil
}

func isDate(text []byte) bool {
	_, err := time.Parse(time.RFC3339, string(text))
	return err == nil
}

// longest keeps as many as there may be, the longest first, and wipes the others.
func longest(all [][]byte) [][]byte {
	slices.SortFunc(all, func(a, b []byte) int { return cmp.Or(len(b)-len(a), bytes.Compare(a, b)) })
	all = slices.CompactFunc(all, bytes.Equal)
	sum := 0
	for n, one := range all {
		if sum += len(one); sum > maxSecrets {
			for _, left := range all[n:] {
				clear(left)
			}
			return all[:n]
		}
	}
	return all
}
