package supportbundle

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/policy/redact"
)

// hidden stands where something was.
const hidden = "[hidden]"

// Mask takes out of texts what must not leave the machine. It remembers which word stands for which name, so that the same one
// does everywhere; it is for one goroutine.
type Mask struct {
	secrets *redact.Values
	plain   bool
	steps   []step
	known   *regexp.Regexp    // names that were given
	kinds   map[string]string // what each of them is the name of
	words   map[string]string
	numbers map[string]int
}

// Names are those that people chose, by what they are the names of, such as agent.
type Names map[string][]string

// ordinary are names that say nothing of anybody, and words of clawjail that a name may be the same as.
var ordinary = regexp.MustCompile(`^(|default|admin|system|root|clawjail|browser|clawbot|localhost|localhost\.localdomain|[0-9]+|.)$`)

// NewMask makes one that knows secrets and names of this machine. With plain, names stay, and nothing else does.
func NewMask(secrets [][]byte, names Names, plain bool) *Mask {
	m := &Mask{secrets: redact.New(secrets...), plain: plain, kinds: map[string]string{}, words: map[string]string{}, numbers: map[string]int{}}
	var all []string
	for kind, list := range names {
		for _, name := range list {
			if name = strings.ToLower(name); !ordinary.MatchString(name) && m.kinds[name] == "" {
				m.kinds[name] = kind
				all = append(all, regexp.QuoteMeta(name))
			}
		}
	}
	if len(all) > 0 {
		slices.SortFunc(all, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) }) // the longest first
		m.known = regexp.MustCompile(`(?i)(^|[^\pL\pN_])(` + strings.Join(all, "|") + `)($|[^\pL\pN_])`)
	}
	m.steps = m.secretSteps()
	if !plain {
		m.steps = append(m.steps, m.nameSteps()...)
	}
	return m
}

// The patterns. Each is of something that is secret, or may be, wherever it stands.
var (
	pem        = regexp.MustCompile(`(?s)-----BEGIN [A-Z ]+-----.*?(-----END [A-Z ]+-----|$)`)
	prefixed   = regexp.MustCompile(`(?i)\b(cj[a-z]{2,8}_|v4\.(public|local)\.|sk-|gh[a-z]_|github_pat_|glpat-|xox[a-z]-|age-secret-key-|akia|eyJ)[A-Za-z0-9_.\-]{6,}`)
	authority  = regexp.MustCompile(`(?i)\b(bearer|basic|digest)(\s+|%20)[A-Za-z0-9_.~+/=\-]{4,}`)
	assigned   = regexp.MustCompile(`(?i)([a-z0-9_.-]*(?:password|passwd|passphrase|secret|token|api_?key|admin.?key|cookie|authorization|credential|signature)(?:\\?["'])?\s?[:=]\s?)("(?:[^"\\\n]|\\.)+"|\\"[^"\\\n]+\\"|[^\s"'\[{\\][^\s,;"'}\]\\]*)`)
	address    = regexp.MustCompile(`(?i)\b([a-z][a-z0-9+.-]*://)([^\s/?#"'<>\\@]*@)?([^\s/?#"'<>\\]*)((?:[^\s"'<>\\]|\\u[0-9a-f]{4}|\\/)*)`)
	query      = regexp.MustCompile(`\?(?:[A-Za-z0-9_.~\[\]%+-]+=)(?:[^\s"'<>\\]|\\u[0-9a-fA-F]{4})*`)
	long       = regexp.MustCompile(`(sha256:)?[A-Za-z0-9_+-]{24,}={0,2}`)
	hostName   = regexp.MustCompile(`(?i)([a-z0-9._%+-]+@)?\b(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9])?\.)+(?:[a-z]{2,24}|xn--[a-z0-9-]{2,59})\b\.?`)
	fourNumber = regexp.MustCompile(`\b\d{1,3}(?:\.\d{1,3}){3}\b`)
	colons     = regexp.MustCompile(`(?i)[0-9a-f]*:[0-9a-f:]*:[0-9a-f:.]*`)
	// named is what says itself what it is the name of.
	named = regexp.MustCompile(`(?i)((?:\b|")(agent|tenant|operator|domain|server|provider)(?:="?|"\s?:\s?"))([^\s",\\]+)`)
	// notHosts are ends of names of files, units and programs; what ends so is no host.
	notHosts = regexp.MustCompile(`(?i)\.(service|slice|scope|socket|target|timer|mount|go|json|jsonl|yml|yaml|txt|log|md|sock|key|pem|crt|db|sqlite|sqlite3|wal|conf|toml|gz|tar|zst|img|so|sh|py|js|html|css|max|min|current|events|stat|peak|weight|pids|procs|type|high|low|swap|limit|jobs|tmp|lock|pid|d|c|h|s)\.?$|^(internal|cmd|github|runtime|net|os|context|main|session|grant|agent|cookies|operator|tenant|access|audit|rules|service|provider|vault|secret|template|jail|kernel|pool|peer|gateway|mcp|token|user|trusted)\.`)
)

// Text is a text without what must not be in a bundle. JSON stays JSON.
func (m *Mask) Text(text string) string {
	for _, s := range m.steps {
		text = s.do(text)
	}
	return text
}

