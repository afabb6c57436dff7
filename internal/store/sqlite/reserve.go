package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/clawjail/clawjail/internal/quota"
)

// moveWAL moves pages that no transaction reads any more from the WAL into the file. It does not block.
const moveWAL = `PRAGMA wal_checkpoint(PASSIVE)`

const (
	// reserveChunk is what is written at once: the WAL is moved into the file in between, and does not grow.
	reserveChunk = 4 << 20
	// walRoom is what the WAL grows to before it is moved into the file, and some more.
	walRoom = (autoCheckpoint + 200) * (4096 + 24)
)

// Reserve makes sure that the given number of bytes can still be written to the database when the disk is full: it keeps free pages
// in its file, and room for its WAL. It takes no more than a quarter of what is free. A second call replaces what was used
// up since, when less than half is left.
func (db *DB) Reserve(ctx context.Context, bytes int64) error {
	_, room, err := quota.Disk(db.path)
	if err != nil {
		return fmt.Errorf("reserve room for the database: %w", err)
	}
	quarter := room / 4
	if quarter >= walRoom {
		if err := db.reserveWAL(); err != nil {
			return fmt.Errorf("reserve room for the database: %w", err)
		}
	}
	var free, size int64
	if err := db.write.QueryRowContext(ctx, `SELECT freelist_count, page_size FROM pragma_freelist_count(), pragma_page_size()`).Scan(&free, &size); err != nil {
		return failure(ctx, "reserve room for the database", err)
	}
	if bytes = min(bytes, quarter); free*size >= bytes/2 {
		return nil
	}
	// The table may be there from a process that was killed. It is never read.
	const what, remove = "reserve room for the database", `DROP TABLE IF EXISTS reserve`
	if err = db.add(ctx, what, remove); err == nil {
		err = db.add(ctx, what, `CREATE TABLE reserve (room BLOB)`)
	}
	for left := bytes; left > 0 && err == nil; left -= reserveChunk {
		err = db.add(ctx, what, `INSERT INTO reserve VALUES (zeroblob($1))`, min(left, reserveChunk))
	}
	if err = errors.Join(err, db.add(ctx, what, remove)); err != nil {
		return err
	}
	// The pages are in the WAL so far. In the file they take room.
	_, err = db.write.ExecContext(ctx, moveWAL)
	return failure(ctx, "reserve room for the database", err)
}

// reserveWAL takes the room of the WAL on the disk. It keeps that until the database is closed: it is never made shorter.
// The file has no locks of SQLite's, which closing it here would end.
func (db *DB) reserveWAL() error {
	f, err := os.OpenFile(db.path+"-wal", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(allocate(f, walRoom), f.Close())
}
