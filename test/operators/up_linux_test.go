package operators

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/test/testkit"
)

func TestUpBuildsTheTemplateOfBrowsersBeforeItStartsAnything(t *testing.T) {
	b := testkit.OnANewMachine(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := b.Command(ctx, "up").CombinedOutput()
	said := string(out)
	if err == nil {
		t.Fatalf("it is up without a template:\n%s", said)
	}
	for _, want := range []string{"there is no template browser yet", "bootstrap\n", "error: ", "hint: "} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not say %q:\n%s", want, said)
		}
	}
	if strings.Contains(said, "clawjail is up") || strings.Contains(said, "hostd:") {
		t.Errorf("something was started:\n%s", said)
	}
	entries, err := os.ReadDir(b.Config.TemplatesDir)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".lock") {
			t.Errorf("%s is left of the build", e.Name())
		}
	}
}

func TestUpWithoutBuildingStartsWithWhatIsThere(t *testing.T) {
	b := testkit.OnANewMachine(t)
	b.Up() // with --no-build
	if said := b.Log(); strings.Contains(said, "bootstrap") || !strings.Contains(said, "sudo clawjail template build browser") {
		t.Errorf("it began to build, or does not say what to do next:\n%s", said)
	}
	if _, err := b.Run(t.Context(), "session", "open", "--no-build"); err == nil || !strings.Contains(err.Error(), "clawjail template build browser") {
		t.Errorf("a session without a template: %v", err)
	}
}
