package template

import (
	"context"
	"path/filepath"

	"github.com/clawjail/clawjail/internal/problem"
)

// Find returns a template, or false where there is none of that name. One that has changed since it was built is there as well, with
// its name alone: the host daemon refuses to make jails of it, and no other one was asked for.
func (s *Store) Find(ctx context.Context, name string) (t Template, there bool, err error) {
	t, err = s.Get(ctx, name)
	switch problem.CodeOf(err) {
	case problem.TemplateMissing:
		return Template{}, false, nil
	case problem.TemplateChanged:
		return Template{Name: name}, true, nil
	}
	return t, err == nil, err
}

// Ensure is Build for a template that is only wanted where there is none. Of several that want it at the same time one builds it, and
// the others wait for that, which they are told by the stage [StageWait].
func (s *Store) Ensure(ctx context.Context, options BuildOptions) (t Template, built bool, err error) {
	if t, there, err := s.Find(ctx, options.Name); err != nil || there {
		return t, false, err
	}
	if s.euid() == 0 { // Build tells everybody else that they may not
		unlock, err := s.lock(ctx) // which makes the folder
		if err != nil {
			return Template{}, false, err
		}
		unlock()
		done, err := lockFile(ctx, filepath.Join(s.dir, firstPrefix+options.Name), func() {
			if options.Progress != nil {
				options.Progress(Progress{Stage: StageWait})
			}
		})
		if err != nil {
			return Template{}, false, err
		}
		defer done()
		if t, there, err := s.Find(ctx, options.Name); err != nil || there {
			return t, false, err
		}
	}
	t, err = s.Build(ctx, options)
	if problem.CodeOf(err) == problem.Conflict { // somebody else has built it, and not by Ensure
		if found, there, findErr := s.Find(ctx, options.Name); findErr == nil && there {
			return found, false, nil
		}
	}
	return t, err == nil, err
}
