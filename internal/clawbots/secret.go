package clawbots

import (
	"math"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/clawjail/clawjail/internal/base/secret"
)

// secretlyNamed says whether a variable of this name is meant to hold a secret.
func secretlyNamed(name string) bool {
	upper := strings.ToUpper(name)
	for _, end := range []string{"_TOKEN", "_KEY", "_PASS", "_AUTH", "_PAT", "_PWD"} {
		if strings.HasSuffix(upper, end) || upper == end[1:] {
			return true
		}
	}
	for _, part := range []string{"SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "APIKEY", "CREDENTIAL"} {
		if strings.Contains(upper, part) {
			return true
		}
	}
	return false
}

// Bounds of a text that cannot be guessed: the least length, and bits of entropy for each character.
const (
	minSecret  = 16
	minEntropy = 2.75
)

// unguessable says whether a value of a variable that is named so is likely a secret. Paths and plain URLs are not: they say
// where one is.
func unguessable(value string) bool {
	value = strings.TrimSpace(value)
	if len(value) < minSecret || entropy(value) < minEntropy {
		return false
	}
	if strings.HasPrefix(value, "/") || strings.HasPrefix(value, "./") {
		for part := range strings.SplitSeq(value, "/") {
			if scrambled(part, minSecret) {
				return true
			}
		}
		return false
	}
	if u, err := url.Parse(value); err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.User == nil && u.RawQuery == "" {
		return false
	}
	return true
}

// entropy is Shannon's, in bits for each byte.
func entropy(text string) float64 {
	var counts [256]int
	for _, c := range []byte(text) {
		counts[c]++
	}
	bits := 0.0
	for _, n := range counts {
		if n > 0 {
			p := float64(n) / float64(len(text))
			bits -= p * math.Log2(p)
		}
	}
	return bits
}

// mask puts stars in place of every word that looks like a secret, one for each character, so that columns stay.
func mask(text string) string {
	var out strings.Builder
	for text != "" {
		r, n := utf8.DecodeRuneInString(text)
		if secret.Apart(r) {
			out.WriteString(text[:n])
			text = text[n:]
			continue
		}
		end := strings.IndexFunc(text, secret.Apart)
		if end < 0 {
			end = len(text)
		}
		if word := text[:end]; secret.Within(word) || random(word) {
			out.WriteString(strings.Repeat("*", utf8.RuneCountInString(word)))
		} else {
			out.WriteString(word)
		}
		text = text[end:]
	}
	return out.String()
}

// random says whether a word looks like random characters. Names of agents, which may be long, do not.
func random(word string) bool {
	return !strings.ContainsAny(word, "/.*:@") && secret.TokenLike(word) && scrambled(word, 20)
}

// scrambled says whether a text is long and has letters of both cases and digits in no order, or only hexadecimal digits.
func scrambled(text string, minimum int) bool {
	if len(text) < minimum || entropy(text) < 3 || !strings.ContainsAny(text, "0123456789") {
		return false
	}
	mixed := strings.ToLower(text) != text && strings.ToUpper(text) != text
	return mixed || strings.Trim(text, "0123456789abcdef") == ""
}
