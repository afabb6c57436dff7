package identity

import "sync"

// denied are keys, operators and agents that were cut off, as long as the database does not say so: while it is being
// written, and after it could not be. Cutting off must not wait for a disk that is full.
type denied struct {
	mu  sync.Mutex
	ids map[string]bool
}

func (d *denied) set(id string, to bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !to {
		delete(d.ids, id)
		return
	}
	if d.ids == nil {
		d.ids = map[string]bool{}
	}
	d.ids[id] = true
}

// has says whether a principal, or its key, was cut off.
func (d *denied) has(p Principal) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ids[p.ID] || d.ids[p.TokenID]
}

// cutOff ends everything that matches, whether that can be written or not. A caller whose end could not be written is refused by this
// process all the same, until it can be, or until it is stopped.
func (s *Service) cutOff(id string, match func(Principal) bool, write func() error) error {
	s.denied.set(id, true)
	err := write()
	s.connections.cut(match)
	if err == nil {
		s.denied.set(id, false)
	}
	return err
}
