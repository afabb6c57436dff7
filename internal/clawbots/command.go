package clawbots

import (
	"path"
	"strings"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/config/yamldoc"
	"github.com/clawjail/clawjail/internal/problem"
)

// Bounds of a command.
const (
	maxWords   = 256
	maxCommand = 32 << 10 // bytes
)

// command reads a list of words, or one text that is split into them.
func (f *file) command(m *yamldoc.Map) []string {
	const key = "command"
	field := m.Field() + "." + key
	var words []string
	good := true
	if m.IsList(key) {
		if n := m.Length(key); n > maxWords { // and nothing is said of the words
			f.program(field, make([]string, n), true)
			m.Ignore(key)
			return nil
		}
		m.Values(key, func(v yamldoc.Value) error {
			words = append(words, v.Text)
			err := checkWord(v.Text)
			good = good && err == nil
			return err
		})
		if len(words) == 0 {
			f.flaw(field, "leave the key out for the default", "has no words")
			return nil
		}
	} else {
		m.Value(key, func(v yamldoc.Value) (err error) {
			words, err = splitCommand(v.Text)
			for _, w := range words {
				if err = checkWord(w); err != nil {
					words = nil
					break
				}
			}
			return err
		})
	}
	if good {
		f.program(field, words, m.Has("image"))
	}
	return words
}

// program looks at a command as a whole.
func (f *file) program(field string, words []string, image bool) {
	total := 0
	for _, w := range words {
		total += len(w)
	}
	switch {
	case len(words) == 0:
	case len(words) > maxWords:
		f.flaw(field, "put it into a script", "has %d words, more than %d", len(words), maxWords)
	case total > maxCommand:
		f.flaw(field, "put it into a script", "has %d bytes, more than %d", total, maxCommand)
	case words[0] == "":
		f.flaw(field, "begin with a program, such as /bin/sh", "the program is an empty word")
	case !path.IsAbs(words[0]) && !image:
		// An image has a search path of its own; what a template is started with has none.
		f.flaw(field, "write its absolute path in the jail, such as /usr/bin/python3, or [/bin/sh, -c, …]",
			"the program %.80q has no absolute path", words[0])
	}
}

func checkWord(w string) error {
	if strings.ContainsRune(w, 0) {
		return problem.New(problem.BadRequest, "remove it", "has a NUL byte")
	}
	if secret.Within(w) {
		return secretProblem("a word of the command")
	}
	return nil
}

// splitCommand splits a text into words as a shell does, with quotes and backslashes. Syntax that a shell would expand or act upon is
// refused: nothing does that here.
func splitCommand(text string) ([]string, error) {
	fail := func(hint, format string, args ...any) ([]string, error) {
		return nil, problem.New(problem.BadRequest, hint, format, args...)
	}
	if len(text) > maxCommand {
		return fail("put it into a script", "has %d bytes, more than %d", len(text), maxCommand)
	}
	var words []string
	var word strings.Builder
	inWord := false
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			if inWord {
				words = append(words, word.String())
				word.Reset()
				inWord = false
			}
			continue
		case c == '\'':
			end := strings.IndexByte(text[i+1:], '\'')
			if end < 0 {
				return fail("close it", "a quote is not closed")
			}
			word.WriteString(text[i+1 : i+1+end])
			i += end + 1
		case c == '"':
			n, err := quoted(text[i+1:], &word)
			if err != nil {
				return nil, err
			}
			i += n
		case c == '\\':
			if i++; i == len(text) {
				return fail("remove it, or write it twice", "a backslash is the last character")
			}
			if text[i] != '\n' { // which continues the line
				word.WriteByte(text[i])
			}
		case strings.IndexByte("|&;<>()$`*?[#~", c) >= 0 && !(c == '#' && inWord) && !(c == '~' && inWord):
			return fail("put it into quotes, or run a shell: [/bin/sh, -c, '…']", "an unquoted %c means something to a shell, and there is none here", c)
		default:
			word.WriteByte(c)
		}
		inWord = true
		if len(words) > maxWords {
			return fail("put it into a script", "has more than %d words", maxWords)
		}
	}
	if inWord {
		words = append(words, word.String())
	}
	switch {
	case len(words) == 0:
		return fail("leave the key out for the default", "is empty")
	case len(words) > maxWords:
		return fail("put it into a script", "has more than %d words", maxWords)
	}
	return words, nil
}

// quoted reads what is behind a double quote, with the quote that ends it, and returns how much that was.
func quoted(text string, word *strings.Builder) (int, error) {
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '"':
			return i + 1, nil
		case '$', '`':
			return 0, problem.New(problem.BadRequest, "use single quotes, or run a shell: [/bin/sh, -c, '…']",
				"%c is expanded by shells, and there is none here", c)
		case '\\':
			if i+1 < len(text) && strings.IndexByte("\"\\$`\n", text[i+1]) >= 0 {
				i++
				if text[i] == '\n' {
					continue
				}
			}
			word.WriteByte(text[i])
		default:
			word.WriteByte(c)
		}
	}
	return 0, problem.New(problem.BadRequest, "close it", "a quote is not closed")
}
