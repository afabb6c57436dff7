package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strings"
	"testing"
)

// vague is the beginning of a sentence, or of a part behind a colon or semicolon, whose subject is a pronoun: "who asks waits",
// "nobody reads it", "What is kept goes on". A reader has to guess which program or person is meant.
var vague = regexp.MustCompile(`(?:^|[.:;] | - )((?:Who|What|Nobody|Whoever|Whatever|who|whoever|nobody) [a-z]+[^.:;]*)`)

// vagueIn are the sentences in the comments of a file whose subject is who, what, nobody, whoever or whatever. The first word
// of a comment does not count where it is the name of something that the file declares.
func vagueIn(file *ast.File) (out []string) {
	names := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			names[n.Name.Name] = true
		case *ast.TypeSpec:
			names[n.Name.Name] = true
		case *ast.ValueSpec:
			for _, name := range n.Names {
				names[name.Name] = true
			}
		case *ast.Field:
			for _, name := range n.Names {
				names[name.Name] = true
			}
		}
		return true
	})
	for _, comment := range file.Comments {
		text := strings.TrimSpace(comment.Text())
		if first, rest, _ := strings.Cut(text, " "); names[first] {
			text = rest
		}
		for paragraph := range strings.SplitSeq(text, "\n\n") {
			for _, found := range vague.FindAllStringSubmatch(strings.ReplaceAll(paragraph, "\n", " "), -1) {
				out = append(out, found[1])
			}
		}
	}
	return out
}

func TestSentencesNameTheirSubject(t *testing.T) {
	for _, f := range sourceFiles(t) {
		if f.test() {
			continue
		}
		for _, sentence := range vagueIn(f.ast) {
			t.Errorf("%s: the subject of a sentence in a comment is who, what, nobody, whoever or whatever: name the caller, the client, the process or "+
				"the person: %s", f.path, sentence)
		}
	}

	planted, err := parser.ParseFile(token.NewFileSet(), "", `// Package p is planted. Whoever reads it learns nothing.
package p

// Who is a caller, who may be gone: what it says counts.
type Who struct {
	At int // nobody knows; Whatever
	// of a session:
	// who opened it.
}
`, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	if found := vagueIn(planted); len(found) != 3 {
		t.Errorf("the check finds %q", found)
	}
}
