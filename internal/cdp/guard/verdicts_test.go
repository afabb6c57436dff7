//go:build unix

package guard

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/testenv"
)

// property is a parameter, or a member of a type, of the protocol's description.
type property struct {
	Name       string     `json:"name"`
	Type       string     `json:"type"`
	Ref        string     `json:"$ref"`
	Optional   bool       `json:"optional"`
	Enum       []string   `json:"enum"`
	Items      *property  `json:"items"`
	Properties []property `json:"properties"`
}

// protocol is the description that a browser serves of its own protocol.
type protocol struct {
	Domains []struct {
		Domain string `json:"domain"`
		Types  []struct {
			ID         string     `json:"id"`
			Type       string     `json:"type"`
			Enum       []string   `json:"enum"`
			Properties []property `json:"properties"`
			Items      *property  `json:"items"`
		} `json:"types"`
		Commands, Events []struct {
			Name       string     `json:"name"`
			Parameters []property `json:"parameters"`
		}
	} `json:"domains"`
}

// described are the descriptions by program, each of which is asked once.
var described = struct {
	mu    sync.Mutex
	known map[string]protocol
}{known: map[string]protocol{}}

// describe is what a browser says of its protocol.
func describe(t testing.TB, program string, flags ...string) protocol {
	t.Helper()
	described.mu.Lock()
	defer described.mu.Unlock()
	p, known := described.known[program]
	if !known {
		p = askProtocol(t, program, flags...)
		described.known[program] = p
	}
	return p
}

