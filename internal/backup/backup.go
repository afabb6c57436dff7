// Package backup keeps an installation in one file, and makes an installation of such a file again.
//
// The file is a tar in gzip, which ordinary tools unpack, with manifest.json first: what is in it, with sums. It may be
// encrypted with age. It has the database, the keys of the control plane, the checkpoints and the spill file of the audit
// log, the declarations and tokens of agents, and the installation's id. The vault's key is in it only when that is
// asked for: without it the accounts in the file cannot be read. Everything else that is secret is in it, so it belongs to
// root alone.
//
// A backup that is read again is trusted with nothing: names, order, sizes and sums must be those of the manifest, and whatever the
// file says, each name has its owner. [Restore] has looked at everything before it changes anything, and changes it as
// package swap promises: all or nothing, also when it is killed.
package backup

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store/open"
	"github.com/clawjail/clawjail/internal/store/sqlite"
)

const (
	// Format is the version of the file's layout. A program reads its own and older ones.
	Format = 1
	// maxManifest bounds what is read before anything is known: some ten thousand files.
	maxManifest = 16 << 20
	maxFiles    = 100_000

	manifestName  = "manifest.json"
	dataPrefix    = "data/"
	configName    = "config/clawjail.yml"
	vaultName     = "key/vault.key"
	databaseName  = dataPrefix + open.Folder + "/" + sqlite.FileName
	recordingsDir = "control/sessions"
	stateDir      = "state"
)

// Kinds of databases.
const (
	SQLite   = "sqlite"
	Postgres = "postgres"
)

// Manifest says what is in a backup.
type Manifest struct {
	Format       int       `json:"format"`
	Version      string    `json:"version"` // of the program that wrote it
	Created      time.Time `json:"created"`
	Node         string    `json:"node"`
	Installation string    `json:"installation"`
	Database     Database  `json:"database"`
	Recordings   bool      `json:"recordings"`
	AgentState   bool      `json:"agent_state"`
	VaultKey     bool      `json:"vault_key"`
	Files        []File    `json:"files"`
}

// Database says which database belongs to a backup.
type Database struct {
	Kind     string `json:"kind"`
	Schema   int64  `json:"schema,omitempty"`
	Included bool   `json:"included"`
}

// File is one file of a backup, in the order in which they follow.
type File struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
	Mode   uint32 `json:"mode"` // its permissions
}

// Progress is told what is being done, and how much of it.
type Progress func(stage string, done, total int64)

func (p Progress) say(stage string, done, total int64) {
	if p != nil {
		p(stage, done, total)
	}
}

// Keys open a backup that is encrypted, or close one. The identities are a file of age-keygen.
type Keys struct {
	Recipients []string // age1…, for writing
	Identities io.Reader
	Passphrase string
}

// known are the names that a backup may have, whatever its manifest says. A file that none of them matches is in no backup. Every command
// links them, and few need them.
var known = sync.OnceValue(func() []*regexp.Regexp {
	return []*regexp.Regexp{
		regexp.MustCompile(`^data/installation\.json$`),
		regexp.MustCompile(`^data/control/(audit\.key|audit\.key\.pub|audit\.spill|admin\.key|grants\.key|relay\.key)$`),
		regexp.MustCompile(`^data/control/sessions/[A-Za-z0-9._/-]{1,300}$`),
		regexp.MustCompile(`^data/database/clawjail\.db$`),
		regexp.MustCompile(`^data/audit/checkpoints$`),
		regexp.MustCompile(`^data/agents/[A-Za-z0-9._/-]{1,300}$`),
		regexp.MustCompile(`^data/state/[A-Za-z0-9._-]{1,200}\.img$`),
		regexp.MustCompile(`^config/clawjail\.yml$`),
		regexp.MustCompile(`^key/vault\.key$`),
	}
})

func knownName(name string) bool {
	if !filepath.IsLocal(name) || path.Clean(name) != name {
		return false
	}
	for _, k := range known() {
		if k.MatchString(name) {
			return true
		}
	}
	return false
}

