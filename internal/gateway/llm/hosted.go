package llm

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/problem"
)

// The names of things that a provider does by itself when a request asks for them: it searches the web, fetches addresses, runs code, calls
// servers, or keeps what was said and answers from it. No rule of the agent decides about that, so it is refused unless
// the provider's entry allows it by name. A request asks by members that the endpoint has, which fields.txt lists, and by tools,
// which are named after their type without a date, such as web_search. A member that is not in the list is refused by its own name.
const (
	hostedFetch     = "fetch"          // gets what is at an address
	hostedStored    = "stored"         // keeps what is said, or answers from what is kept, of whichever agent
	hostedSearch    = "web_search"     // also of models that search by themselves
	hostedWebFetch  = "web_fetch"      // a tool that fetches
	hostedCode      = "code_execution" // runs code
	hostedFastLane  = "priority"       // a tier that costs more than the price list says
	hostedByName    = "server_tool_use"
	deepestDocument = 64
)

// referable are the members with which an item of a response says by itself what it is.
func referable() []string {
	return []string{"content", "encrypted_content", "arguments", "output", "input", "result", "action", "code", "queries", "call_id", "tools", "name"}
}

// wants is what a request asks for that costs otherwise than its bytes say.
type wants struct {
	unseen                  bool // the provider may read more than the body
	tools                   bool // it may use tools of its own
	priority                bool // the priority tier
	cache, cacheHour        bool // what is read is kept, for minutes or for an hour
	audioInput, audioOutput bool
}

// hosted looks through a request for what its provider would do by itself.
type hosted struct {
	known    fields
	endpoint endpoint
	allowed  []string
	wants    wants
}

// checkHosted refuses what the provider's entry does not allow by name.
func checkHosted(known fields, a ask, e endpoint, allowed []string) (wants, *problem.Error) {
	w := &hosted{known: known, endpoint: e, allowed: allowed}
	if e.answers && searches(a.model) {
		if p := w.need(hostedSearch); p != nil {
			return wants{}, p
		}
	}
	if p := w.value(jsontext.NewDecoder(bytes.NewBuffer(a.body)), nil, "", e.fields, 0); p != nil {
		return wants{}, p
	}
	return w.wants, nil
}

// searches says whether a model looks for things on the web by itself.
func searches(model string) bool {
	model = strings.ToLower(model)
	words := strings.FieldsFunc(model, func(r rune) bool { return !unicode.IsLetter(r) })
	return slices.Contains(words, "search") || slices.Contains(words, "sonar") || strings.HasSuffix(model, ":online") ||
		strings.Contains(model, "deep-research")
}

func (w *hosted) allows(name string) bool {
	if !slices.Contains(w.allowed, name) {
		return false
	}
	switch name {
	case hostedFastLane:
		w.wants.priority = true
	case hostedFetch, hostedStored:
		w.wants.unseen = true
	default:
		w.wants.unseen, w.wants.tools = true, true
	}
	return true
}

func (w *hosted) need(name string) *problem.Error {
	if w.allows(name) {
		return nil
	}
	hint := "Send the data itself, or use a tool that you run yourself."
	if name == hostedStored {
		hint = "Send the items of the conversation themselves: this gateway has no answer of that id for this agent, or has forgotten it."
	}
	return problem.New(problem.HostedDenied, hint+" An operator can allow it for a provider: --allow-hosted "+name+".",
		"the provider would do this by itself, bypassing the rules of this agent, and %s is not allowed for it", name)
}

// needUnknown refuses a member, or a type, that is in no table.
func (w *hosted) needUnknown(what, name string) *problem.Error {
	name = cmp.Or(hostedName(name), "_")
	if w.allows(name) {
		return nil
	}
	return problem.New(problem.HostedDenied, "Leave it out. An operator can allow it for a provider: --allow-hosted "+name+".",
		"the gateway does not know what the provider does with the %s %s of %s, and it is not allowed for it", what, name, w.endpoint.path)
}

// object is what was seen of an object, in which members come in any order.
type object struct {
	is      string // which of the objects that are known
	parent  string // the member that it belongs to, in lower case
	kind    string // its type
	name    string
	role    bool
	id      bool
	address bool // in the member that may only quote one
	holds   bool // a container of the provider's
	filled  []string
}

// quotes says whether an address in the object only says where something came from: a source of what was searched or
// fetched. The name is of what has to be allowed for that.
func (o *object) quotes(wire egress.Wire) (name string, ok bool) {
	switch o.kind {
	case "search_result":
		return "", wire == egress.WireAnthropic
	case "web_search_result":
		return hostedSearch, true
	case "web_fetch_result":
		return hostedWebFetch, true
	}
	return "", false
}

