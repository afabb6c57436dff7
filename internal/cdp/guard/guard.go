// Package guard lets a stock client drive a browser and never gives away what is in its jar.
//
// A [Guard] stands between one client and the browser, as the [cdp.Filter] of that client. Everything is refused unless
// verdicts.tsv says otherwise: one row for each command and event of the protocol, with a verdict for clean sessions, a
// verdict for operator sessions, and the reason.
//
// It promises:
//
//   - In an operator session no message of the protocol gives the client the cookies of the jar or the headers that
//     carry them, in a reply or in an event. This does not cover what JavaScript of the page can read: a client that may
//     evaluate scripts has that. The scrub of literal values catches accidents with those, and no more.
//   - In both kinds of session a client reads and writes no file except by name among the session's own, opens no
//     listener, sets no proxy, attaches to nothing but pages, their frames and workers, and sees no other client's
//     contexts.
//   - A text that a client writes into the line or the header of a request, an answer or a cookie stays the one part of it that
//     it is (fields.tsv). Methods are those of [methods]; a client sends no credentials of its own into an account.
//   - Stock clients go on working: a command that returns the jar answers with an empty one, and an event that carries
//     it is rewritten and not dropped.
//   - Decisions are made on decoded names and values. A command that is rewritten may have no parameter that is not
//     known here.
package guard

import (
	"errors"
	"fmt"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/policy/redact"
)

// Mode is the kind of session that a client drives.
type Mode string

const (
	// Clean sessions hold nothing of an operator's: a client may have contexts and cookies of its own.
	Clean Mode = "clean"
	// Operator sessions hold an operator's cookies.
	Operator Mode = "operator"
)

// Options of a [Guard].
type Options struct {
	Mode Mode
	// Registry knows the contexts of all clients of the browser. Nil: this client is the only one.
	Registry *Registry
	// Hidden says whether a context is one that no client may know of. Nil: there are none. It must not wait.
	Hidden func(context string) bool
	// DownloadsPath is the folder, as the browser sees it, that downloads are put in under names of their own. Empty:
	// downloads are refused.
	DownloadsPath string
	// File finds the path, as the browser sees it, of a file of the session by the last part of the name that a client
	// gave, which has no separators. Nil: there are no files. It is called in the client's goroutine and may look at
	// the disk.
	File func(name string) (path string, ok bool)
	// Scrub has values that are replaced wherever they appear literally. Nil: none.
	Scrub *redact.Values
	// Dialogs is called when the client begins to answer the dialogs of a page, and release when it ends. Dialogs may be nil.
	// Neither may wait.
	Dialogs func(page string) (release func())
	// Refused hears of every refusal. It must not wait. The method is cut to a length that is fit for a log.
	Refused func(method string, reason string)
	// Seen hears of every command that is not refused. It must not wait.
	Seen func(method string)
}

// Guard decides about the messages of one client. It implements [cdp.ActingFilter].
type Guard struct {
	options Options
	rules   *ruleBook
	act     func(sessionID, method string, params jsontext.Value)

	mu         sync.Mutex
	targets    map[string]struct{} // targets that the client was told of
	browsers   map[string]struct{} // sessions of the browser itself, beside the client's first
	attaching  int                 // such sessions that the client waits for
	sessions   map[string]attached // what the client is attached to
	severed    map[string]struct{} // of these, sessions that are being ended
	addresses  map[string]string   // of targets and of frames, what decides about them
	hidden     map[string]struct{} // sessions that the browser attached and the client does not know
	handles    map[handle]struct{} // streams that the client may read
	streams    map[handle]*redact.Stream
	messages   map[conversation]*redact.Messages
	challenges map[handle]struct{} // authentication challenges of servers that the client was told of
	paused     map[handle]paused   // requests that wait for the client
	contexts   map[handle]struct{} // what scripts run in, by both its numbers, of which the client was told
}

// handle is something that the browser gave out on one session.
type handle struct{ session, id string }

// Bounds of what is remembered for one client. A page can make targets, sessions, streams, requests and challenges without end.
const (
	maxTargets    = 16384
	maxBrowsers   = 16
	maxHidden     = 4096
	maxHandles    = 1024
	maxChallenges = 1024
	maxPaused     = 4096
	maxWorlds     = 16384
)

// New makes the guard of one client.
func New(options Options) (*Guard, error) {
	if options.Mode != Clean && options.Mode != Operator {
		return nil, fmt.Errorf("guard: %q is no mode", options.Mode)
	}
	if options.Registry == nil {
		options.Registry = NewRegistry()
	}
	rules, err := options.Registry.rules(options.Mode)
	if err != nil {
		return nil, err
	}
	return &Guard{
		options: options, rules: rules,
		act:        func(string, string, jsontext.Value) {},
		targets:    make(map[string]struct{}),
		browsers:   make(map[string]struct{}),
		sessions:   make(map[string]attached),
		severed:    make(map[string]struct{}),
		addresses:  make(map[string]string),
		hidden:     make(map[string]struct{}),
		handles:    make(map[handle]struct{}),
		streams:    make(map[handle]*redact.Stream),
		messages:   make(map[conversation]*redact.Messages),
		challenges: make(map[handle]struct{}),
		paused:     make(map[handle]paused),
		contexts:   make(map[handle]struct{}),
	}, nil
}

