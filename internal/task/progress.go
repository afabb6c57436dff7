package task

import "slices"

// maxShown bounds the steps of a task that are kept while it runs.
const maxShown = 50

// Progress is a task that is being done.
type Progress struct {
	Goal  string
	Model string
	Steps []Step // the newest first
}

// Running is the task that is being done in a session, if there is one. It checks no right: the caller shows the goal and the
// names of what was clicked only to those who may see the browser.
func (s *Service) Running(session string) (Progress, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.running[session]
	p.Steps = slices.Clone(p.Steps)
	return p, ok
}

// note keeps a step of a task that is being done.
func (s *Service) note(t *running, step Step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.running[step.Session]
	p.Goal, p.Model = t.plan.goal, t.model.name
	p.Steps = slices.Insert(p.Steps[:min(len(p.Steps), maxShown-1)], 0, step)
	s.running[step.Session] = p
}

// over forgets the task of a session.
func (s *Service) over(session string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.running, session)
}