// validate looks at a manifest before anything that it speaks of is read.
func (m Manifest) validate() error {
	bad := func(format string, args ...any) error {
		return damaged(fmt.Errorf(format, args...))
	}
	switch {
	case m.Format > Format:
		return problem.New(problem.Unsupported, "restore it with the version of clawjail that wrote it ("+m.Version+"), or a newer one",
			"the backup has format %d, and this program reads up to %d", m.Format, Format)
	case m.Format < 1, m.Node == "", m.Installation == "":
		return bad("the manifest does not say whose backup it is")
	case len(m.Files) > maxFiles:
		return bad("the manifest names %d files", len(m.Files))
	case m.Database.Kind != SQLite && m.Database.Kind != Postgres:
		return bad("the manifest names a database of kind %q", m.Database.Kind)
	}
	seen := map[string]bool{}
	for _, f := range m.Files {
		switch {
		case !knownName(f.Name):
			return bad("the manifest names the file %q, which no backup has", f.Name)
		case seen[f.Name]:
			return bad("the manifest names the file %q twice", f.Name)
		case f.Size < 0 || f.Size > 1<<46:
			return bad("the file %q is said to have %d bytes", f.Name, f.Size)
		case f.Mode&^0o644 != 0:
			return bad("the file %q is said to have the mode %o", f.Name, f.Mode)
		case len(f.SHA256) != 64:
			return bad("the file %q has no proper sum", f.Name)
		}
		seen[f.Name] = true
	}
	for _, name := range []string{"data/installation.json", "data/control/audit.key"} {
		if !seen[name] {
			return bad("the file %q is missing", name)
		}
	}
	if seen[databaseName] != m.Database.Included || m.Database.Included && m.Database.Kind != SQLite {
		return bad("the manifest contradicts itself about the database")
	}
	if seen[vaultName] != m.VaultKey {
		return bad("the manifest contradicts itself about the vault's key")
	}
	return nil
}

func (m Manifest) total() (sum int64) {
	for _, f := range m.Files {
		sum += f.Size
	}
	return sum
}

func (m Manifest) has(name string) bool {
	for _, f := range m.Files {
		if f.Name == name {
			return true
		}
	}
	return false
}

func damaged(err error) error {
	return problem.Wrap(err, problem.BadRequest, "use another backup; nothing was changed", "the file is damaged, or not a backup")
}

// VaultKeyPath is the file of the vault's key.
func VaultKeyPath(c config.Config) string {
	if c.Vault.KeyFile != "" {
		return c.Vault.KeyFile
	}
	return filepath.Join(hostd.ControlDir(c), "vault.key")
}

// kindOf is the kind of the configured database.
func kindOf(c config.Config) string {
	if c.Database.Reveal() == "" {
		return SQLite
	}
	return Postgres
}

// needWithout refuses to leave the database out without being told so.
func needWithout(told bool, what string) error {
	if told {
		return nil
	}
	return problem.New(problem.Unsupported,
		"use pg_dump and pg_restore for it, at the same time, and say --without-database here", "%s", what)
}

// noSpace gives a full disk its code.
func noSpace(err error) error {
	if err == nil || !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return err
	}
	return problem.Wrap(err, problem.DiskFull, "free some space; nothing was changed", "the disk is full")
}

// exclusively takes the lock of a file or a folder for as long as the file that it returns is open.
func exclusively(dir string) (_ *os.File, taken bool, err error) {
	d, err := os.OpenFile(dir, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, false, err
	}
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		err = errors.Join(err, d.Close())
		return nil, errors.Is(err, unix.EWOULDBLOCK), err
	}
	return d, false, nil
}

// ownFolder refuses what is not a folder that belongs to the user and that only this user can enter.
func ownFolder(d *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(d.Fd()), &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		return problem.New(problem.Conflict, "look what it is, and move it away", "%s is not a folder that clawjail has made", d.Name())
	}
	return nil
}
