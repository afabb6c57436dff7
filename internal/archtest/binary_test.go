package archtest

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/testenv"
)

// forbidden must not be linked into the program, not even by something that it imports.
var forbidden = []struct{ path, why string }{
	{"k8s.io/client-go", "it is larger than all the rest; the Kubernetes driver speaks HTTP"},
	{"github.com/opencontainers/runc", "the runtime is executed, and not linked: its process is what is trusted"},
	{"github.com/playwright-community", "CDP is spoken over our own pipe"},
	{"gorm.io", "SQL is written by hand, and tested on each database"},
	{"entgo.io", "SQL is written by hand, and tested on each database"},
	{"github.com/open-policy-agent", "the policy is a table that a person can read"},
	{"github.com/google/cel-go", "the policy is a table that a person can read"},
	{"github.com/mattn/go-sqlite3", "it needs cgo"},
	{"testing", "helpers of tests stay in tests"},
}

// dependency is what go list says about a package.
type dependency struct {
	ImportPath string
	Standard   bool
	CgoFiles   []string
}

// objection says why a dependency must not be in the program; empty is fine.
func objection(d dependency) string {
	for _, f := range forbidden {
		if d.ImportPath == f.path || strings.HasPrefix(d.ImportPath, f.path+"/") {
			return f.why
		}
	}
	if !d.Standard && len(d.CgoFiles) > 0 {
		return "the program links no C, so that one file runs everywhere"
	}
	return ""
}

// programs are the packages to look at: the commands, or all that is not for tests while there is no command yet.
func programs(t *testing.T) []string {
	t.Helper()
	if _, err := os.Stat(filepath.Join(testenv.Repository(t), "cmd")); err == nil {
		return []string{"./cmd/..."}
	}
	folders := map[string]bool{}
	for _, f := range sourceFiles(t) {
		if !f.test() && !testOnly(f.folder()) {
			folders["./"+f.folder()] = true
		}
	}
	var out []string
	for folder := range folders {
		out = append(out, folder)
	}
	return out
}

func TestProgramLinksNothingForbidden(t *testing.T) {
	// With cgo on, go list says which packages would use C if they could.
	args := append([]string{"list", "-e", "-deps", "-json=ImportPath,Standard,CgoFiles"}, programs(t)...)
	cmd := exec.CommandContext(t.Context(), testenv.Tool(t, "go"), args...)
	cmd.Dir = testenv.Repository(t)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	seen := 0
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; seen++ {
		var d dependency
		if err := decoder.Decode(&d); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if why := objection(d); why != "" {
			t.Errorf("the program links %s: %s", d.ImportPath, why)
		}
	}
	if seen < 50 {
		t.Errorf("go list named only %d packages", seen)
	}
}

func TestForbiddenDependenciesAreSeen(t *testing.T) {
	for _, bad := range []dependency{
		{ImportPath: "k8s.io/client-go/rest"}, {ImportPath: "github.com/opencontainers/runc/libcontainer"},
		{ImportPath: "testing", Standard: true}, {ImportPath: "example.com/c", CgoFiles: []string{"c.go"}},
	} {
		if objection(bad) == "" {
			t.Errorf("%s is accepted", bad.ImportPath)
		}
	}
	for _, good := range []dependency{
		{ImportPath: "net", Standard: true, CgoFiles: []string{"cgo.go"}}, {ImportPath: "github.com/opencontainers/runtime-spec/specs-go"},
	} {
		if why := objection(good); why != "" {
			t.Errorf("%s is refused: %s", good.ImportPath, why)
		}
	}
}
