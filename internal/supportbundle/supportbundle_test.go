package supportbundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/config"
)

// unpacked are the files of a bundle.
func unpacked(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	z, err := gzip.NewReader(r)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for all := tar.NewReader(z); ; {
		h, err := all.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(all)
		if err != nil {
			t.Fatal(err)
		}
		out[strings.TrimPrefix(h.Name, "clawjail-support/")] = string(text)
	}
}

func TestABundleIsMadeOfWhatThereIsAndSaysWhatIsMissing(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(dir, "admin.key")
	if err := os.WriteFile(key, []byte("dear diary of keys\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	c.DataDir, c.TemplatesDir = dir, dir
	c.Database = "postgres://user:open%20sesame%20now@db.example.org/clawjail"
	c.MCPServers = []config.MCPServer{{Name: "scribe", Command: []string{"/bin/notes", "--as=ali baba"}, Env: map[string]string{"X": "forty thieves"}}}
	m := Machine{Config: c, Version: "v1", Lines: 10, Secrets: []string{key}, Systemd: filepath.Join(dir, "none"), Logs: []string{filepath.Join(dir, "no.log")},
		Command: func(context.Context, string, ...string) (string, error) { return "", errors.New("there is none") }}
	sources := append(m.Sources(), JSON("said.json", "", func(context.Context) (any, error) {
		return []string{"dear diary of keys", "open sesame now", "forty thieves", "ali baba"}[:3], nil
	}))
	var to bytes.Buffer
	made, err := Write(t.Context(), &to, Options{Version: "v1", Sources: sources, Mask: NewMask(m.Known(), m.Names(), false), Now: func() time.Time { return time.Unix(0, 0) }})
	if err != nil {
		t.Fatal(err)
	}
	files := unpacked(t, &to)
	for name, text := range files {
		for _, secret := range []string{"diary", "sesame", "thieves", "ali baba", "example.org"} {
			if strings.Contains(text, secret) {
				t.Errorf("%s has %q:\n%s", name, secret, text)
			}
		}
		if strings.HasSuffix(name, ".json") && !json.Valid([]byte(text)) {
			t.Errorf("%s is no JSON:\n%s", name, text)
		}
	}
	if !strings.Contains(files["configuration.json"], "/bin/notes") || !strings.Contains(files["versions.json"], `"clawjail": "v1"`) || files["said.json"] == "" {
		t.Errorf("%v", files)
	}
	missing := map[string]string{}
	for _, f := range made.Files {
		missing[f.Name] = f.Missing
	}
	for _, name := range []string{"things.json", "firewall.txt", "units.txt", "services.txt", "log-control.txt", "log-hostd.txt", "log-file-1.txt"} {
		if missing[name] == "" || files[name] != "" {
			t.Errorf("of %s it says %q", name, missing[name])
		}
	}
	if missing["configuration.json"] != "" || !strings.Contains(files["manifest.json"], "systemd does not run here") {
		t.Errorf("the manifest is\n%s", files["manifest.json"])
	}
}

func TestABundleEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	source := Source{"a", "", func(context.Context) ([]byte, error) { cancel(); return nil, nil }}
	if _, err := Write(ctx, io.Discard, Options{Sources: []Source{source}, Mask: testMask(), Now: time.Now}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
