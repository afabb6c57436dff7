//go:build linux

package agents

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// nodeCache keeps the template node from one run to the next.
const nodeCache = testenv.Cache + "/node"

// cachedNode returns the folder of the template node, with MCP servers of npm. It is built anew when something that goes into it
// has changed, and stays as it is until the test ends.
func cachedNode(t *testing.T) string {
	t.Helper()
	if err := os.MkdirAll(nodeCache, 0o755); err != nil {
		t.Fatal(err)
	}
	clawjail, err := testkit.Program()
	if err != nil {
		t.Fatal(err)
	}
	key := nodeKey(t)
	testenv.Keep(t, "node", func() bool { return nodeIsCurrent(clawjail, key) }, func() { buildNode(t, clawjail, key) })
	return filepath.Join(nodeCache, "templates", "node")
}

// nodeKey stands for what goes into the template.
func nodeKey(t *testing.T) string {
	t.Helper()
	dir, node := testkit.Clients(t)
	sum := sha256.New()
	for _, name := range []string{"package-lock.json", "conformance-server.mjs"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(sum, "%s %d\n%s", name, len(text), text)
	}
	info, err := os.Stat(node)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(sum, "node %d %d %v", info.Size(), info.ModTime().UnixNano(), npmServers)
	return hex.EncodeToString(sum.Sum(nil))
}

// npmServers are the packages in the template.
var npmServers = [...]string{"@modelcontextprotocol/server-everything", "@modelcontextprotocol/server-filesystem"}

func nodeConfig() string { return filepath.Join(nodeCache, "clawjail.yml") }

func nodeIsCurrent(clawjail, key string) bool {
	kept, err := os.ReadFile(filepath.Join(nodeCache, "key"))
	return err == nil && string(kept) == key && exec.Command(clawjail, "--config", nodeConfig(), "template", "verify", "--quick", "node").Run() == nil
}

func buildNode(t *testing.T, clawjail, key string) {
	t.Helper()
	t.Log("building the template node")
	root := filepath.Join(t.TempDir(), "root")
	nodeTemplate(t, root, npmServers[:]...)
	text := "data_dir: " + filepath.Join(nodeCache, "data") + "\ntemplates_dir: " + filepath.Join(nodeCache, "templates") + "\n"
	if err := os.WriteFile(nodeConfig(), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), clawjail, "--config", nodeConfig(), "template", "build", "node", "--from", "dir:"+root, "--replace")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the template node: %v\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(nodeCache, "key"), []byte(key), 0o644); err != nil {
		t.Fatal(err)
	}
}
