package house

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/testenv"
)

func TestTheContainersImageIsPinnedAndItsFilesAreThere(t *testing.T) {
	file := packaging(t, "container", "Dockerfile")
	// A dated name: Debian gives it once. What has been corrected since comes with apt-get.
	if !regexp.MustCompile(`(?m)^ARG BASE=debian:[a-z]+-20[0-9]{6}-slim$`).MatchString(file) || !strings.Contains(file, "\nFROM ${BASE}\n") {
		t.Error("the base of the image is not pinned")
	}
	// packages.sh writes what is copied, by names of nfpm's.
	if copied := regexp.MustCompile(`(?m)^(?:COPY|ADD) .*$`).FindAllString(file, -1); len(copied) != 1 || !strings.HasPrefix(copied[0], "COPY out/packages/clawjail_*_${ARCH}.deb ") {
		t.Errorf("it copies %q", copied)
	}
	if script := packaging(t, "packages.sh"); !strings.Contains(script, "out=${2:-out/packages}") {
		t.Error("the packages are not written to out/packages")
	}
	compose := packaging(t, "container", "compose.yaml")
	for _, key := range []string{"dockerfile", "context"} {
		found := regexp.MustCompile(key + `: (\S+)`).FindStringSubmatch(compose)
		if found == nil {
			t.Fatalf("compose.yaml has no %s", key)
		}
		below := ""
		if key == "context" {
			below = "packaging/container"
		}
		if _, err := os.Stat(filepath.Join(testenv.Repository(t), below, found[1])); err != nil {
			t.Errorf("compose.yaml: %s: %v", key, err)
		}
	}
}
