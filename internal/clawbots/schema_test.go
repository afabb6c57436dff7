package clawbots

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v4"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/testenv"
)

// object is a JSON Schema, or a part of one.
type object = map[string]any

func text(pattern, description string) object {
	return object{"type": "string", "pattern": pattern, "description": description}
}

func listOf(items object, limit int, description string) object {
	return object{"type": "array", "items": items, "maxItems": limit, "description": description}
}

func number(kind string, minimum, maximum float64, description string) object {
	return object{"type": kind, "minimum": minimum, "maximum": maximum, "description": description}
}

func oneOf(description string, words ...string) object {
	return object{"enum": words, "description": description}
}

func mapOf(description string, keys object, more object) object {
	out := object{"type": "object", "properties": keys, "additionalProperties": false, "description": description}
	maps.Copy(out, more)
	return out
}

// schema is the table that packaging/clawbots.schema.json is made from. It says what editors can check; what follows from the whole
// file is for Parse alone.
func schema() object {
	const (
		serviceName = "^[a-z0-9][a-z0-9._-]{0,63}$"
		size        = "^0*[1-9][0-9]*(KiB|MiB|GiB|TiB)$"
		perMinute   = "Requests a minute."
	)
	scalar := object{"type": []string{"string", "number", "boolean"}}
	methods := object{"type": "array", "items": text("^[A-Za-z]{1,32}$", "An HTTP method."), "minItems": 1, "maxItems": maxMethods, "description": "HTTP methods; without the key, all."}
	services := listOf(text(serviceName, "The name of a service."), 64, "Services of the gateway.")
	services["uniqueItems"] = true
	servers := listOf(text("^[a-z0-9][a-z0-9_-]{0,39}$", "The name of an MCP server."), 64, "MCP servers of the configuration whose tools it is offered.")
	servers["uniqueItems"] = true
	rule := object{"oneOf": []object{
		text(`^\s*(deny:\s*)?([A-Za-z]+(,[A-Za-z]+)* +)?\S+\s*$`, "A host or a URL, with deny: and methods before it."),
		mapOf("The same as a map.", object{
			"host":    text(`^\S+$`, "A host, with all names below it (*.), with a port."),
			"url":     text(`^\S+$`, "A URL, whose path may have * for a segment and ** at the end."),
			"methods": methods,
			"deny":    object{"type": []string{"boolean", "string"}, "description": "true, or the host or URL itself."},
		}, object{"minProperties": 1}),
	}}
	const domain = `^[^\s/:*]+\.[^\s/:*]+$`
	accounts := listOf(object{"oneOf": []object{
		text(domain, "The domain of an account."),
		mapOf("The same, with more.", object{
			"domain":         text(domain, "The domain of an account."),
			"access":         oneOf("The widest access of a session; tools is the default.", "tools", "cdp"),
			"ask":            oneOf("When a person is asked first; never is the default.", "never", "first", "always"),
			"hours":          text("^[0-9]{2}-[0-9]{2}$", "The hours of the day in which it is good, in UTC, such as 08-18."),
			"egress_domains": listOf(text(`^\S+$`, "A domain or a host."), 50, "What its sessions may reach besides; what is kept with the account when it is left out."),
		}, object{"required": []string{"domain"}}),
	}}, maxAccounts, "Accounts that it may use in its sessions without a grant each time.")
	agent := mapOf("One agent.", object{
		"name":     text("^[a-z0-9-]{1,40}$", "Its name."),
		"template": text("^[a-z0-9]{1,20}$", "The template that its jail is made of; neither template nor image is the default, clawbot."),
		"image":    text("^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}$", "The image that its container is made of."),
		"command": object{"oneOf": []object{
			text(`\S`, "Split at blanks as a shell does; nothing is expanded."),
			{"type": "array", "items": scalar, "minItems": 1, "maxItems": maxWords},
		}, "description": "What runs in it. The program is an absolute path in the jail."},
		"workspace":      text(`^[^~]`, "A folder of the host that it sees as /workspace. Agents that name the same one share it."),
		"workspace_mode": oneOf("How the workspace is mounted; rw is the default.", string(ReadOnly), string(ReadWrite)),
		"tmp":            oneOf("Whether what is in /tmp can be run, as builds want it; noexec is the default.", string(NoExec), string(Exec)),
		"unix_sockets": object{"type": "boolean", "description": "Whether it may use UNIX sockets although it has a workspace. Whoever shares " +
			"the folder, another agent or a program of the host, can then be connected with it past the gateway."},
		"limits": mapOf("What its jail may use; what is not said is in agents.limits of the configuration.", object{
			"memory": text(size, "Of its processes and /tmp, such as 512MiB."),
			"cpu":    number("number", float64(jail.MinMilliCPU)/1000, float64(jail.MaxMilliCPU)/1000, "Cores, such as 0.5."),
			"tasks":  number("integer", jail.MinTasks, jail.MaxTasks, "Processes and threads."),
			"tmp":    text(size, "Of /tmp, which counts as memory."),
			"state":  text(size, "Of the volume at /state."),
			"files":  number("integer", jail.MinFiles, jail.MaxFiles, "Files that one process may have open."),
		}, nil),
		"restart": oneOf("Whether its program is started again; always is the default.", string(jail.RestartAlways), string(jail.RestartOnFailure), string(jail.RestartNever)),
		"ttl":     text(`^([0-9]+d|([0-9]+(\.[0-9]+)?(h|m|s))+)$`, "How long the agent may exist once it was made, such as 720h."),
		"env": object{"type": "object", "propertyNames": object{"pattern": "^[A-Za-z_][A-Za-z0-9_]{0,127}$"}, "additionalProperties": object{"type": []string{"string", "number", "boolean", "null"}}, "maxProperties": maxEnv,
			"description": "Variables; null takes one away. What looks like a secret is refused; keep it with `clawjail secret set`."},
		"webhook": object{"type": "boolean", "description": "Whether POST /v1/agents/{name}/webhook reaches port 8000 in its jail."},
		"browser": object{"enum": []any{"rules", "open"},
			"description": "What the browsers may reach that the agent opens: its rules, or the public web as well."},
		"allow":    listOf(rule, maxRules, "What it may reach. Everything else is refused."),
		"services": services,
		"tools": listOf(mapOf("", object{
			"url":      text("^[A-Za-z]+://", "An absolute URL; its path may have * for a segment and ** at the end."),
			"methods":  methods,
			"services": services,
		}, object{"required": []string{"url", "methods"}}), 200, "What POST /v1/execute may do for it; [] is nothing."),
		"accounts": accounts,
		"rate": mapOf(perMinute, object{
			"proxy":    number("integer", 1, 1_000_000, perMinute),
			"execute":  number("integer", 1, 1_000_000, perMinute),
			"services": number("integer", 1, 1_000_000, perMinute),
			"llm":      number("integer", 1, 1_000_000, perMinute),
		}, nil),
		"mcp": servers,
		"llm": mapOf("What it may use of models in a day (UTC).", object{
			"tokens_per_day": number("integer", 1, 1_000_000_000_000, "Tokens."),
			"cost_per_day":   number("number", 0.000001, 1_000_000_000, "In the currency of the prices."),
		}, nil),
	}, object{
		"required": []string{"name"}, "not": object{"required": []string{"template", "image"}},
		"dependentRequired": object{"workspace_mode": []string{"workspace"}},
	})
	return mapOf("Agents of clawjail, for `clawjail agent sync`.", object{"clawbots": listOf(agent, MaxAgents, "The agents.")}, object{
		"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "clawbots.yml", "required": []string{"clawbots"},
	})
}

