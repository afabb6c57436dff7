package agents

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/clawjail/clawjail/internal/jail"
)

// Whatever stands in the file of a declaration: it is read as one that is valid and says the same when it is written again,
// or not at all.
func FuzzDeclaration(f *testing.F) {
	k := kept("bot", "exit")
	for _, d := range []declaration{
		{Version: declarationVersion, Kept: k, Generation: 3},
		{Version: declarationVersion, Kept: k, Dropping: &jail.DropOptions{KeepLog: true}, Containers: true},
		{Version: declarationVersion + 1, Kept: k},
	} {
		data, err := json.Marshal(d, options())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"version":1,"spec":{"agent":{"tenant":"default","name":"../x"}}}`))
	f.Add([]byte(`null`))
	dir := f.TempDir()
	store, err := openFiles(filepath.Join(dir, "agents"), slog.New(slog.DiscardHandler))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = store.close() })
	id := jail.Agent{Tenant: "default", Name: "bot"}
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, "agents", "bot.json"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := store.declared(id)
		if err != nil {
			return
		}
		if d.Key() != "bot" || Validate(d.Kept) != nil {
			t.Fatalf("%s was read as the declaration of %s", data, d.Key())
		}
		if err := store.declare(d); err != nil {
			t.Fatal(err)
		}
		again, err := store.declared(id)
		if err != nil || again.Generation != d.Generation || !sameSpec(again.Spec, d.Spec) {
			t.Fatalf("%s became %+v, %v", data, again, err)
		}
	})
}

// The key of a file is read back as the agent whose key it is, and nothing else is.
func FuzzKey(f *testing.F) {
	for _, s := range []string{"bot", "acme.bot", "default.bot", "a.b.c", "", ".", "../x", "UP"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, key string) {
		a, ok := parseKey(key)
		if ok && (a.Key() != key || jail.ValidAgentName(a.Name) != nil || jail.ValidAgentName(a.Tenant) != nil) {
			t.Errorf("%q was read as %+v", key, a)
		}
	})
}
