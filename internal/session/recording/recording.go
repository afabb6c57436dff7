// Package recording keeps what was done in sessions, for people to look at: steps, and the pictures that go with them.
//
// A [Shelf] is the folder of all recordings, a [Tape] the recording of one session:
//
//	<folder>/<tenant>/<session>/meta.json    whose session it is
//	                            steps.jsonl  a line when a step begins, a line when it has ended
//	                            <n>.png      the picture of step n
//
// What is promised:
//
//   - A transient tape keeps the last fifty pictures and goes with its session, or with the next start. An audit tape keeps
//     everything, for as long as the shelf keeps things.
//   - The beginning of a step is on the disk before Begin returns. Of an audit tape that is full, Begin is an error, so
//     that what cannot be recorded is not done.
//   - Names cannot lead out of the folder, and nothing but recordings is ever touched in it.
//   - What a page said is data: [Shelf.WritePage] escapes all of it.
package recording

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

// Kind says how much a tape keeps, and for how long.
type Kind string

// The kinds.
const (
	Transient Kind = "transient"
	Audit     Kind = "audit"
)

// Meta is whose session a recording is of.
type Meta struct {
	Session string `json:"session"`
	Tenant  string `json:"tenant"`
	// Agent is the id of the agent that opened it; empty when no agent did.
	Agent    string    `json:"agent,omitempty"`
	OpenedBy string    `json:"opened_by"`
	Label    string    `json:"label,omitempty"`
	Mode     string    `json:"credential_mode"`
	Browser  string    `json:"browser"`
	Kind     Kind      `json:"record"`
	Created  time.Time `json:"created_at"`
	// Ended and Cause are set when the session has ended in an orderly way.
	Ended *time.Time `json:"ended_at,omitempty"`
	Cause string     `json:"cause,omitempty"`
}

const (
	metaFile  = "meta.json"
	stepsFile = "steps.jsonl"
	// purgeEvery is how often a shelf should be tidied.
	purgeEvery = time.Hour
)

// The names of folders. Nothing else in the shelf is ever touched.
var (
	tenantName  = regexp.MustCompile(`^[a-z0-9-]{1,40}$`)
	sessionName = regexp.MustCompile(`^s_[a-z0-9]{16}$`)
)

// Shelf is the folder of all recordings. Its methods may be called at the same time.
type Shelf struct {
	dir  string
	keep time.Duration
	now  func() time.Time

	folders sync.Mutex // held while a tenant's folder is made or removed

	mu     sync.Mutex
	open   map[string]*Tape // by session
	purged time.Time
}

// Open makes the folder, or takes one over: what an earlier process has left of transient recordings goes, and so does
// what is older than keep.
func Open(dir string, keep time.Duration, now func() time.Time) (*Shelf, error) {
	if keep <= 0 || now == nil {
		return nil, errors.New("recordings: how long they are kept, or the clock, is missing")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of recordings: %w", err)
	}
	s := &Shelf{dir: dir, keep: keep, now: now, open: map[string]*Tape{}}
	return s, s.sweep(true)
}

// Tidy removes what is too old, once an hour at most.
func (s *Shelf) Tidy() error {
	s.mu.Lock()
	due := s.now().Sub(s.purged) >= purgeEvery
	s.mu.Unlock()
	if !due {
		return nil
	}
	return s.sweep(false)
}

// Close removes what does not outlive the process.
func (s *Shelf) Close() error { return s.sweep(true) }

// sweep removes recordings that are too old; with transient also all that are not for audit.
func (s *Shelf) sweep(transient bool) error {
	s.mu.Lock()
	s.purged = s.now()
	s.mu.Unlock()
	var errs []error
	err := s.each(func(root *os.Root, path string) error {
		m, err := readMeta(root, path)
		age := s.now().Sub(m.Created)
		if err != nil {
			// Half a recording, of a process that was killed in its first moment. Its folder says how old it is.
			info, statErr := root.Stat(path)
			if statErr != nil {
				return statErr
			}
			age = s.now().Sub(info.ModTime())
			m.Kind = Audit
		}
		s.mu.Lock()
		_, live := s.open[m.Session]
		s.mu.Unlock()
		if m.Kind == Audit && age < s.keep || live && !transient {
			return nil
		}
		errs = append(errs, root.RemoveAll(path))
		return nil
	})
	if err := errors.Join(append(errs, err)...); err != nil {
		return fmt.Errorf("remove recordings: %w", err)
	}
	return nil
}

// each calls do with the path of every recording.
func (s *Shelf) each(do func(root *os.Root, path string) error) error {
	return s.in(func(root *os.Root) error {
		var errs []error
		tenants, err := fs.ReadDir(root.FS(), ".")
		if err != nil {
			return err
		}
		for _, t := range tenants {
			if !t.IsDir() || !tenantName.MatchString(t.Name()) {
				continue
			}
			sessions, err := fs.ReadDir(root.FS(), t.Name())
			errs = append(errs, err)
			for _, e := range sessions {
				if e.IsDir() && sessionName.MatchString(e.Name()) {
					errs = append(errs, do(root, t.Name()+"/"+e.Name()))
				}
			}
			s.removeTenant(root, t.Name())
		}
		return errors.Join(errs...)
	})
}

// removeTenant removes the folder of a tenant that has no recordings.
func (s *Shelf) removeTenant(root *os.Root, tenant string) {
	s.folders.Lock()
	defer s.folders.Unlock()
	_ = root.Remove(tenant) // that it has some is the error
}

// in opens the folder and does something in it. Names cannot lead out of it.
func (s *Shelf) in(do func(*os.Root) error) error {
	root, err := os.OpenRoot(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // somebody has removed all of it
	}
	if err != nil {
		return err
	}
	return errors.Join(do(root), root.Close())
}

func readMeta(root *os.Root, path string) (m Meta, err error) {
	text, err := root.ReadFile(path + "/" + metaFile)
	if err != nil {
		return Meta{}, err
	}
	err = json.Unmarshal(text, &m)
	return m, err
}

// Find is the recording of a session. The code is not_found when there is none, or not any more.
func (s *Shelf) Find(session string) (Meta, error) {
	all, err := s.list(func(m Meta) bool { return m.Session == session })
	if err != nil {
		return Meta{}, err
	}
	if len(all) == 0 {
		return Meta{}, problem.New(problem.NotFound, "recordings of transient sessions go with the session; open it with --record audit to keep them",
			"there is no recording of session %q", clip(session, 40))
	}
	return all[0], nil
}

// List returns what there is of a tenant, or of all when it is empty, oldest first.
func (s *Shelf) List(tenant string) ([]Meta, error) {
	return s.list(func(m Meta) bool { return tenant == "" || m.Tenant == tenant })
}

func (s *Shelf) list(want func(Meta) bool) (out []Meta, err error) {
	err = s.each(func(root *os.Root, path string) error {
		// One that cannot be read is one that is being made or removed.
		if m, err := readMeta(root, path); err == nil && path == m.Tenant+"/"+m.Session && want(m) {
			out = append(out, m)
		}
		return nil
	})
	slices.SortFunc(out, func(a, b Meta) int { return a.Created.Compare(b.Created) })
	return out, err
}
