package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// agentState tries the volume of what an agent keeps. The tools are those that make and enlarge one.
func agentState(ctx context.Context, e *exam) Result {
	const install = "sudo apt install e2fsprogs"
	facts, err := e.State(ctx)
	if problem.CodeOf(err) == problem.ToolMissing {
		return failed(err).hint(install)
	}
	if err != nil {
		return failed(err)
	}
	var missing []string
	for _, tool := range []string{"e2fsck", "resize2fs"} {
		if _, ok := e.program(tool); !ok {
			missing = append(missing, tool)
		}
	}
	if len(missing) > 0 {
		return warning("what an agent keeps has a volume, which cannot be repaired or enlarged without %s", strings.Join(missing, " and ")).
			facts(facts).fact("missing", missing).hint(install)
	}
	return fine("what an agent keeps has a volume that holds as much as it may, and not more").facts(facts)
}

// workspaceRoots looks at the folders beneath which jails are given folders of the host. A user who can replace one of them, or
// a folder above it, decides what of the host jails see; what is beneath it need not be root's.
func workspaceRoots(_ context.Context, e *exam) Result {
	roots := map[string][]string{"workspace_roots": e.Config.Agents.WorkspaceRoots, "jail_roots": e.Config.Agents.JailRoots}
	var worst Result
	checked := 0
	for _, key := range []string{"workspace_roots", "jail_roots"} {
		for _, root := range roots[key] {
			checked++
			r := e.root(key, root)
			if worst.Status == "" || worst.Status != Fail && r.Status != OK {
				worst = r
			}
		}
	}
	added, err := e.AddedRoots(e.Config)
	if err != nil {
		return e.failed(err)
	}
	var paths []string
	for _, r := range added {
		checked++
		paths = append(paths, r.Path)
		if err := e.CheckRoot(e.Config, r); err != nil && (worst.Status == OK || worst.Status == "") {
			worst = warning("agents get no folders beneath %s any more, which root allowed: %v", r.Path, err).fact("path", r.Path).
				hint("put that right, or remove its line in %s", hostd.WorkspaceRootsFile(e.Config))
		}
	}
	if checked == 0 {
		return fine("agents have no folders of the host: there are no workspace_roots")
	}
	if worst.Status != OK && worst.Status != "" {
		return worst
	}
	r := fine("the folders for agents are there, and nobody but root can replace them")
	if len(paths) > 0 {
		r = fine("the folders for agents are there, and nobody but root, and whose %s are, can replace them", strings.Join(paths, ", "))
	}
	return r.fact("workspace_roots", roots["workspace_roots"]).fact("jail_roots", roots["jail_roots"]).fact("added", paths)
}

// root looks at one folder.
func (e *exam) root(key, root string) Result {
	place := filepath.Join(e.Root, root)
	real, err := filepath.EvalSymlinks(place)
	common := root == e.Config.Workspaces()
	switch {
	case errors.Is(err, fs.ErrNotExist) && common:
		return fine("%s is made when clawjail starts", root)
	case errors.Is(err, fs.ErrNotExist):
		return warning("the folder %s of %s is not there", root, key).hint("sudo mkdir -p %s", root).fact("path", root)
	case err != nil:
		return e.failed(err)
	case real != place:
		return fails("the folder %s of %s is a link, or leads through one", root, key).fact("path", root).
			hint("write %s into %s", strings.TrimPrefix(real, strings.TrimSuffix(e.Root, "/")), key)
	}
	if info, err := os.Stat(real); err != nil || !info.IsDir() {
		return fails("%s, which %s names, is not a folder", root, key).fact("path", root).hint("correct %s in the configuration", key)
	}
	if err := e.Ownership(filepath.Dir(root)); err != nil {
		r := e.failed(err).fact("path", root)
		if r.Status == Fail {
			r.Message = "somebody else than root can replace the folder " + root + " of " + key + ": " + r.Message
		}
		return r
	}
	if key == "workspace_roots" && e.Map != nil && e.UID == 0 {
		if err := e.Map(real); err != nil {
			r := e.failed(err).fact("path", root)
			if common && r.Status == Fail {
				r.Status = Warn // it is the default folder, and no agent need have a workspace in it
			}
			return r
		}
	}
	return fine("%s", root)
}

// unixSockets lists the agents whose declarations let them use UNIX sockets in folders of the host.
func unixSockets(_ context.Context, e *exam) Result {
	files, err := filepath.Glob(filepath.Join(hostd.AgentsDir(e.Config), "*.json"))
	if err != nil {
		return e.failed(err)
	}
	var open []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return e.failed(err)
		}
		var declared jail.Kept
		if err := json.Unmarshal(text, &declared); err != nil {
			return warning("what is declared in %s cannot be read", file).hint("clawjail agent sync writes it anew")
		}
		if s := declared.Spec; s.UnixSockets && len(s.Mounts) > 0 && s.Agent != nil {
			open = append(open, s.Agent.Key())
		}
	}
	if len(open) == 0 {
		return fine("no agent can use UNIX sockets in folders of the host")
	}
	return warning("UNIX sockets in their workspaces connect %s with whoever shares these folders, past the gateway", strings.Join(open, ", ")).
		fact("agents", open).hint("leave unix_sockets out where it is not needed, and share these folders with nobody who must not be reached")
}

// containerEngine asks the engine, where one is there or is needed. Jails need none.
func containerEngine(ctx context.Context, e *exam) Result {
	socket := e.Config.Docker.Socket
	needed := e.Config.Agents.Driver == config.AgentDriverDocker
	info, err := os.Stat(filepath.Join(e.Root, socket))
	switch {
	case errors.Is(err, fs.ErrNotExist) && needed:
		return fails("agents.driver is docker, and there is no engine at %s", socket).
			hint("sudo apt install docker.io, or correct docker.socket, or leave agents.driver out").fact("socket", socket)
	case errors.Is(err, fs.ErrNotExist):
		return fine("no container engine is at %s; only agents that name an image need one", socket)
	case err != nil:
		return e.failed(err)
	}
	facts := Facts{"socket": socket}
	if info.Mode().Perm()&0o002 != 0 {
		return fails("everybody on this host can use the container engine at %s, and is root by that", socket).
			hint("sudo chmod o-rw %s", socket).facts(facts)
	}
	if e.UID != 0 {
		return skipped("a container engine is at %s; whether it can hold agents is asked as root", socket).hint("sudo clawjail doctor").facts(facts)
	}
	if e.Engine == nil {
		return notHere()
	}
	bad := warning
	if needed {
		bad = fails
	}
	engine, err := e.Engine(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return failed(ctx.Err()).facts(facts)
		}
		return bad("the container engine at %s does not answer, and agents that name an image need it", socket).
			hint("sudo systemctl start docker").facts(facts).fact("error", err.Error())
	}
	facts["version"] = engine.Version
	if engine.Mapped != "" {
		return bad("the container engine %s maps users (%s): no container is as an agent's must be, and none is kept", engine.Version, engine.Mapped).
			hint("use an engine that runs as root without userns-remap, or templates instead of images").facts(facts)
	}
	if !engine.Seccomp {
		return bad("the container engine %s has no seccomp filters, which agents' containers must have", engine.Version).
			hint("use an engine with seccomp, or templates instead of images").facts(facts)
	}
	return fine("the container engine %s answers at %s, for agents that name an image", engine.Version, socket).facts(facts)
}
