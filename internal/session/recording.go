package session

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strconv"
)

const (
	// shotsMost and shotsBytes bound the screenshots that are kept of one session: the last ones.
	shotsMost  = 50
	shotsBytes = 64 << 20
)

// recordings is the folder of screenshots, one folder per session. It holds nothing of sessions that have ended, and
// nothing of a control plane that has.
type recordings struct{ dir string }

// newRecordings makes the folder, or empties the one that an earlier control plane has left.
func newRecordings(dir string) (*recordings, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of recordings: %w", err)
	}
	r := &recordings{dir: dir}
	return r, r.removeAll()
}

// recorded is what a session's folder is called. Nothing else in the folder is ever touched.
var recorded = regexp.MustCompile(`^s_[a-z0-9]{16}$`)

func (r *recordings) removeAll() error {
	entries, err := os.ReadDir(r.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		if recorded.MatchString(e.Name()) {
			errs = append(errs, r.remove(e.Name()))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove recordings: %w", err)
	}
	return nil
}

// in opens the folder and does something in it. Names cannot lead out of it.
func (r *recordings) in(do func(*os.Root) error) error {
	root, err := os.OpenRoot(r.dir)
	if err != nil {
		return err
	}
	return errors.Join(do(root), root.Close())
}

func (r *recordings) remove(id string) error {
	return r.in(func(root *os.Root) error { return root.RemoveAll(id) })
}

func (s Shot) path(id string) string { return id + "/" + strconv.Itoa(s.Number) + "." + s.Format }

func (r *recordings) write(id string, shot Shot, data []byte) error {
	return r.in(func(root *os.Root) error {
		if err := root.Mkdir(id, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		err := root.WriteFile(shot.path(id), data, 0o600)
		if err != nil {
			err = errors.Join(err, root.RemoveAll(shot.path(id))) // half a picture is none
		}
		return err
	})
}

func (r *recordings) forget(id string, shot Shot) error {
	return r.in(func(root *os.Root) error { return root.RemoveAll(shot.path(id)) })
}

func (r *recordings) read(id string, shot Shot) (data []byte, err error) {
	err = r.in(func(root *os.Root) error {
		data, err = root.ReadFile(shot.path(id))
		return err
	})
	return data, err
}

// keepShot keeps a screenshot of a session. That it could not be kept, on a full disk, is no reason not to give it to
// the caller who asked for it: this recording is a convenience.
func (s *Service) keepShot(r *session, format string, data []byte) {
	r.recording.Lock()
	defer r.recording.Unlock()
	s.mu.Lock()
	kept := append([]Shot(nil), r.shots...)
	open := r.state == StateReady
	s.mu.Unlock()
	if !open || len(data) > shotsBytes {
		return
	}
	r.lastShot++
	shot := Shot{Number: r.lastShot, At: s.Now(), Format: format, Bytes: len(data)}
	total := shot.Bytes
	for _, k := range kept {
		total += k.Bytes
	}
	var errs []error
	for len(kept) >= shotsMost || total > shotsBytes {
		errs = append(errs, s.shots.forget(r.id, kept[0]))
		total -= kept[0].Bytes
		kept = kept[1:]
	}
	if err := s.shots.write(r.id, shot, data); err != nil {
		errs = append(errs, err)
	} else {
		kept = append(kept, shot)
	}
	s.mu.Lock()
	r.shots = kept
	s.mu.Unlock()
	if err := errors.Join(errs...); err != nil {
		s.Log.Warn("keep a screenshot", "session", r.id, "error", err)
	}
}
