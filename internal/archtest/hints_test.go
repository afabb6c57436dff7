package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/cli"
	"github.com/clawjail/clawjail/internal/template"
)

// aText is a text of the code, in which NAME stands for what is filled in. A hint is what somebody is told to do.
type aText struct {
	text string
	hint bool
}

// verbs are those of fmt.
var verbs = regexp.MustCompile(`%[-+# 0]*[0-9]*(?:\.[0-9]+)?[a-zA-Z]`)

// textsOf are the texts of a file.
func textsOf(path string) (out []aText, err error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	hints := map[ast.Expr]bool{}
	mark := func(name string, values ...ast.Expr) {
		if strings.HasSuffix(strings.ToLower(name), "hint") {
			for _, v := range values {
				hints[v] = true
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.CallExpr:
			if fun, ok := n.Fun.(*ast.SelectorExpr); ok {
				if of, ok := fun.X.(*ast.Ident); ok && of.Name == "problem" {
					if at := map[string]int{"New": 1, "Wrap": 2}[fun.Sel.Name]; at > 0 && at < len(n.Args) {
						hints[n.Args[at]] = true
					}
				}
			}
			for i, arg := range n.Args[:max(0, len(n.Args)-1)] { // "hint", text in a line of the log
				if key, ok := arg.(*ast.BasicLit); ok && key.Value == `"hint"` {
					hints[n.Args[i+1]] = true
				}
			}
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok {
				mark(key.Name, n.Value)
			}
		case *ast.AssignStmt:
			for i, to := range n.Lhs {
				if to, ok := to.(*ast.Ident); ok && i < len(n.Rhs) {
					mark(to.Name, n.Rhs[i])
				}
			}
		case *ast.ValueSpec:
			for i, v := range n.Values {
				mark(n.Names[i].Name, v)
			}
		case *ast.BinaryExpr, *ast.BasicLit:
			if text := textOf(n.(ast.Expr)); text != "" {
				out = append(out, aText{text, hints[n.(ast.Expr)] || file.Name.Name == "problem"})
			}
			return false
		}
		return true
	})
	return out, nil
}

// textOf is what an expression says, as far as it stands there.
func textOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BinaryExpr:
		if e.Op != token.ADD {
			return ""
		}
		return textOf(e.X) + textOf(e.Y)
	case *ast.ParenExpr:
		return textOf(e.X)
	case *ast.BasicLit:
		if e.Kind != token.STRING {
			return ""
		}
		text, err := strconv.Unquote(e.Value)
		if err != nil {
			return ""
		}
		return verbs.ReplaceAllString(text, "NAME")
	}
	return "NAME"
}

// commandsOf finds commands as hints and help write them: in backquotes, behind a colon, or behind sudo.
func commandsOf(text string) (out []string) {
	for _, match := range regexp.MustCompile("`(?:sudo )?clawjail ([^`]*)`|(?:: (?:sudo )?|sudo )clawjail ([a-z][^`;|>]*)").FindAllStringSubmatch(text, -1) {
		line := match[1]
		if line == "" {
			line = regexp.MustCompile(`[,.:](?:\s|$)|\)|\s\(|\n`).Split(match[2], 2)[0]
		}
		if !strings.HasPrefix(line, "is ") { // prose
			out = append(out, line)
		}
	}
	return out
}

// wordsOf are the words of a command line, without quotes.
func wordsOf(line string) []string {
	words := regexp.MustCompile(`(?:'[^']*'|"[^"]*"|[^\s'"])+`).FindAllString(line, -1)
	for i, w := range words {
		words[i] = strings.Trim(w, `'"`)
	}
	return words
}