// step is one thing that is taken out. Later ones see what earlier ones left.
type step struct {
	name string
	do   func(text string) string
}

// secretSteps are always taken.
func (m *Mask) secretSteps() []step {
	instead := func(found *regexp.Regexp, by string) func(string) string {
		return func(text string) string { return found.ReplaceAllString(text, by) }
	}
	return []step{
		{"known", m.secrets.Text},
		{"pem", instead(pem, hidden)},
		{"prefixed", instead(prefixed, hidden)},
		{"authority", instead(authority, "$1 "+hidden)},
		{"assigned", func(text string) string { return assigned.ReplaceAllStringFunc(text, unassigned) }},
		{"address", func(text string) string { return address.ReplaceAllStringFunc(text, m.address) }},
		{"query", instead(query, "?"+hidden)},
		{"long", func(text string) string { return long.ReplaceAllStringFunc(text, shortened) }},
	}
}

// nameSteps are taken unless names are to stay.
func (m *Mask) nameSteps() []step {
	return []step{
		{"named", func(text string) string { return named.ReplaceAllStringFunc(text, m.named) }},
		{"hosts", func(text string) string { return hostName.ReplaceAllStringFunc(text, m.host) }},
		{"addresses", func(text string) string {
			return colons.ReplaceAllStringFunc(fourNumber.ReplaceAllStringFunc(text, m.number), m.number)
		}},
		{"names", m.names},
	}
}

// unassigned hides what has the name of a secret. How many there are, or whether there is one, stays.
func unassigned(found string) string {
	parts := assigned.FindStringSubmatch(found)
	switch {
	case strings.HasPrefix(parts[2], `"`):
		return parts[1] + `"` + hidden + `"`
	case strings.HasPrefix(parts[2], `\"`):
		return parts[1] + `\"` + hidden + `\"`
	case parts[2] == "null" || plainValue.MatchString(parts[2]):
		return found
	}
	return parts[1] + hidden
}

// shortened hides what is long and looks random; a digest is for everybody.
func shortened(found string) string {
	if strings.HasPrefix(found, "sha256:") || !looksRandom(found) {
		return found
	}
	return hidden
}

// named replaces a name where the text says itself what it is.
func (m *Mask) named(found string) string {
	parts := named.FindStringSubmatch(found)
	if ordinary.MatchString(parts[3]) || strings.HasPrefix(parts[3], hidden) {
		return found
	}
	return parts[1] + m.word(strings.ToLower(parts[2]), parts[3])
}

// names replaces those that were given.
func (m *Mask) names(text string) string {
	if m.known == nil {
		return text
	}
	for range 2 { // a separator that two names share is found once at a time
		text = m.known.ReplaceAllStringFunc(text, func(found string) string {
			parts := m.known.FindStringSubmatch(found)
			return parts[1] + m.word(m.kinds[strings.ToLower(parts[2])], parts[2]) + parts[3]
		})
	}
	return text
}

// looksRandom says whether a word has both letters and digits, and changes between them as no name does.
func looksRandom(word string) bool {
	changes, last := 0, 0
	for _, r := range word {
		kind := 1
		switch {
		case unicode.IsDigit(r):
			kind = 2
		case !unicode.IsLetter(r):
			continue
		}
		if last != 0 && kind != last {
			changes++
		}
		last = kind
	}
	upper, lower := strings.ToLower(word) != word, strings.ToUpper(word) != word
	return changes >= 4 || len(word) >= 40 && changes > 0 && upper && lower
}

// address keeps of an address on this machine where it leads, and of others the host.
func (m *Mask) address(found string) string {
	parts := address.FindStringSubmatch(found)
	user, rest := "", parts[4]
	if parts[2] != "" {
		user = hidden + "@"
	}
	u, err := url.Parse("http://" + parts[3])
	local := err == nil && (hostport.IsLoopback(u.Hostname()) || parts[3] == "")
	switch at := strings.IndexAny(rest, "?#"); {
	case !local && rest != "" && rest != "/":
		rest = "/" + hidden
	case at >= 0:
		rest = rest[:at+1] + hidden
	}
	return parts[1] + user + parts[3] + rest
}

// host replaces what looks like the name of a host, and what stands before an @.
func (m *Mask) host(found string) string {
	if at := strings.IndexByte(found, '@'); at >= 0 {
		return m.word("person", found)
	}
	if notHosts.MatchString(found) || strings.HasPrefix(strings.ToLower(found), "github.com") {
		return found
	}
	return m.word("host", strings.TrimSuffix(found, "."))
}

// number replaces addresses that lead out of this machine and its jails.
func (m *Mask) number(found string) string {
	at, err := netip.ParseAddr(strings.TrimRight(found, "."))
	if err != nil || at.IsLoopback() || at.IsPrivate() || at.IsUnspecified() || at.IsLinkLocalUnicast() {
		return found
	}
	return m.word("address", at.String())
}

// word is what stands for a name.
func (m *Mask) word(kind, name string) string {
	key := kind + " " + strings.ToLower(name)
	if m.words[key] == "" {
		m.numbers[kind]++
		m.words[key] = fmt.Sprintf("%s-%d", kind, m.numbers[kind])
	}
	return m.words[key]
}
