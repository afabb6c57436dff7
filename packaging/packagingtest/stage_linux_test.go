package packagingtest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestEveryFileIsInstalledOnceAndPagesFindWhatTheyName stages what packages and `make install` do, with empty programs and manual pages.
func TestEveryFileIsInstalledOnceAndPagesFindWhatTheyName(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"programs/clawjail", "programs/clawjail-spawn", "programs/clawjail-shim", "manual/man1/clawjail.1", "manual/completions/clawjail", "manual/completions/_clawjail", "manual/completions/clawjail.fish"} {
		stand(t, filepath.Join(dir, name), "")
	}
	real, err := exec.LookPath("install")
	if err != nil {
		t.Fatal(err)
	}
	stand(t, filepath.Join(dir, "bin", "install"), "echo \"$4\"\nexec "+real+" \"$@\"\n")
	cmd := exec.CommandContext(t.Context(), "sh", "packaging/stage.sh", "install")
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"), "DESTDIR="+filepath.Join(dir, "root"), "PREFIX=/usr",
		"PROGRAMS="+filepath.Join(dir, "programs"), "MANUAL="+filepath.Join(dir, "manual"))
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(errors.Join(err, errors.New(string(out))))
	}
	places := strings.Fields(string(out))
	slices.Sort(places)
	for i, place := range places[1:] {
		if place == places[i] {
			t.Errorf("%s is put there twice", place)
		}
	}
	doc := filepath.Join(dir, "root", "usr", "share", "doc", "clawjail")
	for _, name := range []string{"clawbots.yml.example", "packaging/clawbots.schema.json"} {
		want, err := os.ReadFile(filepath.Join("../..", name))
		if got, err2 := os.ReadFile(filepath.Join(doc, name)); err != nil || err2 != nil || string(got) != string(want) {
			t.Errorf("%s is not installed: %v, %v", name, err, err2)
		}
	}
	// Pictures, sources, tests and measurements are in the checkout alone.
	elsewhere := regexp.MustCompile(`^(docs/screenshots|internal|test|bench)/`)
	links := 0
	for _, pattern := range []string{"*.md", "docs/*.md", "*.example", "examples/*.yml", "examples/*/*.md", "examples/*/*.yml"} {
		pages, err := filepath.Glob(filepath.Join(doc, pattern))
		if err != nil || len(pages) == 0 {
			t.Fatalf("%s: %v, %v", pattern, pages, err)
		}
		for _, page := range pages {
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			for _, match := range regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)|(?m)^# yaml-language-server: \$schema=(\S+)$`).FindAllStringSubmatch(string(text), -1) {
				if strings.HasSuffix(page, ".md") && match[2] != "" {
					continue // an example of a page, of somebody's own file
				}
				links++
				path := filepath.Join(filepath.Dir(page), match[1]+match[2])
				name, err := filepath.Rel(doc, path)
				if _, missing := os.Stat(path); err != nil || missing != nil && !elsewhere.MatchString(name) {
					t.Errorf("%s names %s, which is not installed", page, match[1]+match[2])
				}
			}
		}
	}
	if links < 100 {
		t.Errorf("%d links were found", links)
	}
}
