//go:build unix

package guard

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// listed is the file of everything that the full build has beside the web, a word and an address a line. The first three
// words are the parts of the browser's own list: page, internal (for its makers), command (which does something and shows
// nothing). An address that is not on that list has the word own.
const listed = "testdata/surfaces.txt"

// walked are the pages of the list that the test opens. Not all of them can be opened by themselves without harm to the browser.
func walked() []string {
	return []string{"chrome://version", "chrome://policy", "chrome://settings", "chrome://history", "chrome://print", "chrome://extensions",
		"chrome://read-later.top-chrome", "chrome://bookmarks-side-panel.top-chrome", "chrome-untrusted://print",
		"chrome-untrusted://read-anything-side-panel.top-chrome", "chrome://local-state", "chrome://net-export"}
}

// surfaces are the lines of the file, or of the browser's own list.
func surfaces(text string) (out [][2]string) {
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		kind, address, _ := strings.Cut(line, " ")
		out = append(out, [2]string{kind, address})
	}
	return out
}

// ownList is what the browser says it has. The shell has no such page.
func ownList(u *user, session string) (lines []string) {
	u.t.Helper()
	if text := findText([]byte(u.must(session, "Page.navigate", `{"url":"chrome://chrome-urls/"}`)), "errorText"); text != "" {
		return nil
	}
	const texts = `(function f(n) { let s = ''
for (const c of n.childNodes) s += c.nodeType === 3 ? c.data + ' ' : f(c) + (c.shadowRoot ? f(c.shadowRoot) : '')
return s })(document)`
	var shown string
	for end := time.Now().Add(patience); !strings.Contains(shown, "chrome://quit"); {
		if time.Now().After(end) {
			u.t.Fatalf("the browser's own list stays empty: %.2000s", shown)
		}
		shown = u.evaluate(session, "new Promise(done => setTimeout(() => done("+texts+"), 100))")
	}
	pages, rest, ok1 := strings.Cut(shown, "Internal Debugging Page URLs")
	internal, commands, ok2 := strings.Cut(rest, "Command URLs for Debug")
	if !ok1 || !ok2 {
		u.t.Fatal("the browser's own list has other parts than it had")
	}
	address := regexp.MustCompile(`chrome(-untrusted)?://[^\s]+`)
	for _, part := range []struct{ kind, text string }{{"page", pages}, {"internal", internal}, {"command", commands}} {
		for _, found := range address.FindAllString(part.text, -1) {
			lines = append(lines, part.kind+" "+found)
		}
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}

// sees says what a client gets of a target: a line in a list, and a session in which a script ran. A session that ends before
// anything can be done in it is nothing.
func sees(u *user, target string) (what []string) {
	if strings.Contains(string(u.must("", "Target.getTargets", `{}`)), `"`+target+`"`) {
		what = append(what, "a target")
	}
	attached := u.call("", "Target.attachToTarget", fmt.Sprintf(`{"targetId":%q,"flatten":true}`, target))
	if attached.Error != nil {
		return what
	}
	session := findText([]byte(attached.Result), "sessionId")
	if m := u.call(session, "Runtime.evaluate", `{"expression":"location.href","returnByValue":true}`); m.Error == nil {
		what = append(what, "a script in "+findText(find([]byte(m.Result), "result"), "value"))
	}
	u.call("", "Target.detachFromTarget", fmt.Sprintf(`{"sessionId":%q}`, session))
	return what
}

// settles waits until the browser says the same of a target twice: what it says follows where the target is.
func (u *user) settles(target string) {
	u.t.Helper()
	for last, same := "", 0; same < 3; {
		info := findText(find([]byte(u.must("", "Target.getTargetInfo", fmt.Sprintf(`{"targetId":%q}`, target))), "targetInfo"), "url")
		if same++; info != last || info == "" {
			last, same = info, 0
		}
		time.Sleep(10 * time.Millisecond) // between two looks
	}
}

func TestNoClientSeesAnyOfTheBrowsersOwnSurfaces(t *testing.T) {
	text, err := os.ReadFile(listed)
	if err != nil {
		t.Fatal(err)
	}
	known := strings.Split(strings.TrimSpace(string(text)), "\n")
	eachBuild(t, func(t *testing.T, program string, flags ...string) {
		mux := openOwn(t, program, flags...)
		raw := join(t, mux, nil)
		target, session := raw.page("")
		list := ownList(raw, session)
		if len(flags) == 0 && list != nil {
			t.Errorf("the shell had no list of pages of its own, and has one: look at what else is new in it: %q", list)
		}
		if os.Getenv("CLAWJAIL_UPDATE") != "" && list != nil {
			known = slices.Concat(slices.DeleteFunc(known, func(line string) bool { return !strings.HasPrefix(line, "own ") }), list)
			if err := os.WriteFile(listed, []byte(strings.Join(known, "\n")+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		for _, line := range list {
			if !slices.Contains(known, line) {
				t.Errorf("the browser has a new surface, %q: look at what it can do, and add it to %s (CLAWJAIL_UPDATE=1 does)", line, listed)
			}
		}
		u := guarded(t, mux, Options{Mode: Operator})
		opened := 0
		for _, s := range surfaces(strings.Join(known, "\n")) {
			if s[0] != "own" && !privileged(s[1]) {
				t.Errorf("%s is a page of the web", s[1])
			}
			if s[0] != "own" && (list == nil || !slices.Contains(walked(), s[1])) {
				continue
			}
			params, err := json.Marshal(map[string]string{"url": s[1]})
			if err != nil {
				t.Fatal(err)
			}
			m := raw.call(session, "Page.navigate", string(params))
			if m.Error != nil || findText([]byte(m.Result), "errorText") != "" {
				continue // not in this build, or not without something that it shows
			}
			opened++
			raw.settles(target)
			if what := sees(u, target); len(what) > 0 {
				t.Errorf("of %s a client has %q", s[1], what)
			}
		}
		if opened < 3 || list != nil && opened < len(walked()) {
			t.Errorf("only %d surfaces opened: the rest shows nothing", opened)
		}
		// The same target, once it is a page of the web.
		raw.must(session, "Page.navigate", `{"url":"data:text/html,hello"}`)
		raw.settles(target)
		if what := strings.Join(sees(u, target), ", "); what != "a target, a script in data:text/html,hello" {
			t.Errorf("of a page a client has %q: this test shows nothing", what)
		}
	})
}
