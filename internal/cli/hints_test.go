package cli

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// naming finds commands as hints and help write them: after a colon, in backquotes, or behind sudo.
var naming = regexp.MustCompile("(?:: |`|sudo )clawjail ([a-z][a-z-]*(?: [a-z][a-z-]*)*)")

// exists says whether words are a command, perhaps with arguments behind it.
func exists(words string) bool {
	cmd, rest, err := New("v1.2.3").Find(strings.Fields(words))
	return err == nil && cmd.HasParent() && (!cmd.HasSubCommands() || len(rest) == 0)
}

func TestCommandsThatHintsNameExist(t *testing.T) {
	found := 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(data)) {
			if strings.HasPrefix(strings.TrimSpace(line), "//") {
				continue
			}
			for _, match := range naming.FindAllStringSubmatch(line, -1) {
				if strings.HasPrefix(match[1], "is ") {
					continue // prose
				}
				found++
				if !exists(match[1]) {
					t.Errorf("%s: there is no command clawjail %s", path, match[1])
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 30 || exists("sesion ls") || exists("session lst") || !exists("session close s_1") {
		t.Errorf("%d were found, and the look does not know a command from none", found)
	}
}
