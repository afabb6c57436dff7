//go:build vm && guests

package vm

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/testenv"
)

// onUnified are the tests of test/k8s that look at what control groups of version 2 do otherwise than those of version 1.
const onUnified = "^(TestAPodOfAClusterIsConfinedAndSaysSo|TestAClaimTakesAPodAndProgramsOutliveTheNodesDaemons|TestAJailThatIsOverItsMemoryEndsWithThatReason)$"

// TestKubernetes has a cluster in a guest, whose control groups are of version 2, which most nodes have. It takes half an hour.
func TestKubernetes(t *testing.T) {
	checks := chosen(t, []check{{name: "runs jails as pods", do: runsPods}})
	g := made(t, guest{suite: "bookworm", kernel: "bookworm", arch: "amd64"})
	m := newMachine(t, g, payload(t, g), clusterParts(t))
	m.more = []string{"-m", "8192"}
	m.do(checks, "", "true")
}

// clusterParts makes a disk of the parts of a cluster, of the test of it, and of what that reads of the repository.
func clusterParts(t *testing.T) string {
	t.Helper()
	repository, dir := testenv.Repository(t), t.TempDir()
	parts, err := exec.Command(filepath.Join(repository, "scripts/k8s.sh")).Output()
	if err != nil {
		t.Fatal(err)
	}
	script := `
cd "$1"
mkdir -p "$2/checkout/test/k8s"
cp -r "$3" "$2/parts"
cp -r --parents go.mod scripts packaging/kubernetes "$2/checkout"
export CGO_ENABLED=0
go build -trimpath -ldflags "-s -w" -o "$2/parts/" ./cmd/clawjail-shim ./test/k8s/smallbrowser/small
go test -c -tags k8s -trimpath -o "$2/k8s.test" ./test/k8s`
	tree := filepath.Join(dir, "tree")
	if err := run("sh", "-euc", script, "sh", repository, tree, strings.TrimSpace(string(parts))); err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(dir, "kubernetes.img")
	if err := disk(image, "kubernetes", tree, "3G"); err != nil {
		t.Fatal(err)
	}
	return image
}

func runsPods(m *machine) {
	m.sh("apt-get update -q && apt-get install -q -y --no-install-recommends busybox-static containernetworking-plugins e2fsprogs ipset iproute2 nftables procps runc")
	m.sh("mkdir /kubernetes && mount LABEL=kubernetes /kubernetes && test $(stat -f -c %T /sys/fs/cgroup) = cgroup2fs")
	m.sh("modprobe -a overlay br_netfilter nf_tables; echo nameserver 127.0.0.1 >/etc/resolv.conf")
	r := m.within(20*time.Minute, "cd /kubernetes/checkout/test/k8s && CI=true CLAWJAIL_TEST_K8S=/kubernetes/parts ../../scripts/alone.sh /kubernetes/k8s.test -test.v -test.timeout 60m -test.run '"+onUnified+"' 2>&1")
	m.t.Logf("%s", tail(r.Stdout))
	if n := strings.Count(string(r.Stdout), "\n--- PASS"); r.Status != 0 || n != strings.Count(onUnified, "|")+1 {
		m.t.Errorf("%d tests passed, and it ended with %d", n, r.Status)
	}
}