// refers says whether the object stands for what the provider keeps: it has an id, and says nothing by itself.
func (o *object) refers(path string) bool {
	switch {
	case !o.id || path != pathResponses || o.is != "item" || o.parent != "input":
		return false
	case o.kind == "" && !o.role, o.kind == "image_generation_call":
		return true
	case o.kind == "reasoning":
		return !slices.Contains(o.filled, "encrypted_content") && !slices.Contains(o.filled, "content")
	}
	return len(o.filled) == 0 && o.kind != "compaction_trigger" && o.kind != "configuration_update"
}

// value reads one value. key is the name, in lower case, of the member of o that it belongs to, and is what that is; an element of a
// list belongs to the member of the list.
func (w *hosted) value(d *jsontext.Decoder, o *object, key, is string, depth int) *problem.Error {
	if depth > deepestDocument {
		return badBody("it is nested too deeply")
	}
	kind := d.PeekKind()
	switch {
	case is == fieldText, kind == 'n':
		if err := d.SkipValue(); err != nil {
			return badSyntax(err)
		}
		return nil
	case is == fieldTools:
		list, err := d.ReadValue()
		if err != nil {
			return badSyntax(err)
		}
		return w.tools(list)
	case is[0] == '!':
		if err := d.SkipValue(); err != nil || kind == 'f' {
			return skip(jsontext.Token{}, err)
		}
		return w.need(is[1:]) // its members are not checked: the tool as a whole has to be allowed
	case is == fieldID:
		if err := d.SkipValue(); err != nil {
			return badSyntax(err)
		}
		if o.is == "item" && key == "container_id" {
			o.holds = true
			return nil
		}
		return w.need(hostedStored)
	case is == fieldTier:
		return w.tier(d, key)
	case is == fieldCache:
		return w.cache(d)
	case kind == '[':
		if _, err := d.ReadToken(); err != nil {
			return badSyntax(err)
		}
		for d.PeekKind() != ']' {
			if p := w.value(d, o, key, is, depth+1); p != nil {
				return p
			}
		}
		return skip(d.ReadToken())
	case kind == '"':
		text, err := d.ReadToken()
		if err != nil {
			return badSyntax(err)
		}
		if w.known[is] != nil {
			is = textInstead(is)
		}
		return w.text(o, is, text.String())
	case kind != '{':
		return skip(d.ReadToken())
	case w.known[is] == nil:
		return w.unknown(d, "member", key) // an object in the place of a text
	}
	return w.members(d, key, is, depth)
}

func skip(_ jsontext.Token, err error) *problem.Error {
	if err != nil {
		return badSyntax(err)
	}
	return nil
}

func (w *hosted) unknown(d *jsontext.Decoder, what, name string) *problem.Error {
	if err := d.SkipValue(); err != nil {
		return badSyntax(err)
	}
	return w.needUnknown(what, name)
}

func (w *hosted) text(o *object, is, text string) *problem.Error {
	switch {
	case is == fieldURL && text != "" && !isData(text), is == fieldBase64 && !isBase64(text) && !isData(text):
		return w.need(hostedFetch)
	case is == fieldQuote && text != "" && !isData(text):
		o.address = true
	}
	return nil
}

// isData says whether an address has in it what it stands for.
func isData(text string) bool {
	text = strings.TrimLeftFunc(text, unicode.IsSpace)
	return len(text) >= 5 && strings.EqualFold(text[:5], "data:")
}

// isBase64 says whether a text can be data. No address of another host can: it has a dot or a colon.
func isBase64(text string) bool {
	for i := range len(text) {
		switch c := text[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("+/=-_\r\n", c) >= 0:
		default:
			return false
		}
	}
	return true
}

// members reads an object, which belongs to the member parent of another one.
func (w *hosted) members(d *jsontext.Decoder, parent, is string, depth int) *problem.Error {
	o := &object{is: is, parent: parent}
	if _, err := d.ReadToken(); err != nil {
		return badSyntax(err)
	}
	for d.PeekKind() != '}' {
		name, err := d.ReadToken()
		if err != nil {
			return badSyntax(err)
		}
		if is == w.endpoint.fields && depth > 0 {
			if p := checkMerged(name.String()); p != nil {
				return p
			}
		}
		if p := w.member(d, o, strings.ToLower(name.String()), depth); p != nil {
			return p
		}
	}
	if _, err := d.ReadToken(); err != nil {
		return badSyntax(err)
	}
	return w.whole(o)
}

