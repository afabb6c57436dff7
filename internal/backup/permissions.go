package backup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store/open"
	"github.com/clawjail/clawjail/internal/store/sqlite"
)

// grantKeys is the file of the keys that grants and permissions are signed with.
const grantKeys = dataPrefix + "control/grants.key"

// Permissions counts the permissions for accounts in a backup: those that its keys have signed are good, and the others void.
type Permissions struct{ Good, Void int }

// permissions counts those in what was unpacked, by the keys as they were when the backup was made. With renew, a new key takes the place
// of those keys, so that no grant that they have signed is good, and signs the permissions that they have signed.
func permissions(ctx context.Context, dir string, m Manifest, renew bool, now func() time.Time) (p Permissions, err error) {
	path := filepath.Join(dir, filepath.FromSlash(grantKeys))
	before := path
	if renew {
		before = path + ".before"
		if err := os.Rename(path, before); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return p, err
		}
		defer func() { err = errors.Join(err, remove(before)) }()
	}
	if !m.Database.Included {
		return p, nil
	}
	var old, fresh *grant.Keyring
	if there(before) {
		old, err = grant.OpenKeyring(before, func() time.Time { return m.Created })
		if err != nil && problem.CodeOf(err) != problem.BadConfig { // keys that are damaged have signed nothing
			return p, err
		}
	}
	if renew && old != nil {
		if fresh, err = grant.OpenKeyring(path, now); err != nil {
			return p, err
		}
	}
	err = withDatabase(ctx, filepath.Join(dir, "data", open.Folder), func(db *sqlite.DB) (err error) {
		p.Good, p.Void, err = grant.SignAnew(ctx, db, old, fresh)
		return err
	})
	if err != nil {
		err = fmt.Errorf("read the permissions for accounts: %w", err)
	}
	return p, err
}
