package archtest

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
	// A dated name: Debian gives it once. Later corrections come with apt-get.
	if !regexp.MustCompile(`(?m)^ARG BASE=debian:[a-z]+-20[0-9]{6}-slim$`).MatchString(file) || !strings.Contains(file, "\nFROM ${BASE}\n") {
		t.Error("the base of the image is not pinned")
	}
	// packages.sh writes what is copied, by names of nfpm's.
	copied := regexp.MustCompile(`(?m)^(?:COPY|ADD) (\S+) .*$`).FindAllStringSubmatch(file, -1)
	if len(copied) < 1 || copied[0][1] != "out/packages/clawjail_*_${ARCH}.deb" {
		t.Fatalf("it copies %q", copied)
	}
	for _, c := range copied[1:] {
		if _, err := os.Stat(filepath.Join(testenv.Repository(t), c[1])); err != nil {
			t.Errorf("it copies %s: %v", c[1], err)
		}
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

// The file of the container names each right that it asks for, with the part that needs it, there and on its page.
func TestTheContainerAsksForLittle(t *testing.T) {
	compose, page := packaging(t, "container", "compose.yaml"), documents(t)["docs/container.md"]
	if lax := laxities(compose); len(lax) > 0 {
		t.Errorf("compose.yaml: %q", lax)
	}
	if lax := laxities("privileged: true\nnetwork_mode: host\npid: host\n"); len(lax) != 4 {
		t.Errorf("of a container that is the machine itself the look finds %q", lax)
	}
	_, list, _ := strings.Cut(compose, "cap_add:\n")
	names := regexp.MustCompile(`(?m)^      - ([A-Z_]+)`).FindAllStringSubmatch(list, -1)
	for _, n := range names {
		if !strings.Contains(page, "| `"+n[1]+"` |") {
			t.Errorf("docs/container.md does not say what needs %s", n[1])
		}
	}
	if len(names) == 0 {
		t.Error("compose.yaml names no capability")
	}
	// The control plane believes the network's gateway, and nobody else.
	gateway := regexp.MustCompile(`gateway: ([0-9.]+)`).FindStringSubmatch(compose)
	if gateway == nil || !strings.Contains(packaging(t, "container", "clawjail.yml"), "\nbehind_proxy: ["+gateway[1]+"/32]\n") {
		t.Error("clawjail.yml of the image names another gateway than compose.yaml")
	}
}

// laxities are what makes a container a part of the machine.
func laxities(compose string) (out []string) {
	for _, wrong := range []string{"privileged", "network_mode", "pid: host", "cgroup: host", "/dev:/dev", "docker.sock"} {
		if strings.Contains(compose, wrong) {
			out = append(out, wrong)
		}
	}
	if !strings.Contains(compose, "cap_drop: [ALL]") {
		out = append(out, "capabilities that nobody names")
	}
	return out
}
