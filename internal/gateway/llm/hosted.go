package llm

import (
	"bytes"
	"slices"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/egress"
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

// switchWords are words in the names of members by which one provider or another is told to do something by itself, such
// as enable_search and extra_body.google_search, without what divides words.
var switchWords = []struct{ word, name string }{
	{"urlcontext", hostedFetch}, {"fetch", hostedFetch}, {"search", hostedSearch}, {"grounding", hostedSearch}, {"brows", hostedSearch},
	{"crawl", hostedSearch}, {"mcp", hostedServers}, {"connector", hostedServers}, {"codeinterpreter", hostedCode}, {"codeexecution", hostedCode},
	{"plugin", hostedPlugins},
}

// switches says what the name of a member asks for, if it does.
func switches(key string) string {
	if name := hostedMembers()[key]; name != "" {
		return name
	}
	key = strings.ReplaceAll(joinWords(key), "beamsearch", "") // a way to choose words
	for _, w := range switchWords {
		if strings.Contains(key, w.word) {
			return w.name
		}
	}
	return ""
}

func joinWords(key string) string { return strings.NewReplacer("_", "", "-", "", ".", "").Replace(key) }

// isPlace says whether a member is named as one that has an address in it, however that is written: image_url, fileUri.
func isPlace(key string) bool {
	for _, end := range []string{"url", "uri", "href", "urls", "uris"} {
		if strings.HasSuffix(key, end) {
			return true
		}
	}
	return false
}

// storedMembers refer, at any depth, to what the provider keeps for its account.
func storedMembers() []string {
	return []string{"file_id", "file_ids", "container_id", "vector_store_ids", "cached_content", "cachedcontent", "conversation_id", "thread_id",
		"assistant_id", "previous_interaction_id"}
}

// textMembers are what a model reads or wrote. Texts in them may name addresses, which nobody fetches for that.
func textMembers() []string {
	return []string{"text", "content", "input", "instructions", "system", "description", "name", "title", "arguments", "output", "prompt", "suffix",
		"refusal", "result", "reasoning", "reasoning_content", "thinking", "user", "stop", "stop_sequences", "encrypted_content", "signature", "template"}
}

// unreadMembers have schemas, arguments and quotations, in which addresses mean nothing to a provider.
func unreadMembers() []string {
	return []string{"parameters", "input_schema", "schema", "json_schema", "format", "arguments", "metadata", "annotations", "citations"}
}

// ownTools are types of tools that the agent runs itself.
func ownTools() []string {
	return []string{"function", "custom", "bash", "text_editor", "memory", "local_shell", "apply_patch"}
}

// untypedTool are the members of a tool without a type that the agent runs itself: Anthropic's have none.
func untypedTool() []string {
	return []string{"type", "name", "description", "input_schema", "cache_control", "strict", "defer_loading", "allowed_callers", "input_examples",
		"eager_input_streaming", "function", "parameters"}
}

// referable are the members with which an item of a response says by itself what it is.
func referable() []string {
	return []string{"content", "encrypted_content", "arguments", "output", "input", "result", "action", "code", "queries", "call_id", "tools", "name"}
}

// wants is what a request asks for that costs otherwise than its bytes say.
type wants struct {
	unseen                  bool // the provider may read more than the body
	tools                   bool // it may use tools of its own
	before                  bool // it goes before others
	cache, cacheHour        bool // what is read is kept, for minutes or for an hour
	audioInput, audioOutput bool
}

// hosted looks through a request for what its provider would do by itself.
type hosted struct {
	endpoint endpoint
	allowed  []string
	wants    wants
}

// checkHosted refuses what the provider's entry does not allow by name.
func checkHosted(a ask, e endpoint, allowed []string) (wants, *problem.Error) {
	w := &hosted{endpoint: e, allowed: allowed}
	if e.answers && searches(a.model) {
		if p := w.need(hostedSearch); p != nil {
			return wants{}, p
		}
	}
	if p := w.value(jsontext.NewDecoder(bytes.NewBuffer(a.body)), &object{}, "", 0); p != nil {
		return wants{}, p
	}
	return w.wants, nil
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
		switch name {
		case hostedFastLane:
			w.wants.before = true
		case hostedFetch, hostedStored:
			w.wants.unseen = true
		default:
			w.wants.unseen, w.wants.tools = true, true
		}
		return nil
	}
	hint := "Send the data itself, or use a tool that you run yourself."
	if name == hostedStored {
		hint = "Send the items of the conversation themselves: this gateway has no answer of that id for this agent, or has forgotten it."
	}
	return problem.New(problem.HostedDenied, hint+" An operator can allow it for a provider: --allow-hosted "+name+".",
		"the provider would do this by itself, past the rules of this agent, and %s is not allowed for it", name)
}

// object is what was seen of an object, in which members come in any order.
type object struct {
	parent  string // the member that it belongs to, in lower case
	kind    string // its type
	role    bool
	id      bool
	address bool // in the member that may only quote one
	filled  []string
}

