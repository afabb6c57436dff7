package llm

import (
	"bytes"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/problem"
)

// What a provider does by itself when a request asks for it: it searches the web, fetches addresses, runs code, calls
// servers, or keeps what was said and answers from it. No rule of the agent decides about that, so it is refused unless
// the provider's entry allows it by name. A tool is named after its type without a date, such as web_search; these are
// the others.
const (
	hostedFetch     = "fetch"          // gets what is at an address
	hostedStored    = "stored"         // keeps what is said, or answers from what is kept, of whichever agent
	hostedSearch    = "web_search"     // also of models that search by themselves
	hostedServers   = "mcp"            // calls MCP servers
	hostedCode      = "code_execution" // runs code
	hostedPlugins   = "plugins"
	hostedFastLane  = "priority" // a tier that costs more than the price list says
	deepestDocument = 64
)

// hostedMembers are members of a request that ask for something hosted, in lower case.
func hostedMembers() map[string]string {
	return map[string]string{
		"web_search_options": hostedSearch, "search_parameters": hostedSearch, "web_search": hostedSearch, "mcp_servers": hostedServers,
		"container": hostedCode, "plugins": hostedPlugins, "previous_response_id": hostedStored, "conversation": hostedStored,
	}
}

// storedMembers refer, at any depth, to what the provider keeps for its account.
func storedMembers() []string {
	return []string{"file_id", "file_ids", "container_id", "vector_store_ids", "cached_content"}
}

// textMembers are what a model reads or wrote. Texts in them may name addresses, which nobody fetches for that.
func textMembers() []string {
	return []string{"text", "content", "input", "instructions", "system", "description", "name", "title", "arguments", "output", "prompt", "suffix",
		"refusal", "result", "reasoning", "reasoning_content", "thinking", "user", "stop", "stop_sequences", "data", "encrypted_content", "signature", "template"}
}

// unreadMembers have schemas, arguments and quotations, in which addresses mean nothing to a provider.
func unreadMembers() []string {
	return []string{"parameters", "input_schema", "schema", "json_schema", "format", "arguments", "metadata", "annotations", "citations"}
}

// ownTools are types of tools that the agent runs itself.
func ownTools() []string {
	return []string{"", "function", "custom", "bash", "text_editor", "memory", "local_shell", "apply_patch"}
}

// hosted looks through a request for what its provider would do by itself.
type hosted struct {
	endpoint endpoint
	allowed  []string
	used     bool // something that is allowed is asked for
}

// checkHosted refuses what the provider's entry does not allow by name, and returns the body to send: the responses of
// OpenAI are kept by the provider unless the request says that they are not. unseen says that the provider may read more than
// is in the body.
func checkHosted(a ask, e endpoint, allowed []string) (body []byte, unseen bool, p *problem.Error) {
	w := &hosted{endpoint: e, allowed: allowed}
	if e.answers && searches(a.model) {
		if p := w.need(hostedSearch); p != nil {
			return nil, false, p
		}
	}
	if p := w.value(jsontext.NewDecoder(bytes.NewBuffer(a.body)), "", 0); p != nil {
		return nil, false, p
	}
	if e.path != pathResponses || slices.Contains(allowed, hostedStored) {
		return a.body, w.used, nil
	}
	value, end, said := member(a.body, "store")
	switch {
	case !said:
		start := bytes.IndexByte(a.body, '{') + 1 // the body is an object with a model in it
		return spliced(a.body, start, start, `"store":false,`), w.used, nil
	case value.Kind() == 'n':
		return spliced(a.body, end-len(value), end, "false"), w.used, nil
	}
	return a.body, w.used, nil
}

// searches says whether a model looks for things on the web by itself.
func searches(model string) bool {
	model = strings.ToLower(model)
	for _, mark := range []string{"search", "deep-research", ":online", "sonar"} {
		if strings.Contains(model, mark) {
			return true
		}
	}
	return false
}

func (w *hosted) need(name string) *problem.Error {
	if slices.Contains(w.allowed, name) {
		w.used = w.used || name != hostedFastLane
		return nil
	}
	return problem.New(problem.HostedDenied,
		"Send the data itself, or use a tool that you run yourself. An operator can allow it for a provider: --allow-hosted "+name+".",
		"the provider would do this by itself, past the rules of this agent, and %s is not allowed for it", name)
}

// value reads one value. key is the name, in lower case, of the member that it belongs to; an element of a list belongs
// to the member of the list.
func (w *hosted) value(d *jsontext.Decoder, key string, depth int) *problem.Error {
	if depth > deepestDocument {
		return badBody("it is nested too deeply")
	}
	switch d.PeekKind() {
	case '{':
		return w.members(d, depth)
	case '[':
		if _, err := d.ReadToken(); err != nil {
			return badSyntax(err)
		}
		for d.PeekKind() != ']' {
			if p := w.value(d, key, depth+1); p != nil {
				return p
			}
		}
		return skip(d.ReadToken())
	case '"':
		text, err := d.ReadToken()
		if err != nil {
			return badSyntax(err)
		}
		return w.text(key, text.String())
	}
	return skip(d.ReadToken())
}

func skip(_ jsontext.Token, err error) *problem.Error {
	if err != nil {
		return badSyntax(err)
	}
	return nil
}

func (w *hosted) text(key, text string) *problem.Error {
	switch {
	case key == "type" && text == "item_reference":
		return w.need(hostedStored)
	case !slices.Contains(textMembers(), key) && isAddress(text):
		return w.need(hostedFetch)
	}
	return nil
}

