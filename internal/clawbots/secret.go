package clawbots

import (
	"math"
	"net/url"
	"strings"
	"unicode/utf8"
)

// beginning is what keys of a service begin with, and how long a text with it is at least to be one.
type beginning struct {
	text  string
	least int
}

// beginnings are those of well-known services, and our own. It is an array so that asking costs nothing.
func beginnings() [42]beginning {
	return [...]beginning{
		{"sk-", 20}, {"sk_live_", 16}, {"sk_test_", 16}, {"rk_live_", 16}, {"whsec_", 16}, // OpenAI, Anthropic, Stripe
		{"ghp_", 20}, {"gho_", 20}, {"ghu_", 20}, {"ghs_", 20}, {"ghr_", 20}, {"github_pat_", 20}, {"glpat-", 16}, // GitHub, GitLab
		{"xoxb-", 16}, {"xoxp-", 16}, {"xoxa-", 16}, {"xoxr-", 16}, {"xoxs-", 16}, {"xapp-", 16}, {"xoxe.", 16}, // Slack
		{"AKIA", 20}, {"ASIA", 20}, {"AIza", 30}, {"ya29.", 20}, // AWS, Google
		{"hf_", 20}, {"npm_", 20}, {"pypi-", 20}, {"dop_v1_", 20}, {"SG.", 20}, {"gsk_", 20}, {"xai-", 20}, {"r8_", 20}, {"tvly-", 16},
		{"pplx-", 16}, {"AGE-SECRET-KEY-", 16},
		{"eyJ", 30}, {"v4.public.", 20}, {"v4.local.", 20}, // JSON Web Tokens, PASETO
		{"cjadm_", 7}, {"cjop_", 6}, {"cjagt_", 7}, {"cjses_", 7}, {"cjbr_", 6}, // ours
	}
}

// secretWithin says whether a text has something in it that begins as keys do, a private key, or a URL with a password.
func secretWithin(text string) bool {
	if strings.Contains(text, "-----BEGIN ") && strings.Contains(text, "PRIVATE KEY") {
		return true
	}
	for _, word := range strings.FieldsFunc(text, apart) {
		if known(word) {
			return true
		}
		if strings.Contains(word, "://") && hasPassword(word) {
			return true
		}
	}
	return false
}

// apart says whether a character parts words in which secrets are looked for.
func apart(r rune) bool { return r <= ' ' || strings.ContainsRune(`"'=,;()[]{}<>|`, r) }

// known says whether a word begins as keys do. A key can stand in a URL, and behind a colon.
func known(word string) bool {
	for len(word) >= shortest {
		if begins(word) {
			return true
		}
		// Keys have dots, and stand behind them in paths of fields; so each is a new beginning.
		at := strings.IndexAny(word, "/:@?&.")
		if at < 0 {
			return false
		}
		word = word[at+1:]
	}
	return false
}

// shortest is the least length of any key.
const shortest = 6

// begins says whether a text is a key up to where a URL would go on.
func begins(text string) bool {
	for _, b := range beginnings() {
		if !strings.HasPrefix(text, b.text) {
			continue
		}
		if end := strings.IndexAny(text, "/:@?&"); end >= 0 {
			text = text[:end]
		}
		return len(text) >= b.least && tokenLike(text)
	}
	return false
}

// tokenLike says whether a text has only the characters that keys are made of.
func tokenLike(text string) bool {
	return strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-+=~") == ""
}

func hasPassword(word string) bool {
	u, err := url.Parse(word)
	if err != nil {
		return strings.Contains(word, "@")
	}
	password, set := u.User.Password()
	return set && password != ""
}

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

// Bounds of what nobody could guess: the least length, and bits of entropy for each character.
const (
	leastSecret  = 16
	leastEntropy = 2.75
)

// unguessable says whether a value of a variable that is named so is likely a secret. Paths and plain URLs are not: they say
// where one is.
func unguessable(value string) bool {
	value = strings.TrimSpace(value)
	if len(value) < leastSecret || entropy(value) < leastEntropy {
		return false
	}
	if strings.HasPrefix(value, "/") || strings.HasPrefix(value, "./") {
		for part := range strings.SplitSeq(value, "/") {
			if scrambled(part, leastSecret) {
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
		if apart(r) {
			out.WriteString(text[:n])
			text = text[n:]
			continue
		}
		end := strings.IndexFunc(text, apart)
		if end < 0 {
			end = len(text)
		}
		if word := text[:end]; known(word) || strings.Contains(word, "://") && hasPassword(word) || random(word) {
			out.WriteString(strings.Repeat("*", utf8.RuneCountInString(word)))
		} else {
			out.WriteString(word)
		}
		text = text[end:]
	}
	return out.String()
}

// random says whether a word looks as if nobody had thought of it. Names of agents, which may be long, do not.
func random(word string) bool {
	return !strings.ContainsAny(word, "/.*:@") && tokenLike(word) && scrambled(word, 20)
}

// scrambled says whether a text is long and has letters of both cases and digits in no order, or only hexadecimal digits.
func scrambled(text string, least int) bool {
	if len(text) < least || entropy(text) < 3 || !strings.ContainsAny(text, "0123456789") {
		return false
	}
	mixed := strings.ToLower(text) != text && strings.ToUpper(text) != text
	return mixed || strings.Trim(text, "0123456789abcdef") == ""
}
