package hostd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/safepath"
)

// Agents' data in workspaces has no bound of its own: those are folders of the host. While there are several tenants, the host
// daemon looks after the disk that data_dir is on. When little of it is left, it adds up what each tenant has in its workspaces
// there. When a tenant has more than its share of what all tenants have and of what is free, its jails that write to workspaces
// are ended, and none is started until there is room. The other tenants use the rest.

const (
	// roomEvery is how often it is looked how much room there is, and countEvery how often files are counted at most, when there is
	// little. Counting that takes long is done more rarely.
	roomEvery, countEvery = 2 * time.Second, 10 * time.Second
	// maxCounted is how many files of a tenant are counted. A tenant with more has too many.
	maxCounted = 4 << 20
)

// room is what a disk has: of bytes, and of files that it can have. No number of files is one without a bound.
type room struct{ size, free, files, filesFree int64 }

// workspaces looks after a disk.
type workspaces struct {
	WorkspaceOptions
	tenants *tenants
	list    func(ctx context.Context) ([]jail.Status, error)
	end     func(ctx context.Context, n jail.Name) error
	log     *slog.Logger
	look    func() (room, error)

	mu   sync.Mutex
	over map[string]error // by tenant: why its jails may not write to workspaces
}

// WorkspaceOptions say which workspaces are looked after: those beneath the roots that are on the disk of a folder.
type WorkspaceOptions struct {
	Roots []string
	Disk  string
	// Unlinked is how much tenants have of a file system in files that are open and have no name any more. May be nil.
	Unlinked func(device uint64) (map[string]int64, error)
}

func newWorkspaces(o Options, who *tenants, m makers) *workspaces {
	w := &workspaces{WorkspaceOptions: o.Workspaces, tenants: who, list: m.list, end: m.destroy, log: o.Log, over: map[string]error{}}
	w.look = func() (room, error) { return roomOf(w.Disk) }
	return w
}

func roomOf(dir string) (room, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return room{}, fmt.Errorf("look at the disk of %s: %w", dir, err)
	}
	block := int64(st.Bsize)
	return room{int64(st.Blocks) * block, int64(st.Bavail) * block, int64(st.Files), int64(st.Ffree)}, nil
}

// run looks until the context ends.
func (w *workspaces) run(ctx context.Context) {
	if w.Disk == "" {
		return
	}
	every := time.NewTicker(roomEvery)
	defer every.Stop()
	rest := time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
		if rest -= roomEvery; rest > 0 {
			continue
		}
		began := time.Now()
		counted, err := w.tend(ctx)
		if err != nil && ctx.Err() == nil {
			w.log.Error("look after the room for workspaces", "error", err)
		}
		if rest = 0; counted {
			rest = max(countEvery, 20*time.Since(began))
		}
	}
}

// tend ends the jails that take what belongs to others. It says whether it had to count.
func (w *workspaces) tend(ctx context.Context) (counted bool, err error) {
	r, err := w.look()
	if err != nil {
		return false, err
	}
	little := func(size, free int64) bool { return size > 0 && size-free > w.tenants.share(size) }
	if w.tenants.several() < 2 || !little(r.size, r.free) && !little(r.files, r.filesFree) {
		w.set(map[string]error{})
		return false, nil
	}
	all, err := w.list(ctx)
	if err != nil {
		return false, err
	}
	used, err := w.count(ctx, all)
	if err != nil {
		return true, err
	}
	over := w.beyond(r, used)
	w.set(over)
	var errs []error
	for _, st := range all {
		why := over[st.Spec.Tenant()]
		if why == nil || !w.writes(st.Spec) {
			continue
		}
		w.log.Warn("a jail is ended, because its tenant has used up its share of the disk", "jail", st.Name, "tenant", st.Spec.Tenant(), "why", why)
		errs = append(errs, w.end(ctx, st.Name))
	}
	return true, errors.Join(errs...)
}

