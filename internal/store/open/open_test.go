package open_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/open"
	"github.com/clawjail/clawjail/internal/store/postgres"
	"github.com/clawjail/clawjail/internal/store/postgres/pgtest"
	"github.com/clawjail/clawjail/internal/store/sqlite"
)

func use(t *testing.T, databaseURL, dataDir string) store.Store {
	t.Helper()
	s, err := open.Open(t.Context(), databaseURL, dataDir)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	return s
}

func TestWithoutAURLTheDatabaseIsAFileInTheDataDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	if s, ok := use(t, "", dir).(*sqlite.DB); !ok {
		t.Errorf("it is %T", s)
	}
	if _, err := os.Stat(filepath.Join(dir, "database", "clawjail.db")); err != nil {
		t.Error(err)
	}
	// Jails run from the data directory, so its own mode is not the database's to change.
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o711 {
		t.Errorf("the data directory has the mode %v, %v", info.Mode(), err)
	}
}

func TestAURLIsAllThatPostgreSQLNeeds(t *testing.T) {
	dir := t.TempDir()
	if s, ok := use(t, pgtest.Start(t).Database(t), dir).(*postgres.DB); !ok {
		t.Errorf("it is %T", s)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("the data directory has %v, %v", entries, err)
	}
}

func TestWhatIsRefused(t *testing.T) {
	blocked := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ url, dir, code string }{
		{"mysql://a:b@127.0.0.1/c", t.TempDir(), problem.BadConfig},
		{"clawjail.db", t.TempDir(), problem.BadConfig},
		{"postgres://claw:postgres@127.0.0.1/jail", t.TempDir(), problem.BadConfig},
		{"", blocked, problem.Internal},
	} {
		s, err := open.Open(t.Context(), tt.url, tt.dir)
		if s != nil || problem.CodeOf(err) != tt.code {
			t.Errorf("%q: got %v, %v, want the code %s", tt.url, s, err, tt.code)
		}
	}
}