// isAddress says whether a text leads a program that follows it somewhere. Data in an address is none.
func isAddress(text string) bool {
	text = strings.TrimLeftFunc(text, func(r rune) bool { return r <= ' ' || strings.ContainsRune(`"'<(`, r) })
	scheme, rest, found := strings.Cut(text, ":")
	if strings.HasPrefix(text, "//") || !found || scheme == "" || strings.ContainsAny(scheme, " /?#,") {
		return strings.HasPrefix(text, "//")
	}
	rest = strings.TrimLeft(rest, "\t\r\n")
	return !strings.EqualFold(scheme, "data") && (strings.HasPrefix(rest, "/") || strings.HasPrefix(rest, `\`))
}

func (w *hosted) members(d *jsontext.Decoder, depth int) *problem.Error {
	if _, err := d.ReadToken(); err != nil {
		return badSyntax(err)
	}
	for d.PeekKind() != '}' {
		name, err := d.ReadToken()
		if err != nil {
			return badSyntax(err)
		}
		if p := w.member(d, strings.ToLower(name.String()), depth); p != nil {
			return p
		}
	}
	return skip(d.ReadToken())
}

// member reads the value of one member. Names are compared without case: some servers do.
func (w *hosted) member(d *jsontext.Decoder, key string, depth int) *problem.Error {
	kind := d.PeekKind()
	if kind == 'n' {
		return skip(d.ReadToken())
	}
	if depth == 0 {
		if p, done := w.top(d, key, kind); p != nil || done {
			return p
		}
	}
	if slices.Contains(storedMembers(), key) {
		if p := w.need(hostedStored); p != nil {
			return p
		}
	}
	// The input of a call is an object that the model wrote.
	if slices.Contains(unreadMembers(), key) || depth > 0 && key == "input" && kind == '{' {
		if err := d.SkipValue(); err != nil {
			return badSyntax(err)
		}
		return nil
	}
	return w.value(d, key, depth+1)
}

// top looks at a member of the request itself; done says that it has read the value.
func (w *hosted) top(d *jsontext.Decoder, key string, kind jsontext.Kind) (p *problem.Error, done bool) {
	if name := hostedMembers()[key]; name != "" {
		if kind != 'f' {
			p = w.need(name)
		}
		if err := d.SkipValue(); p == nil && err != nil {
			p = badSyntax(err)
		}
		return p, true // what it has in it is for whom it is allowed to ask
	}
	switch {
	case key == "tools":
		list, err := d.ReadValue()
		if err != nil {
			return badSyntax(err), true
		}
		return w.tools(list), true
	case key == "store" && kind != 'f', key == "prompt" && kind == '{':
		return w.need(hostedStored), false
	case key == "service_tier" && kind == '"':
		tier, err := d.ReadToken()
		if err != nil {
			return badSyntax(err), true
		}
		if slices.Contains([]string{"auto", "default", "flex", "standard_only"}, tier.String()) {
			return nil, true
		}
		return w.need(hostedFastLane), true
	case key == "speed": // of Anthropic's wire: a faster answer at several times the price
		value, err := d.ReadValue()
		if err != nil {
			return badSyntax(err), true
		}
		if string(value) == `"standard"` {
			return nil, true
		}
		return w.need(hostedFastLane), true
	}
	return nil, false
}

// tools looks at a list of tools: those that the agent runs itself may be there, others by name.
func (w *hosted) tools(list jsontext.Value) *problem.Error {
	if list.Kind() != '[' {
		return badBody("%q is not a list", "tools")
	}
	d := jsontext.NewDecoder(bytes.NewBuffer(list))
	if _, err := d.ReadToken(); err != nil {
		return badSyntax(err)
	}
	for d.PeekKind() != ']' {
		tool, err := d.ReadValue()
		if err != nil {
			return badSyntax(err)
		}
		name, p := toolName(tool)
		if p != nil {
			return p
		}
		if slices.Contains(ownTools(), name) {
			p = w.value(jsontext.NewDecoder(bytes.NewBuffer(tool)), "", 1)
		} else {
			p = w.need(name)
		}
		if p != nil {
			return p
		}
	}
	return nil
}

// toolName is the type of a tool without the date of its version, such as web_search for web_search_20250305. A type
// that could be read in two ways is refused.
func toolName(tool jsontext.Value) (string, *problem.Error) {
	if tool.Kind() != '{' {
		return "", badBody("a tool is not an object")
	}
	d := jsontext.NewDecoder(bytes.NewBuffer(tool))
	if _, err := d.ReadToken(); err != nil {
		return "", badSyntax(err)
	}
	name, found := "", false
	for d.PeekKind() == '"' {
		key, err := d.ReadToken()
		if err != nil {
			return "", badSyntax(err)
		}
		isType := strings.EqualFold(key.String(), "type")
		value, err := d.ReadValue()
		if err != nil {
			return "", badSyntax(err)
		}
		if !isType || value.Kind() == 'n' {
			continue
		}
		text, err := jsontext.AppendUnquote(nil, value)
		if value.Kind() != '"' || err != nil || found {
			return "", badBody("the type of a tool is not one text")
		}
		name, found = string(text), true
	}
	name = strings.TrimRight(name, "0123456789_")
	return strings.TrimSuffix(name, "_preview"), nil
}
