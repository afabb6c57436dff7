//go:build linux

package operators

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/test/testkit"
)

// TestDemoShowsRefusalsOfTheGateway runs what README begins with. A refusal that the browser makes by itself, as for port 22, would
// show nothing of the gateway: the demo fails where the answer is not the gateway's, or where its listener was reached.
func TestDemoShowsRefusalsOfTheGateway(t *testing.T) {
	b := testkit.Start(t, instance.Options{Settings: testkit.NoPool})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := b.Command(ctx, "demo", "--output", "out/picture.png")
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	text := string(out)
	if err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	if n := strings.Count(text, "The gateway refused http://"); n != 2 || !strings.Contains(text, "The gateway refused http://127.0.0.1:") {
		t.Errorf("it shows %d refusals:\n%s", n, text)
	}
	if !strings.Contains(text, "nobody has connected to it") || !strings.Contains(text, "Nothing is left") || strings.Contains(text, "ERR_") {
		t.Errorf("it says:\n%s", text)
	}
	files, err := os.ReadDir(cmd.Dir)
	if err != nil || len(files) != 1 || files[0].Name() != "out" {
		t.Errorf("it leaves %v in its folder, %v", files, err)
	}
	picture, err := os.ReadFile(filepath.Join(cmd.Dir, "out", "picture.png"))
	if err != nil || http.DetectContentType(picture) != "image/png" {
		t.Errorf("its picture has %d bytes, %v", len(picture), err)
	}
}
