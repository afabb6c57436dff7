package secret

import (
	"net/url"
	"strings"
)

// beginning is what keys of a service begin with, and how long a text with it is at least to be one.
type beginning struct {
	text    string
	minimum int
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

// Within says whether a text has something in it that begins as keys do, a private key, or a URL with a password.
func Within(text string) bool {
	if strings.Contains(text, "-----BEGIN ") && strings.Contains(text, "PRIVATE KEY") {
		return true
	}
	for _, word := range strings.FieldsFunc(text, Apart) {
		if known(word) {
			return true
		}
		if strings.Contains(word, "://") && hasPassword(word) {
			return true
		}
	}
	return false
}

// Apart says whether a character parts words in which secrets are looked for.
func Apart(r rune) bool { return r <= ' ' || strings.ContainsRune(`"'=,;()[]{}<>|`, r) }

// known says whether a word begins as keys do. A key can stand in a URL, and behind a colon.
func known(word string) bool {
	for len(word) >= shortest {
		// A long word is looked at from each of its beginnings, and from none of them to its end.
		if head := word[:min(len(word), 512)]; begins(head) || ofBot(head) {
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
		return len(text) >= b.minimum && TokenLike(text)
	}
	return false
}

// ofBot says whether a text is the token of a bot of Telegram, up to where a URL would go on: its number, a colon and what nobody
// knows. In an address the word bot is before it.
func ofBot(text string) bool {
	number, rest, found := strings.Cut(strings.TrimPrefix(text, "bot"), ":")
	if end := strings.IndexAny(rest, "/?&"); end >= 0 {
		rest = rest[:end]
	}
	return found && len(number) >= 6 && strings.Trim(number, "0123456789") == "" && len(rest) >= 30 && TokenLike(rest)
}

// TokenLike says whether a text has only the characters that keys are made of.
func TokenLike(text string) bool {
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
