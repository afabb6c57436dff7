package backup

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/hostd"
)

// markFile is what a restore leaves for the control plane, in its folder: that there was one has to stand in the audit log
// before anything else does, and only the control plane writes that.
const markFile = "restored.json"

// mark is what the audit log is told of a restore.
type mark struct {
	Created  time.Time `json:"created"`
	Restored time.Time `json:"restored"`
	Version  string    `json:"version"`
	// ReplacedSeq and ReplacedHash are the newest row of the log that was replaced, as its last checkpoint has it; zero
	// when there was none of the node. Aside is where it is now.
	ReplacedSeq  int64  `json:"replaced_seq,omitempty"`
	ReplacedHash string `json:"replaced_hash,omitempty"`
	Aside        string `json:"aside,omitempty"`
}

// leaveMark writes the mark of a restore. The files to be replaced are still in their place.
func leaveMark(control string, m Manifest, aside string, c config.Config, now time.Time) error {
	note := mark{Created: m.Created, Restored: now.UTC().Truncate(time.Second), Version: m.Version, Aside: filepath.Base(aside)}
	if aside == "" {
		note.Aside = ""
	} else if path := hostd.CheckpointsPath(c); there(path) {
		for n, err := range checkpoint.ReadFile(path) {
			if err == nil && n.Node == m.Node && n.Seq > note.ReplacedSeq {
				note.ReplacedSeq, note.ReplacedHash = n.Seq, hex.EncodeToString(n.Hash[:])
			}
		}
	}
	data, err := json.Marshal(note)
	if err != nil {
		return err
	}
	return writeNew(filepath.Join(control, markFile), data)
}

func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// Record writes into the audit log that the installation was restored, when it was since the last start. A control plane that
// dies at the wrong moment writes it twice.
func Record(ctx context.Context, log *audit.Log, c config.Config) error {
	path := filepath.Join(hostd.ControlDir(c), markFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read what was restored: %w", err)
	}
	var m mark
	if err := json.Unmarshal(data, &m); err != nil {
		return fmt.Errorf("read what was restored: %w", err)
	}
	fields := audit.Fields{"backup_created": m.Created.Format(time.RFC3339), "restored": m.Restored.Format(time.RFC3339), "version": m.Version}
	if m.ReplacedSeq > 0 {
		fields["replaced_seq"], fields["replaced_hash"] = m.ReplacedSeq, m.ReplacedHash
	}
	if m.Aside != "" {
		fields["aside"] = m.Aside
	}
	if err := log.Event(ctx, audit.Event{Action: audit.ActionRestore, Result: audit.OK, Actor: "root", Detail: audit.NewDetail(fields)}); err != nil {
		return fmt.Errorf("record what was restored: %w", err)
	}
	return os.Remove(path)
}