// whole looks at an object that has been read.
func (w *hosted) whole(o *object) *problem.Error {
	if types := w.known[o.is].types; len(types) > 0 && o.kind != "" && o.is != "tool" { // of a tool the date is no part of it
		name, known := types[o.kind]
		if !known {
			return w.needUnknown("type", o.kind)
		}
		if name == hostedByName {
			name = serverTool(o.name)
		}
		if name != "" {
			if p := w.need(name); p != nil {
				return p
			}
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
	// An item that ran in a container is told with it; a request that may run code names one by the tool.
	if o.refers(w.endpoint.path) || o.holds && o.kind != "code_interpreter_call" {
		return w.need(hostedStored)
	}
	return nil
}

// serverTool is the name of what a block of Anthropic's says that the provider has done, by the name of the tool.
func serverTool(tool string) string {
	name := strings.TrimRight(hostedName(tool), "0123456789_")
	if strings.HasSuffix(name, hostedCode) {
		return hostedCode
	}
	return cmp.Or(name, hostedByName)
}

// member reads the value of one member. Names are compared without case: some servers do.
func (w *hosted) member(d *jsontext.Decoder, o *object, key string, depth int) *problem.Error {
	kind := d.PeekKind()
	if kind == 'n' {
		return skip(d.ReadToken())
	}
	is := w.known[o.is].members[key]
	if is == "" {
		return w.unknown(d, "member", key)
	}
	o.role = o.role || key == "role"
	o.id = o.id || key == "id"
	switch key {
	case "input_audio":
		w.wants.audioInput = true
	case "audio":
		w.wants.audioOutput = w.wants.audioOutput || kind == '{'
	}
	switch {
	case (key == "type" || key == "name") && is == fieldText:
		value, err := d.ReadValue()
		if err != nil {
			return badSyntax(err)
		}
		if key == "type" {
			o.kind = strings.ToLower(textOf(value))
		} else {
			o.name = textOf(value)
		}
		if !isEmpty(value) && slices.Contains(referable(), key) {
			o.filled = append(o.filled, key)
		}
		return nil
	case o.is == "item" && slices.Contains(referable(), key):
		value, err := d.ReadValue()
		if err != nil {
			return badSyntax(err)
		}
		if !isEmpty(value) {
			o.filled = append(o.filled, key)
		}
		d = jsontext.NewDecoder(bytes.NewBuffer(value))
	}
	return w.value(d, o, key, is, depth+1)
}

// cache reads for how long the provider keeps what it has read.
func (w *hosted) cache(d *jsontext.Decoder) *problem.Error {
	value, err := d.ReadValue()
	if err != nil {
		return badSyntax(err)
	}
	w.wants.cache = true
	if value.Kind() == '{' {
		for key := range membersOf(value) {
			w.wants.cacheHour = w.wants.cacheHour || strings.EqualFold(key, "ttl")
		}
	}
	return nil
}

// isEmpty says whether a value has nothing in it.
func isEmpty(value jsontext.Value) bool {
	inside := bytes.Trim(value, "\"[]{} \t\r\n")
	return len(inside) == 0
}

// tier reads a member that chooses how an answer is made.
func (w *hosted) tier(d *jsontext.Decoder, key string) *problem.Error {
	value, err := d.ReadValue()
	if err != nil {
		return badSyntax(err)
	}
	if slices.Contains(usualTiers()[key], textOf(value)) {
		return nil
	}
	return w.need(hostedFastLane)
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
		name, own, p := w.toolName(tool)
		if p != nil {
			return p
		}
		if own {
			p = w.value(jsontext.NewDecoder(bytes.NewBuffer(tool)), nil, "", "tool", 1)
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
func (w *hosted) toolName(tool jsontext.Value) (name string, own bool, p *problem.Error) {
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
		if _, known := w.known["tool"].members[key]; !known {
			other = hostedName(key)
		}
		if key != "type" {
			continue
		}
		text, err := jsontext.AppendUnquote(nil, value)
		if value.Kind() != '"' || err != nil || found {
			return "", false, badBody("the type of a tool is not one text")
		}
		name, found = strings.ToLower(string(text)), true
	}
	if name == "" {
		return other, other == "", nil
	}
	name = strings.TrimRight(hostedName(name), "0123456789_")
	name = strings.TrimSuffix(name, "_preview")
	_, own = w.known["tool"].types[name]
	return name, own, nil
}
