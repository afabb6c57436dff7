package clawbots

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
)

// Canonical is what is declared of an agent in one form: equal declarations have equal bytes, also those that say a default
// and those that leave it out. It can be decoded into an [Agent] again.
func Canonical(a Agent) []byte {
	out, err := json.Marshal(canonical(a))
	if err != nil {
		// Nothing in an Agent fails to be encoded, but a number that is none: Parse lets none through.
		panic(fmt.Sprintf("encode an agent: %v", err))
	}
	return out
}

// canonical leaves out what is the default for everybody. A default that the configuration decides is left as it is: it can change.
func canonical(a Agent) Agent {
	if a.Workspace == "" {
		a.Sharing, a.WorkspaceMode, a.UnixSockets = Isolated, "", false
	} else if a.WorkspaceMode == "" {
		a.WorkspaceMode = ReadWrite
	}
	if a.Restart == jail.RestartAlways {
		a.Restart = ""
	}
	if a.Tmp == NoExec {
		a.Tmp = ""
	}
	if len(a.Env) == 0 {
		a.Env = nil
	}
	return a
}

// Differences says in words what differs between two declarations of an agent, in a fixed order: "limits.memory: 512MiB →
// 1GiB". Of variables only the names are said.
func Differences(old, new Agent) []string {
	old, new = canonical(old), canonical(new)
	var out []string
	field := func(name, from, to string) {
		if from != to {
			out = append(out, name+": "+from+" → "+to)
		}
	}
	for _, f := range newJailFields(old, new) {
		field(f.name, f.old, f.new)
	}
	out = append(out, variables(old.Env, new.Env)...)
	field("env without", orNone(strings.Join(old.Without, ", ")), orNone(strings.Join(new.Without, ", ")))
	for _, f := range otherFields(old, new) {
		field(f.name, f.old, f.new)
	}
	return out
}

// compared is one thing that is declared, in words, of two declarations.
type compared struct{ name, old, new string }

// newJailFields are what a jail is made from. Services are among them, because the variables that lead tools to them are set when
// a jail starts.
func newJailFields(old, new Agent) []compared {
	return []compared{
		{"template", orDefault(old.Template), orDefault(new.Template)},
		{"image", orDefault(old.Image), orDefault(new.Image)},
		{"command", commandInWords(old.Command), commandInWords(new.Command)},
		{"workspace", orNone(old.Workspace), orNone(new.Workspace)},
		{"workspace_mode", orNone(string(old.WorkspaceMode)), orNone(string(new.WorkspaceMode))},
		{"sharing", orNone(string(old.Sharing)), orNone(string(new.Sharing))},
		{"unix_sockets", fmt.Sprint(old.UnixSockets), fmt.Sprint(new.UnixSockets)},
		{"tmp", orDefault(string(old.Tmp)), orDefault(string(new.Tmp))},
		{"limits.memory", orDefaultOf(old.Limits.Memory), orDefaultOf(new.Limits.Memory)},
		{"limits.cpu", orDefaultOf(old.Limits.CPU), orDefaultOf(new.Limits.CPU)},
		{"limits.tasks", orDefaultOf(old.Limits.Tasks), orDefaultOf(new.Limits.Tasks)},
		{"limits.tmp", orDefaultOf(old.Limits.Tmp), orDefaultOf(new.Limits.Tmp)},
		{"limits.state", orDefaultOf(old.Limits.State), orDefaultOf(new.Limits.State)},
		{"limits.files", orDefaultOf(old.Limits.Files), orDefaultOf(new.Limits.Files)},
		{"ttl", lifetime(old.TTL), lifetime(new.TTL)},
		{"services", listInWords(old.Services), listInWords(new.Services)},
	}
}

func otherFields(old, new Agent) []compared {
	return []compared{
		{"restart", orDefault(string(old.Restart)), orDefault(string(new.Restart))},
		{"webhook", fmt.Sprint(old.Webhook), fmt.Sprint(new.Webhook)},
		{"browser", orDefault(string(old.Browser)), orDefault(string(new.Browser))},
		{"allow", stringersInWords(old.Allow, false), stringersInWords(new.Allow, false)},
		{"tools", stringersInWords(old.Tools, true), stringersInWords(new.Tools, true)},
		{"accounts", stringersInWords(old.Accounts, false), stringersInWords(new.Accounts, false)},
		{"rate.proxy", orDefaultOf(old.Rate.Proxy), orDefaultOf(new.Rate.Proxy)},
		{"rate.execute", orDefaultOf(old.Rate.Execute), orDefaultOf(new.Rate.Execute)},
		{"rate.services", orDefaultOf(old.Rate.Service), orDefaultOf(new.Rate.Service)},
		{"rate.llm", orDefaultOf(old.Rate.LLM), orDefaultOf(new.Rate.LLM)},
		{"mcp", orNone(strings.Join(old.MCP, ", ")), orNone(strings.Join(new.MCP, ", "))},
		{"llm.tokens_per_day", orDefaultOf(old.LLM.TokensPerDay), orDefaultOf(new.LLM.TokensPerDay)},
		{"llm.cost_per_day", orDefaultOf(old.LLM.CostPerDay), orDefaultOf(new.LLM.CostPerDay)},
	}
}

// variables says which of them differ.
func variables(old, new map[string]string) []string {
	var out []string
	names := slices.Sorted(maps.Keys(old))
	for name := range new {
		if _, both := old[name]; !both {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		was, before := old[name]
		is, after := new[name]
		switch {
		case !before:
			out = append(out, "env."+name+": added")
		case !after:
			out = append(out, "env."+name+": removed")
		case was != is:
			out = append(out, "env."+name+": changed")
		}
	}
	return out
}

func orDefault(text string) string {
	if text == "" {
		return "default"
	}
	return text
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

func orDefaultOf[T comparable](v T) string {
	var zero T
	if v == zero {
		return "default"
	}
	return fmt.Sprint(v)
}

func lifetime(d time.Duration) string {
	if d == 0 {
		return "none"
	}
	return d.String()
}

func commandInWords(words []string) string {
	if len(words) == 0 {
		return "default"
	}
	quoted := make([]string, len(words))
	for i, w := range words {
		if quoted[i] = w; w == "" || strings.ContainsAny(w, " \t\n'\"\\$") {
			quoted[i] = fmt.Sprintf("%q", w)
		}
	}
	return strings.Join(quoted, " ")
}

// listInWords tells nothing said from an empty list.
func listInWords(list []string) string {
	switch {
	case list == nil:
		return "default"
	case len(list) == 0:
		return "none"
	}
	return strings.Join(list, ", ")
}

func stringersInWords[T fmt.Stringer](list []T, nilIsDefault bool) string {
	if list == nil && nilIsDefault {
		return "default"
	}
	if len(list) == 0 {
		return "none"
	}
	out := make([]string, len(list))
	for i, item := range list {
		out[i] = item.String()
	}
	return strings.Join(out, ", ")
}