// askProtocol asks a browser for the description. It serves it over HTTP only, so this browser has a port.
func askProtocol(t testing.TB, program string, flags ...string) protocol {
	t.Helper()
	b, dir := process(t, program, append(flags, "--remote-debugging-port=0")...)
	defer b.Kill()
	var port string
	testenv.Eventually(t, patience, func() bool {
		data, err := os.ReadFile(dir + "/DevToolsActivePort")
		port, _, _ = strings.Cut(string(data), "\n")
		return err == nil && port != ""
	}, "the browser's port")
	request, err := http.NewRequestWithContext(within(t), http.MethodGet, "http://127.0.0.1:"+port+"/json/protocol", nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var p protocol
	if err := json.NewDecoder(response.Body).Decode(&p); err != nil {
		t.Fatal(err)
	}
	return p
}

func rowsOf(t testing.TB) []row {
	t.Helper()
	rows, err := table(verdicts)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// differences are the names that only one of the table and the protocol has.
func differences(rows []row, p protocol) (missing, extra []string) {
	inTable := map[string]bool{}
	for _, r := range rows {
		inTable[r.kind+" "+r.name] = true
	}
	for _, d := range p.Domains {
		for _, c := range d.Commands {
			if name := "command " + d.Domain + "." + c.Name; inTable[name] {
				delete(inTable, name)
			} else {
				missing = append(missing, name)
			}
		}
		for _, e := range d.Events {
			if name := "event " + d.Domain + "." + e.Name; inTable[name] {
				delete(inTable, name)
			} else {
				missing = append(missing, name)
			}
		}
	}
	for name := range inTable {
		extra = append(extra, name)
	}
	slices.Sort(extra)
	return missing, extra
}

func TestEveryNameOfTheProtocolHasAVerdict(t *testing.T) {
	eachBuild(t, func(t *testing.T, program string, flags ...string) {
		p, rows := describe(t, program, flags...), rowsOf(t)
		missing, extra := differences(rows, p)
		if len(missing) > 0 {
			t.Errorf("decide about these, and say why:\n%s", strings.Join(missing, "\n"))
		}
		if len(extra) > 0 {
			t.Errorf("the browser does not know:\n%s", strings.Join(extra, "\n"))
		}
		if missing, _ := differences(rows[1:], p); len(missing) != 1 {
			t.Errorf("a row that is taken away is missed %d times", len(missing))
		}
		if _, extra := differences(append(rows, row{kind: "command", name: "No.such"}), p); len(extra) != 1 {
			t.Errorf("a row too many is found %d times", len(extra))
		}
		fieldsAreKnown(t, p)
	})
}

// fieldsAreKnown compares the members that the code names with those of the protocol: one that the protocol added to a
// rewritten event would be left out, and to a rewritten command refused, before somebody has decided about it.
func fieldsAreKnown(t *testing.T, p protocol) {
	t.Helper()
	for _, mode := range []Mode{Clean, Operator} {
		book, err := rulesFor(mode)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range p.Domains {
			for _, c := range d.Commands {
				rule := book.commands[d.Domain+"."+c.Name]
				if rule == nil || rule.verdict != rewrite {
					continue
				}
				for _, field := range c.Parameters {
					g, err := New(Options{Mode: mode})
					if err != nil {
						t.Fatal(err)
					}
					_, err = rule.command(g, &cdp.Message{Method: d.Domain + "." + c.Name, SessionID: "S",
						Params: []byte(fmt.Sprintf(`{%q:""}`, field.Name))})
					if err != nil && strings.Contains(err.Error(), "is not known here") {
						t.Errorf("%s.%s: %v", d.Domain, c.Name, err)
					}
				}
			}
		}
	}
	book, err := rulesFor(Operator)
	if err != nil {
		t.Fatal(err)
	}
	left := []string{"headersText", "requestHeadersText", "deviceBoundSessionUsages"}
	for _, d := range p.Domains {
		for _, e := range d.Events {
			rule := book.events[d.Domain+"."+e.Name]
			if rule == nil || rule.verdict != rewrite || d.Domain == "Target" {
				continue
			}
			params := sample(p, d.Domain, e.Parameters, true, 0)
			g, err := New(Options{Mode: Operator})
			if err != nil {
				t.Fatal(err)
			}
			params = strings.ReplaceAll(params, `"source":"Proxy"`, `"source":"Server"`)
			out, pass := rule.event(g, &cdp.Message{Method: d.Domain + "." + e.Name, Params: []byte(params)})
			if !pass {
				t.Errorf("%s.%s does not pass: %s", d.Domain, e.Name, params)
				continue
			}
			for _, name := range lost(t, []byte(params), out) {
				if !slices.Contains(left, name) {
					t.Errorf("%s.%s loses %s", d.Domain, e.Name, name)
				}
			}
		}
	}
}

// lost are the names of members, at any depth of objects, that are in one object and not in the other.
func lost(t *testing.T, before, after []byte) (names []string) {
	t.Helper()
	var a, b map[string]json.RawMessage
	if json.Unmarshal(before, &a) != nil || json.Unmarshal(after, &b) != nil {
		return nil // no object
	}
	for name, value := range a {
		if other, ok := b[name]; !ok {
			names = append(names, name)
		} else {
			names = append(names, lost(t, value, other)...)
		}
	}
	return names
}

// sample writes parameters: the required ones, or all, with values of their types.
func sample(p protocol, domain string, properties []property, all bool, depth int) string {
	var members []string
	for _, f := range properties {
		if f.Optional && !all {
			continue
		}
		members = append(members, fmt.Sprintf("%q:%s", f.Name, value(p, domain, f, all, depth)))
	}
	return "{" + strings.Join(members, ",") + "}"
}

func value(p protocol, domain string, f property, all bool, depth int) string {
	if f.Ref != "" {
		in, name := domain, f.Ref
		if before, after, found := strings.Cut(f.Ref, "."); found {
			in, name = before, after
		}
		for _, d := range p.Domains {
			for _, t := range d.Types {
				if d.Domain == in && t.ID == name {
					if t.Type == "object" && depth < 4 {
						return sample(p, in, t.Properties, all, depth+1)
					}
					return value(p, in, property{Type: t.Type, Enum: t.Enum}, all, depth)
				}
			}
		}
	}
	switch {
	case len(f.Enum) > 0:
		return fmt.Sprintf("%q", f.Enum[0])
	case f.Type == "string" || f.Type == "binary":
		return `"eA=="`
	case f.Type == "integer" || f.Type == "number":
		return "1"
	case f.Type == "boolean":
		return "false"
	case f.Type == "array":
		return "[]"
	}
	return "{}"
}

// everyBrowser is a browser that answers everything, and writes down what it was asked.
type everyBrowser struct {
	mux  *cdp.Mux
	mu   sync.Mutex
	seen []string
}

func newEveryBrowser(t testing.TB) *everyBrowser {
	t.Helper()
	in, theirOut := io.Pipe()
	theirIn, out := io.Pipe()
	conn, err := cdp.New(theirIn, theirOut, cdp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b := &everyBrowser{mux: cdp.NewMux(conn)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.serve(in, out)
	}()
	t.Cleanup(func() {
		b.mux.Close()
		conn.Close()
		in.Close()
		out.Close()
		<-done
	})
	return b
}

func (b *everyBrowser) serve(in io.Reader, out io.Writer) {
	var buffer []byte
	chunk := make([]byte, 64<<10)
	for sessions := 0; ; {
		n, err := in.Read(chunk)
		if err != nil {
			return
		}
		buffer = append(buffer, chunk[:n]...)
		for {
			frame, rest, whole := bytes.Cut(buffer, []byte{0})
			if !whole {
				break
			}
			buffer = rest
			method, result := findText(frame, "method"), "{}"
			switch method {
			case "Target.attachToBrowserTarget":
				sessions++
				result = fmt.Sprintf(`{"sessionId":"X%d"}`, sessions)
				fmt.Fprintf(out, `{"method":"Target.attachedToTarget","params":%s}`+"\x00", result)
			case "Target.detachFromTarget":
				fmt.Fprintf(out, `{"method":"Target.detachedFromTarget","params":%s}`+"\x00", find(frame, "params"))
			default:
				b.mu.Lock()
				b.seen = append(b.seen, string(frame))
				b.mu.Unlock()
			}
			fmt.Fprintf(out, `{"id":%s,"result":%s,"sessionId":%q}`+"\x00", find(frame, "id"), result, findText(frame, "sessionId"))
		}
	}
}

func (b *everyBrowser) commands() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.seen)
}

func TestWhatIsRefusedNeverGetsToTheBrowser(t *testing.T) {
	for _, mode := range []Mode{Clean, Operator} {
		b := newEveryBrowser(t)
		var told []string
		u := guarded(t, b.mux, Options{Mode: mode, Refused: func(method, reason string) { told = append(told, method) }})
		refused := 0
		for _, r := range append(rowsOf(t), row{kind: "command", name: "No.such", clean: deny, operator: deny}) {
			if r.kind != "command" || r.in(mode) != deny {
				continue
			}
			refused++
			m := u.call("", r.name, `{}`)
			want := r.name + " is not allowed in this session: " + r.reason
			if m.Error == nil || m.Error.Code != cdp.CodeServerError || !strings.HasPrefix(m.Error.Message, want) {
				t.Errorf("%s answered %+v", r.name, m.Error)
			}
		}
		if seen := b.commands(); len(seen) > 0 {
			t.Errorf("the browser was sent %v", seen)
		}
		if len(told) != refused || refused < 100 {
			t.Errorf("%d were refused and %d were told", refused, len(told))
		}
		// The same browser without the guard gets all of them.
		join(t, b.mux, nil).call("", "Tethering.bind", `{"port":1}`)
		if len(b.commands()) != 1 {
			t.Error("without the guard nothing arrives either")
		}
	}
}

// ownPage are commands after which a page cannot be used any more.
var ownPage = []string{"Page.close", "Debugger.pause", "Runtime.terminateExecution", "Emulation.setScriptExecutionDisabled",
	"Emulation.setVirtualTimePolicy", "Page.setWebLifecycleState", "Input.setIgnoreInputEvents", "Page.navigate", "Page.reload"}

// values for commands that a sample of their types is no valid call of.
func values() map[string]string {
	return map[string]string{
		"Page.navigate": `{"url":"about:blank"}`, "Target.createTarget": `{"url":"about:blank"}`,
		"Target.setAutoAttach":      `{"autoAttach":false,"waitForDebuggerOnStart":false,"flatten":true}`,
		"Target.setDiscoverTargets": `{"discover":true}`,
		"Fetch.continueRequest":     `{"requestId":"1","url":"http://127.0.0.1/"}`,
	}
}

func TestEveryAllowedCommandReachesTheBrowser(t *testing.T) {
	eachBuild(t, func(t *testing.T, program string, flags ...string) {
		modes := []Mode{Clean, Operator}
		if len(flags) > 0 {
			testenv.Long(t)   // that both builds know the same names is another test
			modes = modes[:1] // the guard is the same for both builds, and a clean session may do more
		}
		p := describe(t, program, flags...)
		mux := openOwn(t, program, flags...)
		for _, mode := range modes {
			useEverything(t, p, guarded(t, mux, Options{Mode: mode, DownloadsPath: "/nowhere"}), mode)
		}
	})
}

func useEverything(t *testing.T, p protocol, u *user, mode Mode) {
	t.Helper()
	book, err := rulesFor(mode)
	if err != nil {
		t.Fatal(err)
	}
	names := map[int]string{}
	defer func() {
		if t.Failed() {
			t.Logf("the last commands were %s, %s", names[u.last-2], names[u.last-1])
		}
	}()
	target, session := u.page("")
	for _, d := range p.Domains {
		for _, c := range d.Commands {
			name := d.Domain + "." + c.Name
			if book.commands[name].verdict == deny {
				continue
			}
			on, params := session, values()[name]
			if params == "" {
				params = sample(p, d.Domain, c.Parameters, false, 0)
			}
			if slices.Contains([]string{"Browser", "Target", "Tracing"}, d.Domain) {
				on = ""
			}
			if strings.Contains(params, `"targetId"`) {
				params = fmt.Sprintf(`{"targetId":%q,"flatten":true}`, target)
				if c.Name != "attachToTarget" {
					params = fmt.Sprintf(`{"targetId":%q}`, target)
				}
			}
			broken := ""
			if slices.Contains(ownPage, name) {
				broken, on = u.page("")
			}
			names[u.post(on, name, params)] = name
			// The guard refuses a command before this one is sent, so the test does not wait for commands that wait.
			u.must("", "Browser.getVersion", `{}`)
			if broken != "" {
				u.call("", "Target.closeTarget", fmt.Sprintf(`{"targetId":%q}`, broken))
			}
			if name == "Target.closeTarget" {
				target, session = u.page("")
			}
		}
		if d.Domain == "Debugger" {
			u.call(session, "Debugger.disable", `{}`) // else it may stop at what was set a moment ago
		}
		// When it answers, the page has seen all of them. One that has no scripts any more is left.
		if m := u.call(session, "Runtime.evaluate", `{"expression":"1"}`); m.Error != nil {
			target, session = u.page("")
		}
	}
	worked, answered, unknown := 0, 0, []string{}
	for _, m := range u.received {
		if m.Method == "" && names[m.ID] != "" {
			answered++
		}
		switch name := names[m.ID]; {
		case m.Method != "" || name == "":
		case m.Error == nil:
			worked++
		case strings.Contains(m.Error.Message, "not allowed in this session"):
			t.Errorf("%s: %s", name, m.Error.Message)
		case m.Error.Code == cdp.CodeMethodUnknown:
			unknown = append(unknown, name)
		}
	}
	t.Logf("%s: %d commands, %d answered, %d succeeded, not in this build: %v", mode, len(names), answered, worked, unknown)
	if answered < len(names)*9/10 {
		t.Errorf("only %d of %d commands were answered", answered, len(names))
	}
}

func TestAnEventThatIsAllowedPassesAndOneThatIsDroppedDoesNot(t *testing.T) {
	p := describe(t, shell(t))
	samples := map[string]string{}
	for _, d := range p.Domains {
		for _, e := range d.Events {
			samples[d.Domain+"."+e.Name] = sample(p, d.Domain, e.Parameters, true, 0)
		}
	}
	for _, mode := range []Mode{Clean, Operator} {
		for _, r := range append(rowsOf(t), row{kind: "event", name: "No.such", clean: dropped, operator: dropped}) {
			if r.kind != "event" || r.in(mode) == rewrite {
				continue
			}
			g, err := New(Options{Mode: mode})
			if err != nil {
				t.Fatal(err)
			}
			m := &cdp.Message{Kind: cdp.Event, Method: r.name, Params: []byte(samples[r.name])}
			before := string(m.Params)
			if pass := g.Event(m); pass != (r.in(mode) == allow) || pass && string(m.Params) != before {
				t.Errorf("%s in a %s session: %v, %s", r.name, mode, pass, m.Params)
			}
		}
	}
}

func TestATableThatIsWrongIsRefused(t *testing.T) {
	const head = "kind\tname\tclean\toperator\treason\n"
	for _, wrong := range []string{
		"command\tA.b\tallow\tallow", "command\tA.b\tallow\tallow\t", "command\tA.b\tdrop\tallow\tbecause",
		"event\tA.b\tdeny\tallow\tbecause", "thing\tA.b\tallow\tallow\tbecause", "command\tA.b\t\tallow\tbecause",
		"command\tA.b\tallow\tallow\tbecause\ncommand\tA.b\tallow\tallow\tbecause",
	} {
		if _, err := table(head + wrong + "\n"); err == nil {
			t.Errorf("%q is accepted", wrong)
		}
	}
	if _, err := New(Options{Mode: "other"}); err == nil {
		t.Error("a mode that does not exist is accepted")
	}
}

// Events that a slow client may miss are of the protocol, and none of them is needed here to understand others.
func TestNoiseIsOfTheProtocol(t *testing.T) {
	known := map[string]bool{}
	for _, r := range rowsOf(t) {
		known[r.kind+" "+r.name] = true
	}
	for _, method := range cdp.Noise() {
		if !known["event "+method] {
			t.Errorf("%s is no event of the protocol", method)
		}
	}
	for _, kept := range []string{"Target.attachedToTarget", "Target.detachedFromTarget", "Page.frameNavigated", "Page.lifecycleEvent",
		"Page.javascriptDialogOpening", "Runtime.executionContextCreated", "Runtime.executionContextDestroyed", "Fetch.requestPaused",
		"Network.requestWillBeSent", "Network.loadingFinished", "Browser.downloadProgress", "Page.screencastFrame"} {
		if cdp.IsNoise(kept) || !known["event "+kept] {
			t.Errorf("%s can be left out", kept)
		}
	}
}
