package archtest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/testenv"
)

// strangers are words that must not be in a file of the repository: paths and hosts of the machines that it was
// written on mean nothing to a reader. They are written in two halves, so that this file passes its own test.
var strangers = []string{
	"/work" + "/", "/root" + "/go", "/tmp" + "/briefs",
	"proxy." + "golang.org", "registry." + "npmjs.org", "pypi" + ".org", "files." + "pythonhosted.org",
	"DESIGN" + ".md", "DESIGN" + " §", "browsers" + ".md", "sandboxes" + ".md",
}

func strangersIn(data []byte) []string {
	var out []string
	for _, word := range strangers {
		if bytes.Contains(data, []byte(word)) {
			out = append(out, word)
		}
	}
	return out
}

// repositoryFiles are the files that git has or would take.
func repositoryFiles(t *testing.T) []string {
	t.Helper()
	top := testenv.Repository(t)
	// A test that runs as root looks at a checkout of somebody else, which git refuses unless told otherwise.
	cmd := exec.CommandContext(t.Context(), testenv.Tool(t, "git"),
		"-c", "safe.directory="+top, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = top
	out, err := cmd.Output()
	if err != nil {
		testenv.Missing(t, "git checkout", "run the tests in a clone: "+err.Error())
	}
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
}

func TestFilesSpeakOfNothingStrange(t *testing.T) {
	top := testenv.Repository(t)
	read := 0
	for _, name := range repositoryFiles(t) {
		data, err := os.ReadFile(filepath.Join(top, name))
		if os.IsNotExist(err) {
			continue // deleted, and not yet in a commit
		}
		if err != nil {
			info, statErr := os.Stat(filepath.Join(top, name))
			if statErr == nil && info.IsDir() {
				continue // a link to a folder
			}
			t.Fatal(err)
		}
		if bytes.IndexByte(data, 0) >= 0 {
			continue // not text
		}
		read++
		for _, word := range strangersIn(data) {
			t.Errorf("%s has %q", name, word)
		}
	}
	if read < 20 {
		t.Errorf("read only %d files", read)
	}
	if len(strangersIn([]byte("see /work"+"/main"))) == 0 || len(strangersIn([]byte("/workspace/x"))) != 0 {
		t.Error("the check does not know a strange word from an own one")
	}
}
