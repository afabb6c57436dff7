package mcpserver

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"unicode"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/text/unicode/rangetable"
)

// Bounds of what is told of tools.
const (
	maxTools       = 128
	maxToolName    = 256
	maxOffered     = 64
	maxDescription = 2 << 10  // bytes
	maxSchema      = 32 << 10 // bytes
	maxTitle       = 200      // bytes
	separator      = "__"
)

// offeredName is how a tool or a prompt is called by those who are offered it: server__tool, of letters, digits, _ and - and at most 64
// characters, which is what clients take. A name that had to be changed for that ends with a mark that keeps names apart. The name
// of a server has no _, so that everything before the first separator is the server.
func offeredName(server, tool string) string {
	plain := strings.Map(func(r rune) rune {
		if r < 0x80 && (r == '_' || r == '-' || r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z') {
			return r
		}
		return '_'
	}, tool)
	name := server + separator + plain
	if plain == tool && len(name) <= maxOffered {
		return name
	}
	sum := sha256.Sum256([]byte(server + "\x00" + tool))
	mark := "_" + hex.EncodeToString(sum[:4])
	return name[:min(len(name), maxOffered-len(mark))] + mark
}

// serverOf is the server that an offered name belongs to, empty when it is not one.
func serverOf(offered string) string {
	server, _, found := strings.Cut(offered, separator)
	if !found {
		return ""
	}
	return server
}

func properName(s string) bool {
	return s != "" && len(s) <= maxToolName && utf8.ValidString(s) && !strings.ContainsFunc(s, invisible)
}

// offered is a tool in our words where they are ours, and in bounded, visible text where they are the server's.
func offered(name string, t *sdk.Tool) *sdk.Tool {
	out := &sdk.Tool{Name: name, Title: visible(t.Title, maxTitle), Description: visible(t.Description, maxDescription)}
	schema, ok := properSchema(t.InputSchema)
	if !ok {
		schema = json.RawMessage(`{"type":"object"}`)
		out.Description = strings.TrimSpace(out.Description + "\n[the schema of its arguments was left out]")
	}
	out.InputSchema = schema
	if t.OutputSchema != nil {
		if schema, ok := properSchema(t.OutputSchema); ok {
			out.OutputSchema = schema
		}
	}
	if a := t.Annotations; a != nil {
		out.Annotations = &sdk.ToolAnnotations{Title: visible(a.Title, maxTitle), ReadOnlyHint: a.ReadOnlyHint, IdempotentHint: a.IdempotentHint,
			DestructiveHint: a.DestructiveHint, OpenWorldHint: a.OpenWorldHint}
	}
	return out
}

// properSchema is a schema of an object with visible texts only, or false when it is none or too large. References to
// elsewhere are left out, so that clients do not fetch them, and so are members that tell clients which headers to send.
func properSchema(schema any) (json.RawMessage, bool) {
	m, ok := schema.(map[string]any)
	if !ok || m["type"] != "object" {
		return nil, false
	}
	text, err := json.Marshal(cleanSchema(m))
	if err != nil || len(text) > maxSchema {
		return nil, false
	}
	return text, true
}

func cleanSchema(v any) any {
	switch v := v.(type) {
	case string:
		return visible(v, maxSchema)
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = cleanSchema(v[i])
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, value := range v {
			name := visible(key, maxSchema)
			if strings.HasPrefix(strings.ToLower(name), "x-mcp-") {
				continue
			}
			if ref, ok := value.(string); ok && (name == "$ref" || name == "$dynamicRef") && !strings.HasPrefix(ref, "#") {
				continue
			}
			out[name] = cleanSchema(value)
		}
		return out
	}
	return v
}

// visible is a text without characters that people do not see and models do, up to limit bytes long. One selector behind
// a symbol, which says whether that is a picture, stays.
func visible(s string, limit int) string {
	var out strings.Builder
	var before rune
	for _, r := range strings.ToValidUTF8(s, "\uFFFD") {
		selects := (r == asText || r == asPicture) && isSymbol(before)
		if invisible(r) && r != '\n' && r != '\t' && !selects {
			continue
		}
		out.WriteRune(r)
		before = r
	}
	return cut(out.String(), limit, "…")
}

// The selectors of the form of a symbol.
const (
	asText    = '\uFE0E'
	asPicture = '\uFE0F'
)

// isSymbol says whether a character may have a form as text and one as a picture: symbols, and what keys of telephones have.
func isSymbol(r rune) bool {
	return unicode.In(r, unicode.So, unicode.Sm, unicode.Po, unicode.Pd) || r >= '0' && r <= '9' || r == 'ℹ'
}

// invisible are characters that people do not see: control characters, those that change the direction of text, that join or
// select others, that are left out or drawn as nothing, and unassigned ones.
func invisible(r rune) bool {
	return !unicode.IsGraphic(r) || unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector, blank)
}

// blank are letters and symbols that are drawn as nothing and that Unicode does not call ignorable: of Braille, of Khitan, of
// music and of hieroglyphs.
var blank = rangetable.New('\u2800', '\U00016FE4', '\U0001D159', '\U00013441', '\U00013442')

// cut shortens a text to a number of bytes, and ends it with a mark then.
func cut(s string, limit int, mark string) string {
	if len(s) <= limit {
		return s
	}
	end := max(0, limit-len(mark))
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + mark
}
