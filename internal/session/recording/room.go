package recording

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"strings"
	"sync"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
)

const (
	// fileCost is what a file counts at least, so that many small ones do not use up what a disk has for its list of files.
	fileCost = 16 << 10
	// block is what sizes of files are rounded up to.
	block = 4 << 10
	// newCost is what a recording counts before its first step: a folder, its description, and the list of its steps.
	newCost = 3 * fileCost
	// lastRoom bounds what is left of the disk for others: a twentieth of it, and a GiB at most.
	lastRoom = 1 << 30
)

// room is how much of the disk recordings take, and whose they are.
type room struct {
	dir  string
	last int64 // what they leave of the disk
	gate *quota.Gate

	mu  sync.Mutex
	all map[string]taken // by path
}

// taken is what one recording takes.
type taken struct {
	quota.Holder
	bytes int64
}

func newRoom(o Options) (*room, error) {
	size, _, err := quota.Disk(o.Dir)
	if err != nil {
		return nil, err
	}
	whole := cmp.Or(int64(o.Quotas.Recordings), size/4)
	return &room{dir: o.Dir, last: min(lastRoom, size/20), all: map[string]taken{},
		gate: quota.NewGate(quota.GateOptions{Kind: quota.Recordings(), Whole: whole, Quotas: o.Quotas, Tenants: o.Tenants})}, nil
}

// costOf is what a file of a size counts.
func costOf(size int64) int64 { return max(fileCost, (size+block-1)/block*block) }

// take counts n more bytes of a recording, if there is room for them, and for some more.
func (r *room) take(path string, of quota.Holder, n, more int64) error {
	_, free, err := quota.Disk(r.dir)
	if err != nil {
		return unwritable(err)
	}
	if free-n-more < r.last {
		return problem.New(problem.DiskFull, "free some space: du -xh --max-depth=2 shows who has it",
			"the recording would leave less than %d MiB free on the disk", r.last>>20)
	}
	if err := r.gate.TakeOf(of, n, n+more); err != nil {
		return err
	}
	r.note(path, of, n)
	return nil
}

// add counts n more bytes, or fewer, whatever room there is.
func (r *room) add(path string, of quota.Holder, n int64) {
	r.gate.Add(of, n)
	r.note(path, of, n)
}

func (r *room) note(path string, of quota.Holder, n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.all[path]
	t.Holder, t.bytes = of, t.bytes+n
	r.all[path] = t
}

// remove counts a recording no more.
func (r *room) remove(path string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(path)
}

func (r *room) drop(path string) {
	t := r.all[path]
	delete(r.all, path)
	r.gate.Give(t.Holder, t.bytes)
}

// only forgets recordings that are not among some.
func (r *room) only(paths map[string]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for path := range r.all {
		if !paths[path] {
			r.drop(path)
		}
	}
}

// find counts a recording of an earlier process.
func (r *room) find(root *os.Root, path string, m Meta) error {
	r.mu.Lock()
	_, known := r.all[path]
	r.mu.Unlock()
	if known {
		return nil
	}
	files, err := fs.ReadDir(root.FS(), path)
	if err != nil {
		return err
	}
	total := int64(fileCost)
	for _, f := range files {
		info, err := f.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		total += costOf(info.Size())
	}
	of := m.holder()
	of.Tenant, _, _ = strings.Cut(path, "/") // of half a recording nothing else is known
	r.add(path, of, total)
	return nil
}
