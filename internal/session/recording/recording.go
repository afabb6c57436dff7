// Package recording keeps what was done in sessions, for people to look at: steps, and the pictures that go with them.
//
// A [Shelf] is the folder of all recordings, a [Tape] the recording of one session:
//
//	<folder>/<tenant>/<session>/meta.json    whose session it is
//	                            steps.jsonl  a line when a step begins, a line when it has ended
//	                            <n>.png      the picture of step n
//
// It promises:
//
//   - A transient tape keeps the last fifty pictures and goes with its session, or with the next start. An audit tape keeps
//     everything, for as long as the shelf keeps things.
//   - The beginning of a step is on the disk before Begin returns. When an audit tape is full, Begin is an error, so
//     that a step that cannot be recorded is not done.
//   - All recordings together, and those of one tenant and of one agent, take no more room than their share, and none takes the
//     last room of the disk: the audit log and the database need it. A transient tape then keeps less; Begin of an audit tape is an error.
//   - Names cannot lead out of the folder, and nothing but recordings is ever touched in it.
//   - The text of a page is data: [Shelf.WritePage] escapes all of it.
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

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
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

func (m Meta) holder() quota.Holder { return quota.Holder{Tenant: m.Tenant, Agent: m.Agent} }

const (
	metaFile  = "meta.json"
	stepsFile = "steps.jsonl"
	// lookAgain is how soon a shelf without room looks again for what others have removed.
	lookAgain = 10 * time.Second
)

// The names of folders. Nothing else in the shelf is ever touched.
var (
	tenantName  = regexp.MustCompile(`^[a-z0-9-]{1,40}$`)
	sessionName = regexp.MustCompile(`^s_[a-z0-9]{16}$`)
)

// Shelf is the folder of all recordings. Its methods may be called at the same time.
type Shelf struct {
	Options
	room *room

	folders sync.Mutex // held while a tenant's folder is made or removed

	mu     sync.Mutex
	open   map[string]*Tape // by session
	purged time.Time
}

// Options are a shelf's. All but Tenants are required.
type Options struct {
	Dir  string
	Keep time.Duration // how long recordings for audit are kept
	Now  func() time.Time
	// Quotas say how much room the recordings may take. Tenants is how many tenants there are now; nil is one.
	Quotas  config.Quotas
	Tenants func() int
}

// Open makes the folder, or takes one over and removes transient recordings that an earlier process has left. It does not remove
// recordings that are too old: the clock may be wrong while the machine starts.
func Open(o Options) (*Shelf, error) {
	if o.Keep <= 0 || o.Now == nil || o.Quotas.Tenant <= 0 || o.Quotas.Agent <= 0 {
		return nil, errors.New("recordings: how long they are kept, their quotas, or the clock, is missing")
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of recordings: %w", err)
	}
	room, err := newRoom(o)
	if err != nil {
		return nil, err
	}
	s := &Shelf{Options: o, room: room, open: map[string]*Tape{}}
	return s, s.sweep(transient)
}

// Tidy removes what is too old.
func (s *Shelf) Tidy() error { return s.sweep(s.expired) }

// due says whether the last sweep is some time ago.
func (s *Shelf) due(after time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Now().Sub(s.purged) >= after
}

// Held is how much room recordings take: all of them, those of a tenant and of an agent.
func (s *Shelf) Held(asks quota.Holder) []quota.Amount { return s.room.gate.Amounts(asks) }

// Close removes what does not outlive the process.
func (s *Shelf) Close() error { return s.sweep(transient) }

