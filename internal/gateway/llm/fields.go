package llm

import (
	_ "embed"
	"strings"
)

//go:embed fields.txt
var fieldsText string

// fields are the members of objects that are known, by the name of the object.
type fields map[string]*fieldsOf

// fieldsOf are the members of one object, with what they are, and its types, with what has to be allowed for them. In an object
// without types the member "type" makes no difference.
type fieldsOf struct{ members, types map[string]string }

// readFields reads fields.txt, which says what the words in it mean.
func readFields() fields {
	out := fields{}
	var of *fieldsOf
	for line := range strings.Lines(fieldsText) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || words[0] == "#":
		case words[0] == "object":
			of = &fieldsOf{members: map[string]string{}, types: map[string]string{}}
			out[words[1]] = of
		case words[0] == fieldType:
			need := ""
			if words = words[1:]; words[0][0] == '!' {
				need, words = words[0][1:], words[1:]
			}
			for _, name := range words {
				of.types[name] = need
			}
		default:
			for _, name := range words[1:] {
				of.members[name] = words[0]
			}
		}
	}
	return out
}

// The kinds of members.
const (
	fieldText   = "text"
	fieldURL    = "url"
	fieldBase64 = "base64"
	fieldQuote  = "quote"
	fieldID     = "id"
	fieldTier   = "tier"
	fieldCache  = "cache"
	fieldTools  = "tools"
	fieldType   = "type"
)

// textInstead is what a text is in the place of an object.
func textInstead(object string) string {
	switch object {
	case "place", "file":
		return fieldURL
	case "source":
		return fieldQuote
	case "sounds", "sound":
		return fieldBase64
	}
	return fieldText
}

// hostedName is a name of somebody else's as the entry of a provider can have it.
func hostedName(name string) string {
	name = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToLower(name))
	return name[:min(len(name), longestHosted)]
}

const longestHosted = 64
