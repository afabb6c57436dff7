package guard

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/cdp"
)

// verdicts is the table, for people to read and to change: the kind of message, its name, the verdict for clean
// sessions, the verdict for operator sessions, and the reason.
//
//go:embed verdicts.tsv
var verdicts string

// verdict is what is done with a message.
type verdict string

const (
	allow   verdict = "allow"   // passes as it is
	deny    verdict = "deny"    // a command is refused
	rewrite verdict = "rewrite" // it, or the reply to it, passes changed, when it can be
	fake    verdict = "fake"    // a command is answered here
	dropped verdict = "drop"    // the client does not get the event
)

// row is one line of the table.
type row struct {
	kind, name      string
	clean, operator verdict
	reason          string
}

// in is the verdict of one kind of session.
func (r row) in(mode Mode) verdict {
	if mode == Operator {
		return r.operator
	}
	return r.clean
}

// table reads verdicts.tsv.
func table(text string) ([]row, error) {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	rows := make([]row, 0, len(lines))
	seen := make(map[string]bool, len(lines))
	for i, line := range lines {
		if i == 0 {
			continue // the names of the columns
		}
		cells := strings.Split(line, "\t")
		if len(cells) != 5 {
			return nil, fmt.Errorf("verdicts.tsv:%d: %d columns, not 5", i+1, len(cells))
		}
		r := row{cells[0], cells[1], verdict(cells[2]), verdict(cells[3]), cells[4]}
		for _, v := range []verdict{r.clean, r.operator} {
			command := v == allow || v == deny || v == rewrite || v == fake
			event := v == allow || v == dropped || v == rewrite
			if r.kind == "command" && !command || r.kind == "event" && !event {
				return nil, fmt.Errorf("verdicts.tsv:%d: %s %s cannot be %q", i+1, r.kind, r.name, v)
			}
		}
		if r.kind != "command" && r.kind != "event" || r.reason == "" || seen[r.kind+r.name] {
			return nil, fmt.Errorf("verdicts.tsv:%d: no kind, no reason, or a second time", i+1)
		}
		seen[r.kind+r.name] = true
		rows = append(rows, r)
	}
	return rows, nil
}

// commandRule is what is done with one command.
type commandRule struct {
	verdict verdict
	reason  string
	fake    jsontext.Value
	fields  []field // checked before anything else
	// command makes the parameters that are sent; an error is the refusal.
	command func(g *Guard, m *cdp.Message) (jsontext.Value, error)
	// reply changes the result of a command that was sent. Nil: it passes.
	reply func(g *Guard, m *cdp.Message, result jsontext.Value) (jsontext.Value, error)
	// failed is called when the browser has refused the command. It may be nil.
	failed func(g *Guard)
}

// eventRule is what is done with one event.
type eventRule struct {
	verdict verdict
	event   func(g *Guard, m *cdp.Message) (params jsontext.Value, pass bool)
}

// ruleBook is the table with the code for what is rewritten.
type ruleBook struct {
	commands map[string]*commandRule
	events   map[string]*eventRule
}

// rulesFor makes the rules of one kind of session. Every verdict that needs code has some, and no code is without a
// verdict: an error is a mistake in this package.
func rulesFor(mode Mode) (*ruleBook, error) {
	rows, err := table(verdicts)
	if err != nil {
		return nil, err
	}
	commands, events, fakes := rewrittenCommands(mode), rewrittenEvents(mode), fakedReplies()
	checked, err := fieldsOf(fields)
	if err != nil {
		return nil, err
	}
	book := &ruleBook{commands: make(map[string]*commandRule, len(rows)), events: make(map[string]*eventRule, len(rows))}
	for _, r := range rows {
		v := r.in(mode)
		if r.kind == "event" {
			rule := &eventRule{verdict: v}
			if v == rewrite {
				if rule.event = events[r.name]; rule.event == nil {
					return nil, fmt.Errorf("verdicts.tsv: event %s is rewritten, and there is no code for it", r.name)
				}
			}
			book.events[r.name] = rule
			continue
		}
		rule := &commandRule{verdict: v, reason: r.reason, fields: checked[r.name]}
		switch v {
		case rewrite:
			rule.command = commands[r.name].command
			rule.reply, rule.failed = commands[r.name].reply, commands[r.name].failed
			if rule.command == nil {
				return nil, fmt.Errorf("verdicts.tsv: command %s is rewritten, and there is no code for it", r.name)
			}
		case fake:
			if rule.fake = fakes[r.name]; rule.fake == nil {
				return nil, fmt.Errorf("verdicts.tsv: command %s is faked, and there is no reply for it", r.name)
			}
		}
		book.commands[r.name] = rule
	}
	return book, nil
}

// fakedReplies are what commands are answered with that never reach the browser.
func fakedReplies() map[string]jsontext.Value {
	empty := jsontext.Value(`{"cookies":[]}`)
	return map[string]jsontext.Value{
		"Network.getCookies": empty, "Network.getAllCookies": empty, "Storage.getCookies": empty,
		"Browser.close": jsontext.Value(`{}`),
	}
}

// Hints: what to do instead of what was refused.
const (
	hintUnknown = "Leave it out."
	hintDefault = "Do without it; Page, Runtime, DOM, Input and Network drive the page."
)

// hintFor is what to do instead of a command.
func hintFor(method string) string {
	domain, _, _ := strings.Cut(method, ".")
	switch method {
	case "Security.setIgnoreCertificateErrors":
		return "Leave out ignoreHTTPSErrors; a certificate authority that the site needs can be added to the configuration."
	case "Target.createBrowserContext", "Target.disposeBrowserContext":
		return "Use the context that is there: browser.contexts()[0]."
	case "Target.sendMessageToTarget":
		return "Use Target.attachToTarget with flatten, on a page."
	case "Network.loadNetworkResource", "Network.replayXHR":
		return "Open the address in a page, or fetch it from one."
	case "Browser.getBrowserCommandLine", "Browser.crash", "Page.crash":
		return "Use Browser.getVersion to learn what browser it is."
	}
	switch domain {
	case "Network", "Storage", "DOMStorage", "IndexedDB", "CacheStorage":
		return "The page uses its own cookies and storage; nothing has to be read or set for that."
	case "Debugger", "HeapProfiler", "Profiler", "Tracing", "Memory":
		return "Use a clean session to debug or to profile."
	}
	return hintDefault
}
