package hostd

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// notesPerSecond and noteBurst are far above what the audit log has to say: a note a second, or a thousand rows.
	notesPerSecond, noteBurst = 20, 100
	// checkpointReserve is what notes leave free on their disk, for those who need it more.
	checkpointReserve = 64 << 20
)

// checkpoints keeps the control plane's signed notes about its audit log in a file that the control plane can read and
// cannot change. Notes are never taken back, so what bounds them is how fast they come and the disk.
type checkpoints struct {
	file  *checkpoint.File
	dir   string
	limit *rate.Limiter
	now   func() time.Time
}

func openCheckpoints(path string, now func() time.Time, log *slog.Logger) (*checkpoints, error) {
	file, err := checkpoint.OpenFile(path)
	if err != nil {
		return nil, fullDisk(err)
	}
	if !file.Protected() {
		log.Warn("the checkpoints of the audit log can be changed by root: the file system has no append-only files", "file", path)
	}
	return &checkpoints{file: file, dir: filepath.Dir(path), limit: rate.NewLimiter(notesPerSecond, noteBurst), now: now}, nil
}

// append adds one note. A note that it refuses may be sent again later; the audit log's next note covers the one before.
func (c *checkpoints) append(ctx context.Context, note []byte) error {
	if _, err := checkpoint.Parse(note); err != nil {
		return problem.Wrap(err, problem.BadRequest, "both halves of clawjail must be of one version", "the checkpoint is not a note of the audit log")
	}
	if !c.limit.AllowN(c.now(), 1) {
		return problem.New(problem.RateLimited, "send the next one later: it covers this one too",
			"more than %d checkpoints a second came", notesPerSecond)
	}
	if err := c.room(len(note)); err != nil {
		return err
	}
	return fullDisk(c.file.Append(ctx, note))
}

// room refuses a note that the disk has no room for.
func (c *checkpoints) room(size int) error {
	var disk unix.Statfs_t
	if err := unix.Statfs(c.dir, &disk); err != nil {
		return fmt.Errorf("look at the disk of the checkpoints: %w", err)
	}
	// FreeBSD counts below zero where only root has room left.
	if free := int64(disk.Bavail) * int64(disk.Bsize); free-int64(size) < checkpointReserve {
		return problem.New(problem.DiskFull, "free some space: du -xh --max-depth=2 shows who has it",
			"less than %d MiB would be left on the disk of the data directory", checkpointReserve>>20)
	}
	return nil
}

func (c *checkpoints) close() error {
	if err := c.file.Close(); err != nil {
		return fmt.Errorf("close the checkpoints: %w", err)
	}
	return nil
}

// keep is the handler of OpCheckpoint.
func (s *server) keep(ctx context.Context, a checkpointArguments) (any, error) {
	return noResult{}, s.checkpoints.append(ctx, []byte(a.Note))
}

// AppendCheckpoint has a signed note of the audit log appended to a file that only root can write. It is on the disk
// when nil is returned. The codes rate_limited and disk_full mean that a later one may be taken.
func (c *Client) AppendCheckpoint(ctx context.Context, note []byte) error {
	_, err := ask[noResult](ctx, c, OpCheckpoint, checkpointArguments{Note: string(note)})
	return err
}

// Checkpoints is the host daemon as the keeper of the audit log's notes: an audit.Checkpointer.
type Checkpoints struct{ client *Client }

// Checkpoints returns the keeper of the audit log's notes.
func (c *Client) Checkpoints() Checkpoints { return Checkpoints{c} }

// Append is [Client.AppendCheckpoint].
func (c Checkpoints) Append(ctx context.Context, note []byte) error {
	return c.client.AppendCheckpoint(ctx, note)
}
