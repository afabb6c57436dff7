package clawbots

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/config/yamldoc"
	"github.com/clawjail/clawjail/internal/jail"
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

// keysOfTheParser are all keys of a file.
func keysOfTheParser() map[string]bool {
	keys := map[string]bool{"clawbots": true, "host": true, "deny": true} // of the file and of a rule, which no field is called like
	for _, of := range []any{Agent{}, Account{}, Tool{}} {
		yamldoc.Walk(reflect.ValueOf(of), func(path string, _ reflect.Value, _ reflect.StructTag) {
			for key := range strings.SplitSeq(path, ".") {
				keys[key] = true
			}
		})
	}
	return keys
}

func TestTheExampleHasEveryKey(t *testing.T) {
	text := switchedOn(exampleFile(t, "clawbots.yml.example")) + "template:"
	for key := range keysOfTheParser() {
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

func TestTheLimitsAreThoseOfJails(t *testing.T) {
	bounds := map[string][2]float64{
		"limits.memory": {jail.MinMemory, jail.MaxMemory}, "limits.cpu": {jail.MinMilliCPU / 1000., jail.MaxMilliCPU / 1000.},
		"limits.tasks": {jail.MinTasks, jail.MaxTasks}, "limits.tmp": {jail.MinDisk, jail.MaxDisk}, "limits.state": {jail.MinState, jail.MaxState},
		"limits.files": {jail.MinFiles, jail.MaxFiles}, "ttl": {float64(jail.MinWallClock), float64(jail.MaxWallClock)},
	}
	yamldoc.Walk(reflect.ValueOf(Agent{}), func(path string, at reflect.Value, tags reflect.StructTag) {
		b, has := bounds[path]
		for n, good := range map[float64]bool{b[0]: true, b[1]: true, b[0] * 0.9: false, b[1] * 1.1: false} {
			if has && config.Within(reflect.ValueOf(n).Convert(at.Type()), tags) != good {
				t.Errorf("%s of %v: good is not %v", path, n, good)
			}
		}
		delete(bounds, path)
	})
	if len(bounds) > 0 {
		t.Errorf("there are no %v", bounds)
	}
}