const schemaPath = "packaging/clawbots.schema.json"

func TestTheSchemaIsOfTheTable(t *testing.T) {
	want, err := json.MarshalIndent(schema(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	testenv.Golden(t, filepath.Join(testenv.Repository(t), schemaPath), string(want)+"\n")
}

// The table and the parser know the same keys.
func TestTheSchemaHasEveryKey(t *testing.T) {
	inSchema := map[string]bool{}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, item := range v {
				walk(item)
			}
		case object:
			if keys, ok := v["properties"].(object); ok {
				for key := range keys {
					inSchema[key] = true
				}
			}
			for _, item := range v {
				walk(item)
			}
		}
	}
	walk(theSchema(t))
	if diff := cmp.Diff(slices.Sorted(maps.Keys(keysOfTheParser())), slices.DeleteFunc(slices.Sorted(maps.Keys(inSchema)), func(key string) bool { return key == "" })); diff != "" {
		t.Errorf("(-parser +schema):\n%s", diff)
	}
}

// theSchema is the one that is shipped.
func theSchema(t testing.TB) object {
	t.Helper()
	var out object
	if err := json.Unmarshal([]byte(exampleFile(t, schemaPath)), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// values decodes YAML as editors do.
func values(t testing.TB, text string) any {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return v
}

func TestSchemaAndParserAgree(t *testing.T) {
	shipped := theSchema(t)
	origin, err := os.ReadFile("testdata/origin.yml")
	if err != nil {
		t.Fatal(err)
	}
	example := exampleFile(t, "clawbots.yml.example")
	for _, text := range []string{string(origin), exampleFile(t, "examples/clawbots.yml"), example, switchedOn(example), "clawbots: []", "clawbots: [{name: a, ttl: 3d}, {name: b, ttl: 1h30m}]"} {
		if err := check(shipped, values(t, text), "file"); err != nil {
			t.Errorf("the schema refuses what is good: %v\n%s", err, text)
		}
		mustParse(t, text)
	}
	agent := func(keys string) string { return "clawbots: [{name: a, " + keys + "}]" }
	for _, text := range []string{
		"{}", "clawbots: {}", "clawbot: []", "clawbots: []\nmore: 1", "clawbots: [a]", "clawbots: [{}]", "clawbots: [{name: A}]", "clawbots: [{name: ''}]",
		"clawbots: [" + strings.Repeat("{name: a},", MaxAgents+1) + "]",
		agent("template: A"), agent("template: a, image: b"), agent("image: 'a b'"), agent("command: []"), agent("command: ''"), agent("command: {a: b}"),
		agent("command: [[x]]"), agent("workspace: ''"), agent("workspace: ~/x"), agent("workspace_mode: ro"), agent("workspace: x, workspace_mode: r"),
		agent("limits: {memory: 512M}"), agent("limits: {memory: 0MiB}"), agent("limits: {cpu: 0}"), agent("limits: {cpu: '1'}"), agent("limits: {tasks: 1}"),
		agent("limits: {tasks: 1.5}"), agent("limits: {files: 5}"), agent("limits: {disk: 1GiB}"), agent("limits: 5"), agent("restart: maybe"), agent("ttl: 1.5d"), agent("ttl: d"), agent("ttl: 3d4h"),
		agent("ttl: 5"), agent("env: [A]"), agent("env: {1A: x}"), agent("env: {A: [x]}"), agent("webhook: 1"), agent("allow: x.example"),
		agent("allow: ['']"), agent("allow: ['a b c']"), agent("allow: [{}]"), agent("allow: [{host: x.example, method: [GET]}]"), agent("allow: [{host: x.example, methods: []}]"),
		agent("allow: [{host: x.example, methods: ['G T']}]"), agent("services: x"), agent("services: [X]"), agent("services: [x, x]"), agent("tools: {}"),
		agent("tools: [{url: 'https://a.example'}]"), agent("tools: [{methods: [GET]}]"), agent("tools: [{url: a.example, methods: [GET]}]"),
		agent("rate: {proxy: 0}"), agent("rate: {all: 5}"), agent("mcp: [X]"), agent("mcp: [x, x]"), agent("llm: {tokens_per_day: 0}"), agent("llm: {cost_per_day: 0}"),
		agent("llm: {tokens: 5}"), agent("memory: 5"),
	} {
		if _, err := Parse("f", []byte(text), testDir); err == nil {
			t.Errorf("Parse accepts %.100s", text)
		}
		if err := check(shipped, values(t, text), "file"); err == nil {
			t.Errorf("the schema accepts %.100s", text)
		}
	}
}

// check is as much of JSON Schema as ours needs. A keyword that it does not know is an error, so that none goes unchecked.
func check(s object, v any, at string) error {
	for keyword, want := range s {
		if err := checkKeyword(keyword, want, s, v, at); err != nil {
			return err
		}
	}
	return nil
}

func checkKeyword(keyword string, want any, s object, v any, at string) error {
	bad := func(format string, args ...any) error { return fmt.Errorf("%s: %s", at, fmt.Sprintf(format, args...)) }
	asText, isText := v.(string)
	asList, isList := v.([]any)
	asMap, isMap := v.(map[string]any)
	asNumber, isNumber := numberOf(v)
	keys := func(list any) (out []string) {
		for _, key := range list.([]any) {
			out = append(out, key.(string))
		}
		return out
	}
	has := func(names []string) bool {
		return !slices.ContainsFunc(names, func(name string) bool { _, ok := asMap[name]; return !ok })
	}
	switch keyword {
	case "$schema", "title", "description":
	case "type":
		kinds, several := want.([]any)
		if !several {
			kinds = []any{want}
		}
		if !slices.ContainsFunc(kinds, func(kind any) bool { return isOf(kind.(string), v) }) {
			return bad("%v is no %v", v, want)
		}
	case "enum":
		if !slices.Contains(want.([]any), v) {
			return bad("%v is none of %v", v, want)
		}
	case "pattern":
		if isText && !regexp.MustCompile(want.(string)).MatchString(asText) {
			return bad("%q does not match %s", asText, want)
		}
	case "minimum":
		if isNumber && asNumber < want.(float64) {
			return bad("%v is less than %v", v, want)
		}
	case "maximum":
		if isNumber && asNumber > want.(float64) {
			return bad("%v is more than %v", v, want)
		}
	case "minItems":
		if isList && float64(len(asList)) < want.(float64) {
			return bad("has %d items", len(asList))
		}
	case "maxItems":
		if isList && float64(len(asList)) > want.(float64) {
			return bad("has %d items", len(asList))
		}
	case "uniqueItems":
		for i := range asList {
			if slices.ContainsFunc(asList[:i], func(other any) bool { return reflect.DeepEqual(other, asList[i]) }) {
				return bad("%v is there twice", asList[i])
			}
		}
	case "items":
		for i, item := range asList {
			if err := check(want.(object), item, fmt.Sprintf("%s[%d]", at, i)); err != nil {
				return err
			}
		}
	case "minProperties":
		if isMap && float64(len(asMap)) < want.(float64) {
			return bad("has %d keys", len(asMap))
		}
	case "maxProperties":
		if isMap && float64(len(asMap)) > want.(float64) {
			return bad("has %d keys", len(asMap))
		}
	case "required":
		if isMap && !has(keys(want)) {
			return bad("lacks one of %v", want)
		}
	case "dependentRequired":
		for key, others := range want.(object) {
			if _, ok := asMap[key]; ok && !has(keys(others)) {
				return bad("has %s without %v", key, others)
			}
		}
	case "propertyNames":
		for key := range asMap {
			if err := check(want.(object), key, at+"."+key); err != nil {
				return err
			}
		}
	case "properties":
		for key, sub := range want.(object) {
			if value, ok := asMap[key]; ok {
				if err := check(sub.(object), value, at+"."+key); err != nil {
					return err
				}
			}
		}
	case "additionalProperties":
		known, _ := s["properties"].(object)
		for key, value := range asMap {
			if _, ok := known[key]; ok {
				continue
			}
			sub, ok := want.(object)
			if !ok {
				return bad("%s is not known", key)
			}
			if err := check(sub, value, at+"."+key); err != nil {
				return err
			}
		}
	case "oneOf":
		good := 0
		for _, sub := range want.([]any) {
			if check(sub.(object), v, at) == nil {
				good++
			}
		}
		if good != 1 {
			return bad("%v is %d of those that it may be", v, good)
		}
	case "not":
		if isMap && check(want.(object), v, at) == nil {
			return bad("is what it must not be: %v", want)
		}
	default:
		return bad("the keyword %s is not checked", keyword)
	}
	return nil
}

func numberOf(v any) (float64, bool) {
	switch v := v.(type) {
	case int:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}

func isOf(kind string, v any) bool {
	n, isNumber := numberOf(v)
	switch v.(type) {
	case nil:
		return kind == "null"
	case string:
		return kind == "string"
	case bool:
		return kind == "boolean"
	case []any:
		return kind == "array"
	case map[string]any:
		return kind == "object"
	}
	return isNumber && (kind == "number" || kind == "integer" && n == float64(int64(n)))
}
