package jail

import (
	"path"
	"strings"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/problem"
)

// Bounds of what belongs to an agent's jail.
const (
	MinState, MaxState = 1 << 20, 1 << 40 // bytes
	maxMounts          = 16
	maxMake            = 256
	maxImageName       = 255
)

// ValidAgentName accepts [a-z0-9-]{1,40}: names of agents and tenants become part of paths, labels and volumes.
func ValidAgentName(s string) error {
	if s == "" || len(s) > 40 || strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return problem.New(problem.BadName, "use 1 to 40 characters of a-z, 0-9 and -", "%q cannot be a name", texts.Clip(s, 60))
	}
	return nil
}

// ValidImageName accepts what can be the name of an image: host, path, tag and digest. The engine says what it names.
func ValidImageName(s string) error {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	if s == "" || len(s) > maxImageName || strings.Trim(s, letters+"._-/:@") != "" || strings.IndexByte(letters, s[0]) < 0 {
		return problem.New(problem.BadTemplate, "name it like clawjail/clawbot:latest", "%q cannot be the name of an image", texts.Clip(s, 80))
	}
	return nil
}

// validateSource looks at what the jail is made of.
func (s Spec) validateSource() (errs []error) {
	named := 0
	for _, v := range []string{s.Template, s.Image, s.Root} {
		if v != "" {
			named++
		}
	}
	switch {
	case named > 1:
		errs = append(errs, problem.New(problem.BadRequest, "name one of them", "a jail is made of a template, an image or a folder, not of several"))
	case s.Image != "":
		errs = append(errs, ValidImageName(s.Image))
	case s.Root != "":
		if !validHostPath(s.Root) {
			errs = append(errs, problem.New(problem.BadRequest, "give an absolute path without dot elements", "%q cannot be the root of a jail", texts.Clip(s.Root, 80)))
		}
	default:
		errs = append(errs, ValidTemplateName(s.Template))
	}
	return errs
}

// validateAgent looks at whose the jail is, and what it sees of the host.
func (s Spec) validateAgent() (errs []error) {
	bad := func(hint, format string, a ...any) {
		errs = append(errs, problem.New(problem.BadRequest, hint, format, a...))
	}
	if s.Agent == nil {
		if s.For != "" {
			errs = append(errs, ValidAgentName(s.For))
		}
		if s.Lifetime == LifetimeKeep {
			bad("name the agent", "a jail that is kept must be an agent's")
		}
		if len(s.Mounts) > 0 {
			bad("name the agent", "only the jail of an agent can see folders of the host")
		}
		return errs
	}
	if s.For != "" {
		bad("leave it out", "the tenant of a jail of an agent is the agent's")
	}
	if s.Kind != KindAgent {
		bad("", "a jail of an agent is of the kind %s", KindAgent)
	}
	errs = append(errs, ValidAgentName(s.Agent.Tenant), ValidAgentName(s.Agent.Name))
	if v := s.Agent.State; v != 0 && (v < MinState || v > MaxState) {
		bad("give between 1 MiB and 1 TiB", "/state cannot have %d bytes", v)
	}
	if len(s.Mounts) > maxMounts {
		bad("mount fewer", "there are %d mounts, more than %d", len(s.Mounts), maxMounts)
	}
	seen := map[string]bool{}
	for _, m := range s.Mounts {
		if !validHostPath(m.Source) {
			bad("give an absolute path without dot elements", "%q cannot be mounted", texts.Clip(m.Source, 80))
		}
		if !validTarget(m.Target) {
			bad("mount at /workspace, or below /workspace or /mnt", "nothing can be mounted at %q", texts.Clip(m.Target, 80))
		}
		if seen[m.Target] {
			bad("", "two folders are mounted at %s", texts.Clip(m.Target, 80))
		}
		seen[m.Target] = true
		if len(m.Make) > maxMake {
			bad("", "%d folders are to be made, more than %d", len(m.Make), maxMake)
		}
		for _, name := range m.Make {
			errs = append(errs, ValidAgentName(name))
		}
	}
	return errs
}

// validHostPath accepts absolute, clean paths other than the root.
func validHostPath(p string) bool {
	return path.IsAbs(p) && path.Clean(p) == p && p != "/" && len(p) <= 1024 && !strings.ContainsAny(p, "\x00\n")
}

func validTarget(p string) bool {
	if path.Clean(p) != p || len(p) > 200 || strings.ContainsAny(p, "\x00\n") {
		return false
	}
	return p == WorkspaceDir || strings.HasPrefix(p, WorkspaceDir+"/") || strings.HasPrefix(p, "/mnt/")
}