// sweep removes the recordings of which remove says so, and counts the others that no process has counted yet. A recording that others
// have removed is not counted any more. live says that its session is recorded.
func (s *Shelf) sweep(remove func(root *os.Root, path string, m Meta, live bool) (bool, error)) error {
	s.mu.Lock()
	s.purged = s.Now()
	s.mu.Unlock()
	found := map[string]bool{}
	err := s.each(func(root *os.Root, path string) error {
		found[path] = true
		m, err := readMeta(root, path)
		if err != nil {
			m.Kind = Audit // half a recording, of a process that was killed in its first moment
		}
		live := s.Live(m)
		yes, err := remove(root, path, m, live)
		switch {
		case err != nil:
			return err
		case yes:
			if err := root.RemoveAll(path); err != nil {
				return err
			}
			s.room.remove(path)
		case !live:
			return s.room.find(root, path, m)
		}
		return nil
	})
	s.mu.Lock()
	for _, t := range s.open {
		found[t.path()] = true
	}
	s.mu.Unlock()
	s.room.only(found)
	if err != nil {
		return fmt.Errorf("remove recordings: %w", err)
	}
	return nil
}

// transient says whether a recording goes with its process.
func transient(_ *os.Root, _ string, m Meta, _ bool) (bool, error) { return m.Kind != Audit, nil }

// expired says whether a recording is too old, or of a session that ended and not for audit.
func (s *Shelf) expired(root *os.Root, path string, m Meta, live bool) (bool, error) {
	if live {
		return false, nil
	}
	young, err := s.young(root, path, m)
	return m.Kind != Audit || !young, err
}

// young says whether a recording is not too old. It counts from the last that is known of it: it may have begun before the machine's
// clock was right.
func (s *Shelf) young(root *os.Root, path string, m Meta) (bool, error) {
	info, err := root.Stat(path)
	if err != nil {
		return false, err
	}
	last := info.ModTime()
	if m.Created.After(last) {
		last = m.Created
	}
	if m.Ended != nil && m.Ended.After(last) {
		last = *m.Ended
	}
	return s.Now().Sub(last) < s.Keep, nil
}

// each calls do with the path of every recording. It is no error that one, or the last one of a tenant, goes meanwhile.
func (s *Shelf) each(do func(root *os.Root, path string) error) error {
	err := s.in(func(root *os.Root) error {
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
			errs = append(errs, ignoreMissing(err))
			for _, e := range sessions {
				if e.IsDir() && sessionName.MatchString(e.Name()) {
					errs = append(errs, ignoreMissing(do(root, t.Name()+"/"+e.Name())))
				}
			}
			s.removeTenant(root, t.Name())
		}
		return errors.Join(errs...)
	})
	if _, gone := os.Stat(s.Dir); errors.Is(err, fs.ErrNotExist) && errors.Is(gone, fs.ErrNotExist) {
		return nil
	}
	return err
}

// ignoreMissing is an error, other than that something is not there.
func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// removeTenant removes the folder of a tenant that has no recordings.
func (s *Shelf) removeTenant(root *os.Root, tenant string) {
	s.folders.Lock()
	defer s.folders.Unlock()
	_ = root.Remove(tenant) // that it has some is the error
}

// in opens the folder and does something in it. Names cannot lead out of it. The error is fs.ErrNotExist when somebody has
// removed all of it.
func (s *Shelf) in(do func(*os.Root) error) error {
	root, err := os.OpenRoot(s.Dir)
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

// Bytes is how much room a recording takes.
func (s *Shelf) Bytes(m Meta) int64 {
	s.room.mu.Lock()
	defer s.room.mu.Unlock()
	return s.room.all[m.Tenant+"/"+m.Session].bytes
}

// Live says whether the session of a recording is still recorded.
func (s *Shelf) Live(m Meta) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open[m.Session] != nil
}

// Remove removes a recording that Find or List has returned. The code is conflict while the session is recorded.
func (s *Shelf) Remove(m Meta) error {
	if s.Live(m) {
		return problem.New(problem.Conflict, "close the session first: clawjail session close "+m.Session, "session %s is still recorded", m.Session)
	}
	path := m.Tenant + "/" + m.Session
	if err := s.in(func(root *os.Root) error {
		err := root.RemoveAll(path)
		s.removeTenant(root, m.Tenant)
		return err
	}); err != nil {
		return fmt.Errorf("remove the recording of session %s: %w", m.Session, err)
	}
	s.room.remove(path)
	return nil
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
