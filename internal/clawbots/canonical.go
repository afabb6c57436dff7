package clawbots

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/config/yamldoc"
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

// Differences says in words what differs between two declarations of an agent, in the order of its fields: "limits.memory: 512MiB →
// 1GiB". Of variables only the names are said.
func Differences(old, new Agent) (out []string) {
	old, new = canonical(old), canonical(new)
	differ := func(name, from, to string) {
		if from != to {
			out = append(out, name+": "+from+" → "+to)
		}
	}
	was := map[string]string{}
	yamldoc.Walk(reflect.ValueOf(old), func(path string, at reflect.Value, tags reflect.StructTag) { was[path] = inWords(at, tags) })
	yamldoc.Walk(reflect.ValueOf(new), func(path string, at reflect.Value, tags reflect.StructTag) {
		switch path {
		case "name":
		case "env":
			out = append(out, variables(old.Env, new.Env)...)
			differ("env without", cmp.Or(strings.Join(old.Without, ", "), "none"), cmp.Or(strings.Join(new.Without, ", "), "none"))
		default:
			differ(path, was[path], inWords(at, tags))
		}
		if path == "workspace_mode" {
			differ("sharing", cmp.Or(string(old.Sharing), "none"), cmp.Or(string(new.Sharing), "none"))
		}
	})
	return out
}

// inWords is the value of a field for people. Where nothing is said, it is what the tag unsaid says, or else the default.
func inWords(at reflect.Value, tags reflect.StructTag) string {
	switch words, _ := at.Interface().([]string); {
	case at.IsZero() && at.Kind() != reflect.Bool:
		return cmp.Or(tags.Get("unsaid"), "default")
	case tags.Get("is") == "word":
		return commandInWords(words)
	case at.Kind() == reflect.Slice:
		list := make([]string, at.Len())
		for i := range list {
			list[i] = fmt.Sprint(at.Index(i))
		}
		return cmp.Or(strings.Join(list, ", "), "none")
	}
	return fmt.Sprint(at)
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

func commandInWords(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		if quoted[i] = w; w == "" || strings.ContainsAny(w, " \t\n'\"\\$") {
			quoted[i] = fmt.Sprintf("%q", w)
		}
	}
	return strings.Join(quoted, " ")
}
