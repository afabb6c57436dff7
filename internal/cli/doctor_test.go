package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Who asks about a cluster is not told about a machine.
func TestADoctorWithoutAClusterSaysSo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "clawjail.yml")
	if err := os.WriteFile(path, []byte("listen: 127.0.0.1:18780\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	status, out, errs := run(t, "", "--config", path, "doctor", "--kubernetes")
	if status == exitDone || out != "" || !strings.Contains(errs, "the configuration names no cluster") || !strings.Contains(errs, "kubernetes.namespace") {
		t.Errorf("it ends with %d: %s%s", status, out, errs)
	}
}
