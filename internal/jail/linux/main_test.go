//go:build linux

package linux

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/jail/jailtest/inside"
)

// tinyTemplate is made by the first test that needs it, and removed after the last.
var tinyTemplate struct {
	sync.Mutex
	dir string // holds tiny/rootfs
}

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if tinyTemplate.dir != "" {
			if err := os.RemoveAll(tinyTemplate.dir); err != nil {
				println("remove the template of the tests:", err.Error())
				code = max(code, 1)
			}
		}
		os.Exit(code)
	}))
}

// templates returns a folder of templates with one in it: tiny, of a shell and the probe.
func templates(t testing.TB) string {
	t.Helper()
	tinyTemplate.Lock()
	defer tinyTemplate.Unlock()
	if tinyTemplate.dir == "" {
		dir, err := os.MkdirTemp("", "clawjail-templates-")
		if err != nil {
			t.Fatal(err)
		}
		tinyTemplate.dir = dir
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		root := filepath.Join(dir, "tiny", rootfsFolder)
		if err := os.MkdirAll(root, 0o755); err != nil {
			t.Fatal(err)
		}
		inside.Template(t, root)
	}
	return tinyTemplate.dir
}
