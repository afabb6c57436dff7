package agentenv

import (
	"io/fs"
	"maps"
	"slices"
	"strings"
)

// File is a file that the environment points to.
type File struct {
	Path    string      `json:"path"` // as the agent sees it
	Mode    fs.FileMode `json:"mode"`
	Content string      `json:"content"`
}

// Env is variables with their values.
type Env map[string]string

// Names are the names of the variables, sorted.
func (e Env) Names() []string { return slices.Sorted(maps.Keys(e)) }

// List is the environment as programs are started with: NAME=value, sorted.
func (e Env) List() []string {
	out := make([]string, 0, len(e))
	for _, name := range e.Names() {
		out = append(out, name+"="+e[name])
	}
	return out
}

// Shell is a script of exports for a POSIX shell, sorted. No value is more to the shell than text.
func (e Env) Shell() string {
	var b strings.Builder
	for _, name := range e.Names() {
		b.WriteString("export " + name + "='" + strings.ReplaceAll(e[name], "'", `'\''`) + "'\n")
	}
	return b.String()
}