var _ cdp.ActingFilter = (*Guard)(nil)

// Started implements [cdp.ActingFilter].
func (g *Guard) Started(act func(sessionID, method string, params jsontext.Value)) { g.act = act }

// Ended implements [cdp.ActingFilter]: the browser has disposed of the client's contexts.
func (g *Guard) Ended() {
	g.options.Registry.forget(g)
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range g.sessions {
		s.disown()
	}
}

// Command implements [cdp.Filter].
func (g *Guard) Command(command *cdp.Message) *cdp.Message {
	if no := g.judge(command); no != nil {
		return no
	}
	rule, known := g.rules.commands[command.Method]
	if !known {
		return g.refuse(command.Method, "it is not in the table of what may be done with a browser")
	}
	if rule.verdict == allow || rule.verdict == rewrite {
		if err := rule.inLines(g.options.Mode, command.Params); err != nil {
			return g.answer(command.Method, err)
		}
		if err := g.inContexts(command); err != nil {
			return g.answer(command.Method, err)
		}
	}
	var reply *cdp.Message
	switch rule.verdict {
	case allow:
	case rewrite:
		params, err := rule.command(g, command)
		if err != nil {
			return g.answer(command.Method, err)
		}
		command.Params = params
	case fake:
		reply = cdp.ResultReply(rule.fake)
	default:
		return g.refuse(command.Method, rule.reason)
	}
	if g.options.Seen != nil {
		g.options.Seen(command.Method)
	}
	return reply
}

// Reply implements [cdp.Filter].
func (g *Guard) Reply(command, reply *cdp.Message) {
	rule := g.rules.commands[command.Method]
	if rule != nil && rule.failed != nil && reply.Error != nil {
		rule.failed(g)
	}
	if rule != nil && rule.reply != nil && reply.Error == nil {
		result, err := rule.reply(g, command, reply.Result)
		if err != nil {
			*reply = *g.answer(command.Method, err)
			return
		}
		reply.Result = result
	}
	scrub := g.options.Scrub
	if reply.Error == nil {
		result, err := g.bodies(command, reply.Result)
		if err != nil {
			*reply = *g.answer(command.Method, err)
			return
		}
		reply.Result = scrub.JSON(result)
		return
	}
	reply.Error.Message = scrub.Text(reply.Error.Message)
	reply.Error.Data = scrub.JSON(reply.Error.Data)
}

// Event implements [cdp.Filter].
func (g *Guard) Event(event *cdp.Message) bool {
	if !g.watch(event) {
		return false
	}
	rule := g.rules.events[event.Method]
	if rule == nil {
		return false
	}
	switch rule.verdict {
	case allow:
	case rewrite:
		params, pass := rule.event(g, event)
		if !pass {
			return false
		}
		event.Params = params
	default:
		return false
	}
	if g.isHidden(event.SessionID) {
		return false
	}
	params, err := g.pieces(event)
	if err != nil {
		return false
	}
	event.Params = g.options.Scrub.JSON(params)
	return true
}

// refusal is why a command is not allowed, with what to do instead.
type refusal struct{ reason, hint string }

func (r *refusal) Error() string { return r.reason }

// notFound is an error in the browser's own words, about something that exists and is not the client's.
type notFound struct{ message string }

func (n *notFound) Error() string { return n.message }

// answer makes the reply to a command that a rewriter did not like.
func (g *Guard) answer(method string, err error) *cdp.Message {
	var unknown *notFound
	if errors.As(err, &unknown) {
		return cdp.ErrorReply(cdp.CodeServerError, "%s", unknown.message)
	}
	var no *refusal
	if errors.As(err, &no) && no.hint != "" {
		g.tell(method, no.reason)
		return refused(method, no.reason, no.hint)
	}
	return g.refuse(method, err.Error())
}

func (g *Guard) refuse(method, reason string) *cdp.Message {
	g.tell(method, reason)
	return refused(method, reason, hintFor(method))
}

func refused(method, reason, hint string) *cdp.Message {
	return cdp.ErrorReply(cdp.CodeServerError, "%.100s is not allowed in this session: %s. %s", method, reason, hint)
}

func (g *Guard) tell(method, reason string) {
	if g.options.Refused != nil {
		g.options.Refused(fmt.Sprintf("%.100s", method), reason)
	}
}

func (g *Guard) isHidden(session string) bool {
	if session == "" {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	_, hidden := g.hidden[session]
	_, severed := g.severed[session]
	return hidden || severed
}

// remember adds to a set that is bounded: when it is full, something else is forgotten.
func remember[K comparable, V any](set map[K]V, key K, what V, bound int) {
	if _, known := set[key]; !known && len(set) >= bound {
		for other := range set {
			delete(set, other)
			break
		}
	}
	set[key] = what
}