// quotes says whether an address in the object only says where something came from: a source of what was searched or
// fetched. The name is of what has to be allowed for that.
func (o *object) quotes(wire egress.Wire) (name string, ok bool) {
	if o.parent != "content" && o.parent != "action" {
		return "", false
	}
	switch o.kind {
	case "search_result":
		return "", wire == egress.WireAnthropic
	case "web_search_result", "open_page", "find_in_page", "find":
		return hostedSearch, true
	case "web_fetch_result":
		return "web_fetch", true
	}
	return "", false
}

// refers says whether the object stands for what the provider keeps: it has an id, and says nothing by itself.
func (o *object) refers(path string) bool {
	switch {
	case !o.id:
		return false
	case o.parent == "audio":
		return true
	case path != pathResponses || o.parent != "input":
		return false
	case o.kind == "" && !o.role, o.kind == "image_generation_call":
		return true
	case o.kind == "reasoning":
		return !slices.Contains(o.filled, "encrypted_content") && !slices.Contains(o.filled, "content")
	}
	return len(o.filled) == 0
}

// value reads one value. key is the name, in lower case, of the member of o that it belongs to; an element of a list
// belongs to the member of the list.
func (w *hosted) value(d *jsontext.Decoder, o *object, key string, depth int) *problem.Error {
	if depth > deepestDocument {
		return badBody("it is nested too deeply")
	}
	switch d.PeekKind() {
	case '{':
		return w.members(d, key, depth)
	case '[':
		if _, err := d.ReadToken(); err != nil {
			return badSyntax(err)
		}
		for d.PeekKind() != ']' {
			if p := w.value(d, o, key, depth+1); p != nil {
				return p
			}
		}
		return skip(d.ReadToken())
	case '"':
		text, err := d.ReadToken()
		if err != nil {
			return badSyntax(err)
		}
		return w.text(o, key, text.String())
	}
	return skip(d.ReadToken())
}

func skip(_ jsontext.Token, err error) *problem.Error {
	if err != nil {
		return badSyntax(err)
	}
	return nil
}

func (w *hosted) text(o *object, key, text string) *problem.Error {
	switch {
	case key == "type":
		o.kind = text
		if text == "item_reference" {
			return w.need(hostedStored)
		}
		return nil
	case w.endpoint.wire == egress.WireAnthropic && key == "data":
		return nil // also of documents of plain text
	case slices.Contains(textMembers(), key), !isAddress(text) && (!isPlace(key) || text == "" || isData(text)):
		return nil
	case key == "url", key == "source":
		o.address = true
		return nil
	}
	return w.need(hostedFetch)
}

// isData says whether an address has in it what it stands for.
func isData(text string) bool {
	text = strings.TrimLeftFunc(text, unicode.IsSpace)
	return len(text) >= 5 && strings.EqualFold(text[:5], "data:")
}

