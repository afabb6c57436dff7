package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/clawjail/clawjail/internal/testenv"
)

const module = "github.com/clawjail/clawjail/"

// sourceFile is one Go file, with its path from the top of the repository.
type sourceFile struct {
	path  string
	lines int
	ast   *ast.File
}

func (f sourceFile) folder() string { return filepath.ToSlash(filepath.Dir(f.path)) }

func (f sourceFile) test() bool { return strings.HasSuffix(f.path, "_test.go") }

// imports are the paths that the file imports, those of this module without the module's name.
func (f sourceFile) imports() []string {
	out := make([]string, 0, len(f.ast.Imports))
	for _, spec := range f.ast.Imports {
		out = append(out, strings.TrimPrefix(strings.Trim(spec.Path.Value, `"`), module))
	}
	return out
}

// sourceFiles parses every Go file of the repository, for whatever system it is. A file that does not parse is
// reported by the compiler, in better words than ours, so here it is left out.
func sourceFiles(t *testing.T) []sourceFile {
	t.Helper()
	top := testenv.Repository(t)
	parse.Do(func() { parsed, errParse = parseAll(top) })
	if errParse != nil {
		t.Fatal(errParse)
	}
	if len(parsed) < 10 {
		t.Fatalf("found only %d Go files below %s", len(parsed), top)
	}
	return parsed
}

// The files are parsed once for all tests.
var (
	parse    sync.Once
	parsed   []sourceFile
	errParse error
)

func parseAll(top string) (out []sourceFile, err error) {
	err = filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() {
			if path != top && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, data, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil
		}
		relative, err := filepath.Rel(top, path)
		if err != nil {
			return err
		}
		out = append(out, sourceFile{path: relative, lines: strings.Count(string(data), "\n"), ast: file})
		return nil
	})
	return out, err
}

// packageComment says what is wrong with the comments of one package's files; empty is fine.
func packageComment(name string, docs []string) string {
	want := "Package " + name + " "
	if name == "main" {
		want = "Command "
	}
	for _, doc := range docs {
		if strings.HasPrefix(doc, want) {
			return ""
		}
	}
	return "has no package comment that starts with \"" + want + "\""
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	names, docs := map[string]string{}, map[string][]string{}
	for _, f := range sourceFiles(t) {
		if f.test() {
			continue
		}
		names[f.folder()] = f.ast.Name.Name
		docs[f.folder()] = append(docs[f.folder()], f.ast.Doc.Text())
	}
	for folder, name := range names {
		if wrong := packageComment(name, docs[folder]); wrong != "" {
			t.Errorf("%s %s", folder, wrong)
		}
	}
	if packageComment("jail", []string{"", "Jails and more"}) == "" || packageComment("main", []string{"Package main does"}) == "" {
		t.Error("the check accepts a package without a comment")
	}
}

// longest is the most lines of a file that is not a test. A longer one has a second subject, which wants a file of
// its own.
const longest = 600

func tooLong(f sourceFile) bool { return !f.test() && f.lines > longest }

func TestFilesHaveOneSubject(t *testing.T) {
	for _, f := range sourceFiles(t) {
		if tooLong(f) {
			t.Errorf("%s has %d lines; more than %d is two subjects", f.path, f.lines, longest)
		}
	}
	if !tooLong(sourceFile{path: "a.go", lines: longest + 1}) {
		t.Error("the check accepts a file that is too long")
	}
}

// hasInit says whether a file has an init function: code that runs because a package was imported.
func hasInit(file *ast.File) bool {
	for _, decl := range file.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
			return true
		}
	}
	return false
}

func TestNothingHappensOnImport(t *testing.T) {
	for _, f := range sourceFiles(t) {
		if !f.test() && hasInit(f.ast) {
			t.Errorf("%s has an init function: pass the dependency in instead", f.path)
		}
	}
	planted, err := parser.ParseFile(token.NewFileSet(), "", "package p\nfunc init() {}\n", 0)
	if err != nil {
		t.Fatal(err)
	}
	if !hasInit(planted) {
		t.Error("the check does not see an init function")
	}
}