// lacks says what keeps the words of a command from being one that can be given as it stands. Names that are to be filled in
// count as filled in.
func lacks(root *cobra.Command, line string) string {
	words := wordsOf(line)
	cmd, rest, err := root.Find(words)
	if err != nil || cmd == root {
		return "there is no such command"
	}
	var args []string
	for i := 0; i < len(rest); i++ {
		w := rest[i]
		name, long := strings.CutPrefix(w, "--")
		switch {
		case w == "--":
			args, i = append(args, rest[i+1:]...), len(rest)
		case long:
			name, _, given := strings.Cut(name, "=")
			flag := cmd.Flags().Lookup(name)
			if flag == nil {
				flag = cmd.InheritedFlags().Lookup(name)
			}
			if flag == nil && name != "help" {
				return "it has no flag " + w
			}
			if flag != nil && flag.NoOptDefVal == "" && !given {
				if i++; i == len(rest) {
					return w + " needs a value"
				}
			}
		case len(w) == 2 && w[0] == '-' && cmd.Flags().ShorthandLookup(w[1:]) != nil:
			if cmd.Flags().ShorthandLookup(w[1:]).NoOptDefVal == "" {
				i++
			}
		default:
			args = append(args, w)
		}
	}
	if cmd.HasSubCommands() {
		if len(args) > 0 {
			return "there is no such command"
		}
		return ""
	}
	// Commands ask where the -- was.
	if at := slices.Index(rest, "--"); at >= 0 {
		behind := len(rest) - at - 1
		if err := cmd.Flags().Parse(slices.Insert(slices.Clone(args), len(args)-behind, "--")); err != nil {
			return err.Error()
		}
	}
	if err := cmd.ValidateArgs(args); err != nil {
		return err.Error()
	}
	return ""
}

func TestCommandsThatHintsNameCanBeGiven(t *testing.T) {
	root := cli.New("v1.2.3")
	hints, others := 0, 0
	for _, top := range []string{"internal", "cmd"} {
		err := filepath.WalkDir(filepath.Join("..", "..", top), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			texts, err := textsOf(path)
			if err != nil {
				return err
			}
			for _, text := range texts {
				for _, line := range commandsOf(text.text) {
					if text.hint {
						hints++
						if wrong := lacks(root, line); wrong != "" {
							t.Errorf("%s: a hint says clawjail %s: %s", path, line, wrong)
						}
						continue
					}
					others++
					if wrong := commandProblem(root, " "+line); wrong != "" {
						t.Errorf("%s: %s", path, wrong)
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if hints < 60 || others < 30 {
		t.Errorf("%d hints and %d other texts with commands were found", hints, others)
	}
}

// A command of an [health.Attention] is what people copy: it is a program of ours that can be given so, or one of systemd.
func TestCommandsOfAttentionsCanBeGiven(t *testing.T) {
	root := cli.New("v1.2.3")
	commands := []string{
		template.Template{Name: "browser", Source: "debian:bookworm", Packages: map[string]string{"nodejs": "18"}}.Again(),
		template.Template{Name: "clawbot", Source: "debian:bookworm"}.Again(),
	}
	collect := func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr, *ast.BasicLit:
			commands = append(commands, textOf(n.(ast.Expr)))
			return false
		}
		return true
	}
	files, err := filepath.Glob("../health/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if pair, ok := n.(*ast.KeyValueExpr); ok {
				if key, ok := pair.Key.(*ast.Ident); ok && key.Name == "Command" {
					ast.Inspect(pair.Value, collect)
				}
			}
			return true
		})
	}
	for _, command := range commands {
		line := strings.TrimPrefix(command, "sudo ")
		if strings.HasPrefix(line, "systemctl ") || strings.HasPrefix(line, "journalctl ") {
			continue
		}
		line, ours := strings.CutPrefix(line, "clawjail ")
		if wrong := lacks(root, line); !ours || wrong != "" {
			t.Errorf("somebody is told %q: %s", command, wrong)
		}
	}
	if len(commands) < 12 {
		t.Errorf("%d commands were found: %q", len(commands), commands)
	}
}

// The search for mistakes in hints finds them.
func TestHintsAreLookedThrough(t *testing.T) {
	root := cli.New("v1.2.3")
	for line, right := range map[string]bool{
		"session ls": true, "sesion ls": false, "session close NAME --wait": true, "session show": false, "session close NAME --wiat": false,
		"rules add allow": false, "rules add allow NAME": true, "agent exec NAME -- ls -l": true, "status NAME": false, "secret set NAME --origin": false,
	} {
		if got := lacks(root, line); (got == "") != right {
			t.Errorf("clawjail %s: %q", line, got)
		}
	}
	got := commandsOf("do it: sudo clawjail up, or `clawjail status` (see it: clawjail session ls --all). It says: clawjail is well; sudo clawjail agent show NAME; then more")
	want := []string{"up", "status", "session ls --all", "agent show NAME"}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
