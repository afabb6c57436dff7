package clawbots

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/testenv"
)

func exampleFile(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testenv.Repository(t), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// switchedOn is a file with its "#key:" lines switched on.
func switchedOn(text string) string {
	text = regexp.MustCompile(`(?m)^( *)#([a-z_]+:)`).ReplaceAllString(text, "$1$2")
	return regexp.MustCompile(`(?m)^ *template: clawbot\n`).ReplaceAllString(text, "") // image is switched on in its place
}

func TestTheExamplesParse(t *testing.T) {
	agents := mustParse(t, exampleFile(t, "examples/clawbots.yml")).Agents
	var got []string
	for _, a := range agents {
		got = append(got, a.Name+" "+string(a.Sharing))
		if a.Template != "" || a.Image != "" {
			t.Errorf("%s works on one driver only", a.Name)
		}
		if a.Workspace != "" && !strings.HasPrefix(a.Workspace, testDir+"/workspaces/") {
			t.Errorf("%s has the workspace %s", a.Name, a.Workspace)
		}
	}
	if want := "hello isolated, lookout isolated, clerk dedicated, writer shared, reader shared"; strings.Join(got, ", ") != want {
		t.Errorf("got %s", strings.Join(got, ", "))
	}
	for _, text := range []string{exampleFile(t, "clawbots.yml.example"), switchedOn(exampleFile(t, "clawbots.yml.example"))} {
		if f := mustParse(t, text); len(f.Agents) != 2 {
			t.Errorf("got %d agents", len(f.Agents))
		}
	}
}

// keysOfTheParser are all keys that the source of this package asks for.
func keysOfTheParser(t testing.TB) map[string]bool {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]bool{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range regexp.MustCompile(`(?:m\.(?:Value|Values|Map|Maps|Mixed)\(|f\.names\(m, |const key = )"([a-z_]+)"`).FindAllStringSubmatch(string(source), -1) {
			keys[found[1]] = true
		}
	}
	if len(keys) < 30 {
		t.Fatalf("found only %d keys in the source", len(keys))
	}
	return keys
}

func TestTheExampleHasEveryKey(t *testing.T) {
	text := switchedOn(exampleFile(t, "clawbots.yml.example")) + "template:"
	for key := range keysOfTheParser(t) {
		if key == "deny" {
			continue // shown as a text
		}
		if !regexp.MustCompile(`(?m)(^ *|[{ ])` + key + `:`).MatchString(text) {
			t.Errorf("clawbots.yml.example does not show %s", key)
		}
	}
}

func TestTheExamplesNameTheirSchema(t *testing.T) {
	for name, schema := range map[string]string{"examples/clawbots.yml": "../packaging/clawbots.schema.json", "clawbots.yml.example": "packaging/clawbots.schema.json"} {
		first, _, _ := strings.Cut(exampleFile(t, name), "\n")
		if first != "# yaml-language-server: $schema="+schema {
			t.Errorf("%s begins with %q", name, first)
		}
		if _, err := os.Stat(filepath.Join(testenv.Repository(t), filepath.Dir(name), schema)); err != nil {
			t.Error(err)
		}
	}
}