// beyond are the tenants that have more than their share of what all of them have and of what is free.
func (w *workspaces) beyond(r room, used map[string]safepath.Usage) map[string]error {
	bytes, files := r.free, r.filesFree
	for _, u := range used {
		bytes += u.Bytes
		files += u.Files
	}
	over := map[string]error{}
	for tenant, u := range used {
		bounds := func(whole int64) quota.Bounds { return quota.Divide(w.tenants.quotas, whole, w.tenants.several()) }
		err := bounds(bytes).Check(quota.Workspaces(), quota.Holder{Tenant: tenant}, quota.Held{Tenant: u.Bytes}, 0)
		if err == nil && (r.files > 0 || u.Cut) {
			if u.Cut {
				u.Files = max(u.Files, files)
			}
			err = bounds(files).Check(quota.WorkspaceFiles(), quota.Holder{Tenant: tenant}, quota.Held{Tenant: u.Files}, 0)
		}
		if err != nil {
			over[tenant] = err
		}
	}
	return over
}

func (w *workspaces) set(over map[string]error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = over
}

// check is an error when a jail would write to workspaces of a tenant that has no room for them.
func (w *workspaces) check(s jail.Spec) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.writes(s) {
		return w.over[s.Tenant()]
	}
	return nil
}

// writes says whether a jail can write to a workspace.
func (w *workspaces) writes(s jail.Spec) bool {
	return slices.ContainsFunc(s.Mounts, func(m jail.Mount) bool {
		_, _, is := w.beneath(m.Source)
		return is && !m.ReadOnly
	})
}

// beneath finds the root that a folder lies beneath, and its path from there.
func (w *workspaces) beneath(dir string) (root, rel string, is bool) {
	for _, root := range w.Roots {
		if rel, is := strings.CutPrefix(dir+"/", root+"/"); is {
			return root, strings.TrimSuffix(rel, "/"), true
		}
	}
	return "", "", false
}

// count adds up what tenants have: in the folders that their jails can write to and, but for the tenant default, in all that are theirs.
func (w *workspaces) count(ctx context.Context, all []jail.Status) (map[string]safepath.Usage, error) {
	var disk unix.Stat_t
	if err := unix.Stat(w.Disk, &disk); err != nil {
		return nil, fmt.Errorf("look at the disk of %s: %w", w.Disk, err)
	}
	folders := map[string][]string{}
	for _, st := range all {
		tenant := st.Spec.Tenant()
		for _, m := range st.Spec.Mounts {
			root, _, is := w.beneath(m.Source)
			if !is || m.ReadOnly {
				continue
			}
			folders[tenant] = append(folders[tenant], m.Source)
			if tenant != jail.DefaultTenant {
				folders[tenant] = append(folders[tenant], filepath.Join(root, tenant))
			}
		}
	}
	unlinked := map[string]int64{}
	if w.Unlinked != nil {
		var err error
		if unlinked, err = w.Unlinked(uint64(disk.Dev)); err != nil {
			return nil, err
		}
	}
	out := map[string]safepath.Usage{}
	for tenant := range maps.Keys(folders) {
		u := safepath.Usage{Bytes: unlinked[tenant]}
		for _, dir := range outermost(folders[tenant]) {
			more, err := w.usage(ctx, dir, uint64(disk.Dev), maxCounted-u.Files)
			if err != nil {
				return nil, err
			}
			u = safepath.Usage{Bytes: u.Bytes + more.Bytes, Files: u.Files + more.Files, Cut: u.Cut || more.Cut}
		}
		out[tenant] = u
	}
	return out, nil
}

// usage is what is in a folder beneath a root, where that is on the disk.
func (w *workspaces) usage(ctx context.Context, dir string, device uint64, limit int64) (u safepath.Usage, err error) {
	at, rel, _ := w.beneath(dir)
	root, err := safepath.Open(at)
	if err != nil {
		return u, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	folder := root
	if rel != "" {
		folder, err = root.Folder(rel)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, safepath.ErrPlanted) {
			return u, nil // no jail can have it either
		}
		if err != nil {
			return u, err
		}
		defer func() { err = errors.Join(err, folder.Close()) }()
	}
	var st unix.Stat_t
	if err := unix.Fstat(folder.FD(), &st); err != nil || uint64(st.Dev) != device {
		return u, err
	}
	return folder.Usage(ctx, limit)
}

// outermost are the folders that lie in none of the others, each once.
func outermost(dirs []string) (out []string) {
	for _, dir := range slices.Compact(slices.Sorted(slices.Values(dirs))) {
		if !slices.ContainsFunc(out, func(outer string) bool { return strings.HasPrefix(dir, outer+"/") }) {
			out = append(out, dir)
		}
	}
	return out
}