// isAddress says whether a text leads a program that follows it somewhere. Data in an address is none. Behind the schemes of
// the web a program needs no slash.
func isAddress(text string) bool {
	text = strings.TrimLeftFunc(text, func(r rune) bool { return r <= ' ' || strings.ContainsRune(`"'<(`, r) })
	scheme, rest, found := strings.Cut(text, ":")
	if strings.HasPrefix(text, "//") || !found || scheme == "" || strings.ContainsAny(scheme, " /?#,") {
		return strings.HasPrefix(text, "//")
	}
	scheme = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return -1 // programs leave it out
		}
		return unicode.ToLower(r)
	}, scheme)
	if slices.Contains([]string{"http", "https", "ws", "wss", "ftp", "file"}, scheme) {
		return rest != "" && !strings.HasPrefix(rest, " ")
	}
	rest = strings.TrimLeft(rest, "\t\r\n")
	return scheme != "data" && (strings.HasPrefix(rest, "/") || strings.HasPrefix(rest, `\`))
}

// members reads an object, which belongs to the member parent of another one.
func (w *hosted) members(d *jsontext.Decoder, parent string, depth int) *problem.Error {
	o := &object{parent: parent}
	if _, err := d.ReadToken(); err != nil {
		return badSyntax(err)
	}
	for d.PeekKind() != '}' {
		name, err := d.ReadToken()
		if err != nil {
			return badSyntax(err)
		}
		if p := w.member(d, o, strings.ToLower(name.String()), depth); p != nil {
			return p
		}
	}
	if o.address {
		name, quoted := o.quotes(w.endpoint.wire)
		if !quoted {
			name = hostedFetch
		}
		if name != "" {
			if p := w.need(name); p != nil {
				return p
			}
		}
	}
	if o.refers(w.endpoint.path) {
		if p := w.need(hostedStored); p != nil {
			return p
		}
	}
	return skip(d.ReadToken())
}

// member reads the value of one member. Names are compared without case: some servers do.
func (w *hosted) member(d *jsontext.Decoder, o *object, key string, depth int) *problem.Error {
	kind := d.PeekKind()
	if kind == 'n' {
		return skip(d.ReadToken())
	}
	o.role = o.role || key == "role"
	o.id = o.id || key == "id"
	if p, done := w.asks(d, key, kind, depth); p != nil || done {
		return p
	}
	w.notePrice(o, key, kind)
	if slices.Contains(storedMembers(), key) {
		if p := w.need(hostedStored); p != nil {
			return p
		}
	}
	if o.parent == "input" && slices.Contains(referable(), key) {
		value, err := d.ReadValue()
		if err != nil {
			return badSyntax(err)
		}
		if !isEmpty(value) {
			o.filled = append(o.filled, key)
		}
		d = jsontext.NewDecoder(bytes.NewBuffer(value.Clone()))
	}
	// The input of a call is an object that the model wrote. Parameters of the request itself are none of a function.
	if depth > 0 && (slices.Contains(unreadMembers(), key) || key == "input" && kind == '{') || depth == 0 && (key == "metadata" || key == "format") {
		if err := d.SkipValue(); err != nil {
			return badSyntax(err)
		}
		return nil
	}
	return w.value(d, o, key, depth+1)
}

// notePrice notes what a member asks for that has a price of its own.
func (w *hosted) notePrice(o *object, key string, kind jsontext.Kind) {
	switch key {
	case "cache_control":
		w.wants.cache = true
	case "ttl":
		w.wants.cacheHour = w.wants.cacheHour || o.parent == "cache_control"
	case "input_audio":
		w.wants.audioInput = true
	case "audio":
		w.wants.audioOutput = w.wants.audioOutput || kind == '{' && w.endpoint.wire == egress.WireOpenAI
	}
}

// isEmpty says whether a value has nothing in it.
func isEmpty(value jsontext.Value) bool {
	inside := bytes.Trim(value, "\"[]{} \t\r\n")
	return len(inside) == 0
}

// asks looks at a member that may ask for something by its name, at any depth: there are bodies within bodies. done says that
// it has read the value.
func (w *hosted) asks(d *jsontext.Decoder, key string, kind jsontext.Kind, depth int) (p *problem.Error, done bool) {
	if name := switches(key); name != "" && kind != 'f' {
		if err := d.SkipValue(); err != nil {
			return badSyntax(err), true
		}
		return w.need(name), true // what it has in it is for whom it is allowed to ask
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
	}
	usual := usualTiers()[key]
	if usual == nil || depth > 0 && kind != '"' {
		return nil, false
	}
	value, err := d.ReadValue()
	if err != nil {
		return badSyntax(err), true
	}
	text, err := jsontext.AppendUnquote(nil, value)
	if err == nil && slices.Contains(usual, string(text)) {
		return nil, true
	}
	return w.need(hostedFastLane), true
}

// usualTiers are members that choose how an answer is made, and their values at the price of the list.
func usualTiers() map[string][]string {
	return map[string][]string{
		"service_tier":  {"auto", "default", "flex", "standard_only"},
		"speed":         {"standard"}, // of Anthropic's wire: a faster answer at several times the price
		"inference_geo": {"global", "not_available"},
	}
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
		name, own, p := toolName(tool)
		if p != nil {
			return p
		}
		if own {
			p = w.value(jsontext.NewDecoder(bytes.NewBuffer(tool)), &object{}, "", 1)
		} else {
			p = w.need(name)
		}
		if p != nil {
			return p
		}
	}
	return nil
}

// toolName is the type of a tool without the date of its version, such as web_search for web_search_20250305, and says
// whether the agent runs it itself. A type that could be read in two ways is refused. Without one, a tool is the agent's when
// it has nothing but what such a tool has; some providers name theirs by another member, such as google_search.
func toolName(tool jsontext.Value) (name string, own bool, p *problem.Error) {
	if tool.Kind() != '{' {
		return "", false, badBody("a tool is not an object")
	}
	d := jsontext.NewDecoder(bytes.NewBuffer(tool))
	if _, err := d.ReadToken(); err != nil {
		return "", false, badSyntax(err)
	}
	found, other := false, ""
	for d.PeekKind() == '"' {
		token, err := d.ReadToken()
		if err != nil {
			return "", false, badSyntax(err)
		}
		key := strings.ToLower(token.String())
		value, err := d.ReadValue()
		if err != nil {
			return "", false, badSyntax(err)
		}
		if value.Kind() == 'n' {
			continue
		}
		if !slices.Contains(untypedTool(), key) {
			other = key
		}
		if key != "type" {
			continue
		}
		text, err := jsontext.AppendUnquote(nil, value)
		if value.Kind() != '"' || err != nil || found {
			return "", false, badBody("the type of a tool is not one text")
		}
		name, found = string(text), true
	}
	if name == "" {
		return other, other == "", nil
	}
	name = strings.TrimRight(name, "0123456789_")
	name = strings.TrimSuffix(name, "_preview")
	return name, slices.Contains(ownTools(), name), nil
}
