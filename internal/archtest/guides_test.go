package archtest

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/testenv"
)

// declared are the names of all packages, as package.Name and package.Type.Method.
func declared(t *testing.T) (packages, names map[string]bool) {
	t.Helper()
	packages, names = map[string]bool{}, map[string]bool{}
	for _, f := range sourceFiles(t) {
		if f.test() {
			continue
		}
		pkg := f.ast.Name.Name
		packages[pkg] = true
		for _, decl := range f.ast.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				name := d.Name.Name
				if d.Recv != nil {
					name = receiver(d.Recv.List[0].Type) + "." + name
				}
				names[pkg+"."+name] = true
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch s := spec.(type) {
					case *ast.TypeSpec:
						names[pkg+"."+s.Name.Name] = true
					case *ast.ValueSpec:
						for _, n := range s.Names {
							names[pkg+"."+n.Name] = true
						}
					}
				}
			}
		}
	}
	return packages, names
}

func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

var (
	aName = regexp.MustCompile(`^[a-z][a-z0-9]*(\.[A-Za-z]\w*){1,2}$`)
	aPath = regexp.MustCompile(`^(internal|cmd|test|docs|scripts|packaging|examples|bench)/[\w./-]+$`)
)

// missingName says whether a word in backticks names something of the repository that is not there.
func missingName(top, word string, packages, names map[string]bool) (about, missing bool) {
	if aPath.MatchString(word) {
		_, err := os.Stat(filepath.Join(top, filepath.FromSlash(word)))
		return true, err != nil
	}
	if pkg, _, _ := strings.Cut(word, "."); aName.MatchString(word) && packages[pkg] {
		return true, !names[word]
	}
	return false, false
}

func TestNamesInGuidesExist(t *testing.T) {
	top := testenv.Repository(t)
	packages, names := declared(t)
	found := 0
	for _, page := range []string{"ARCHITECTURE.md", "CONTRIBUTING.md"} {
		text, err := os.ReadFile(filepath.Join(top, page))
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range quoted.FindAllStringSubmatch(strings.ReplaceAll(string(text), "```", ""), -1) {
			about, missing := missingName(top, match[1], packages, names)
			if about {
				found++
			}
			if missing {
				t.Errorf("%s: there is no %s", page, match[1])
			}
		}
	}
	for word, want := range map[string]bool{"session.Service.Open": false, "session.Service.Opened": true, "jail.Steps": false, "jail.Stairs": true,
		"internal/session/open.go": false, "internal/session/nothing.go": true} {
		if _, missing := missingName(top, word, packages, names); missing != want {
			t.Errorf("the look says that %s is missing: %t", word, missing)
		}
	}
	if found < 40 {
		t.Errorf("%d names were found", found)
	}
}
