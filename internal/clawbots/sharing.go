package clawbots

import (
	"fmt"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/jail"
)

// decide checks what only the whole file shows: agents that share folders, and entries that contradict each other.
func (f *file) decide() {
	byName := map[string]int{}
	byPath := map[string][]int{}
	for i, a := range f.agents {
		if a.Name != "" {
			if first, twice := byName[a.Name]; twice {
				f.flaw(f.fields[i]+".name", "give each agent a name of its own", "%.60q is the name of the agent on line %d already", a.Name, f.agents[first].Line)
			} else {
				byName[a.Name] = i
			}
		}
		if a.Workspace != "" {
			byPath[a.Workspace] = append(byPath[a.Workspace], i)
		}
	}
	for i := range f.agents {
		a := &f.agents[i]
		sharers := byPath[a.Workspace]
		switch {
		case a.Workspace == "":
			a.Sharing = Isolated
		case len(sharers) == 1:
			a.Sharing = Dedicated
		default:
			a.Sharing = Shared
			a.Siblings = f.siblings(i, sharers)
		}
	}
	f.nested(byPath)
}

// maxSiblings bounds what is said of them; an agent of a file with hundreds does not need all.
const maxSiblings = 20

func (f *file) siblings(of int, sharers []int) []string {
	var out []string
	for _, i := range sharers {
		if i != of && len(out) < maxSiblings {
			out = append(out, f.agents[i].Name)
		}
	}
	slices.Sort(out)
	return out
}

// nested refuses a workspace that is inside another's: what its agent has for itself would be in sight of the other.
func (f *file) nested(byPath map[string][]int) {
	var paths []string
	for p := range byPath {
		paths = append(paths, p+"/")
	}
	slices.Sort(paths) // so that what is inside a folder follows it
	var around []string
	for _, p := range paths {
		for len(around) > 0 && !strings.HasPrefix(p, around[len(around)-1]) {
			around = around[:len(around)-1]
		}
		if len(around) > 0 {
			outer := f.agents[byPath[strings.TrimSuffix(around[len(around)-1], "/")][0]]
			for _, i := range byPath[strings.TrimSuffix(p, "/")] {
				a := f.agents[i]
				f.flaw(f.fields[i]+".workspace", "give them folders beside each other, or the same one to share it",
					"the workspace of %s is inside that of %s", a.shown(), outer.shown())
			}
		}
		around = append(around, p)
	}
}

// shown is the name of an agent, with its line where it has one.
func (a Agent) shown() string {
	if a.Line == 0 {
		return fmt.Sprintf("%.60q", a.Name)
	}
	return fmt.Sprintf("%.60q on line %d", a.Name, a.Line)
}

// AgentHome is the folder in the jail that is the agent's own.
func AgentHome(a Agent) string {
	switch a.Sharing {
	case Dedicated:
		return jail.WorkspaceDir
	case Shared:
		return jail.WorkspaceDir + "/" + a.Name
	}
	return jail.StateDir
}

// Exposes says in words what the agent sees of the host, and which of its resources have no limit.
func Exposes(a Agent) []string {
	if a.Workspace == "" {
		return nil
	}
	how := "read and changed"
	if a.WorkspaceMode == ReadOnly {
		how = "read"
	}
	out := []string{fmt.Sprintf("%s of the host can be %s, as %s", a.Workspace, how, jail.WorkspaceDir)}
	if a.Sharing == Shared {
		out = append(out, fmt.Sprintf("so can the folders in it of %s", siblingsInWords(a.Siblings)))
	}
	if a.WorkspaceMode != ReadOnly {
		out = append(out, jail.WorkspaceDir+" has no size limit")
	}
	return out
}

func siblingsInWords(names []string) string {
	const limit = 4
	switch n := len(names); {
	case n == 0:
		return "all agents that share it"
	case n > limit:
		return strings.Join(names[:limit], ", ") + fmt.Sprintf(" and %d or more others", n-limit)
	case n == 1:
		return names[0]
	default:
		return strings.Join(names[:n-1], ", ") + " and " + names[n-1]
	}
}
