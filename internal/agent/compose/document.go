package compose

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/clawjail/clawjail/internal/config/yamldoc"
)

// document is a YAML file that is being written. Every text in it is quoted as JSON does it, which is YAML as well.
type document struct{ strings.Builder }

// line writes a line that was made here, and not by somebody who wrote a file of agents.
func (d *document) line(depth int, text string) {
	d.WriteString(strings.Repeat("  ", depth) + text + "\n")
}

// comment writes a comment. A text cannot end it.
func (d *document) comment(text string) {
	text = strings.Map(func(r rune) rune {
		if control(r) {
			return ' '
		}
		return r
	}, text)
	d.WriteString(strings.TrimRight("# "+text, " ") + "\n")
}

func (d *document) plain(depth int, key, value string) { d.line(depth, key+": "+value) }

func (d *document) pair(depth int, key, value string) { d.line(depth, key+": "+quoted(value)) }

func (d *document) list(depth int, key string, values ...string) {
	if len(values) == 0 {
		return
	}
	all := make([]string, len(values))
	for n, v := range values {
		all[n] = quoted(v)
	}
	d.line(depth, key+": ["+strings.Join(all, ", ")+"]")
}

// mount writes a mount in the long form: in the short one a colon in a path would begin something else.
func (d *document) mount(kind, source, target string, readOnly bool) {
	text := "- {type: " + kind + ", source: " + quoted(source) + ", target: " + quoted(target)
	if readOnly {
		text += ", read_only: true"
	}
	d.line(3, text+"}")
}

// quoted is a text as a value. docker-compose takes a dollar for the beginning of a variable, and two of them for one dollar.
func quoted(text string) string {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(strings.ReplaceAll(text, "$", "$$")); err != nil {
		return `""` // a string can always be encoded
	}
	return string(yamldoc.OfJSON(bytes.TrimSuffix(out.Bytes(), []byte("\n"))))
}

// shellWord is a text as one word of a shell.
func shellWord(text string) string {
	if text != "" && strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789./_-@:+") == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
