// Package open opens the database that the configuration names. It is the one place that knows both kinds.
package open

import (
	"context"
	"path/filepath"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/postgres"
	"github.com/clawjail/clawjail/internal/store/sqlite"
)

// Folder is where the embedded database is in the data directory. The control plane's user owns it, and no other user
// can enter it.
const Folder = "database"

// Open opens the PostgreSQL database of a postgres:// URL, or the embedded one in the folder "database" of the data
// directory when the URL is empty. The schema is brought up to date. The caller closes the store.
func Open(ctx context.Context, databaseURL, dataDir string) (store.Store, error) {
	switch err := CheckURL(databaseURL); {
	case err != nil:
		return nil, err
	case databaseURL == "":
		db, err := sqlite.Open(ctx, filepath.Join(dataDir, Folder))
		if err != nil {
			return nil, err
		}
		return db, nil
	}
	db, err := postgres.Open(ctx, databaseURL)
	if err != nil {
		return nil, err
	}
	return db, nil
}

// CheckURL says what is wrong with the URL of a database, without connecting. Empty is the embedded database.
func CheckURL(databaseURL string) error {
	switch {
	case databaseURL == "":
		return nil
	case !postgres.IsURL(databaseURL):
		return problem.New(problem.BadConfig, "write database: postgres://USER:PASSWORD@HOST/NAME?sslmode=verify-full, or leave it out for the embedded one",
			"database: is not a URL of a PostgreSQL database")
	}
	return postgres.CheckURL(databaseURL)
}
