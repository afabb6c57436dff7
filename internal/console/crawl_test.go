package console

import (
	"html"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// linked are the addresses that a page leads to.
var linked = regexp.MustCompile(`href="(/console/[^"#]*)`)

// away are addresses of what the fakes do not have: files, pictures, sessions of which only the log knows.
var away = regexp.MustCompile(`/static/|/recording|/shots/|/files|/sessions/s_1$|/audit/export`)

func TestNoPageLeadsToWhatItsReaderMayNotSee(t *testing.T) {
	w := newFixture(t)
	furnish(w)
	for who, minimum := range map[string]int{"admin": 60, "acme admin": 40, "acme operator": 40, "acme viewer": 25} {
		seen := map[string]bool{Prefix + "/": true}
		for next := []string{Prefix + "/"}; len(next) > 0; next = next[1:] {
			p := w.get(who, next[0])
			if p.status != http.StatusOK {
				t.Errorf("%s: %s is answered %d", who, next[0], p.status)
			}
			if strings.Contains(p.body, "<img src=x") {
				t.Errorf("%s: %s has what others wrote as markup", who, next[0])
			}
			if !strings.HasPrefix(p.header.Get("Content-Type"), "text/html") {
				continue
			}
			for _, match := range linked.FindAllStringSubmatch(p.body, -1) {
				to := html.UnescapeString(match[1])
				if !seen[to] && len(seen) < 600 && !away.MatchString(to) {
					seen[to] = true
					next = append(next, to)
				}
			}
		}
		if len(seen) < minimum {
			t.Errorf("%s: only %d pages", who, len(seen))
		}
	}
}
