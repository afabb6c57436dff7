package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/inventory"
	"github.com/clawjail/clawjail/internal/jail"
)

func hostDaemon(ctx context.Context, e *exam) Result {
	info, err := e.Daemon(ctx)
	switch {
	case errors.Is(err, fs.ErrPermission) && e.UID != 0:
		return skipped("only root and the control plane's user may talk to the host daemon").hint("sudo clawjail doctor")
	case err != nil && ctx.Err() == nil:
		return warning("the host daemon does not answer").hint("sudo clawjail up").fact("error", err.Error())
	case err != nil:
		return e.failed(err)
	}
	return fine("the host daemon %s runs with %d jails as installation %s on %s", info.Version, info.Jails, info.Installation, info.Subnet).
		facts(Facts{"pid": info.PID, "jails": info.Jails, "installation": string(info.Installation), "version": info.Version})
}

func apiHealth(ctx context.Context, e *exam) Result {
	err := e.Health(ctx)
	switch {
	case err == nil:
		return fine("the control plane answers at %s", e.ControlURL).fact("url", e.ControlURL)
	case ctx.Err() != nil:
		return e.failed(ctx.Err())
	}
	return warning("the control plane does not answer at %s", e.ControlURL).hint("sudo clawjail up").
		facts(Facts{"url": e.ControlURL, "error": err.Error()})
}

// maxShown is how many things a message names; all are in the facts.
const maxShown = 3

// orphans looks for what a host daemon that was killed has left. One that runs removes such things itself.
func orphans(ctx context.Context, e *exam) Result {
	if _, err := e.Daemon(ctx); err == nil {
		return fine("the host daemon runs, and removes what should not be there")
	}
	in, err := e.installed()
	if errors.Is(err, fs.ErrNotExist) {
		return fine("clawjail has not run here yet")
	}
	if err != nil {
		return e.failed(err)
	}
	pool, err := jail.NewPool(in.Subnet, e.Config.UIDBase)
	if err != nil {
		return e.failed(err)
	}
	// The host's things are read before the records: a record is written before anything of a jail exists.
	things, err := e.Resources(ctx, inventory.Scope{
		Installation: in.ID, Data: e.Config.DataDir, Run: e.Config.RunDir,
		Subnet: in.Subnet, UIDBase: e.Config.UIDBase, UIDs: uint32(pool.Size()),
	})
	if err != nil {
		return e.failed(fmt.Errorf("list what is on the host: %w", err))
	}
	known, err := e.records(in.ID)
	if err != nil {
		return e.failed(err)
	}
	stray := strays(things, known, in.ID, pool, e.Config.DataDir, e.Config.RunDir)
	if len(stray) == 0 {
		return fine("nothing is left of jails (%d are in the journal)", len(known)).fact("jails", len(known))
	}
	var ids []string
	for _, t := range stray {
		ids = append(ids, t.String())
	}
	shown := strings.Join(ids[:min(len(ids), maxShown)], ", ")
	if more := len(ids) - maxShown; more > 0 {
		shown += fmt.Sprintf(" and %d more", more)
	}
	return warning("the host daemon does not run, and %d things are left of jails that no record names: %s", len(ids), shown).
		fact("things", ids).hint("`sudo clawjail up` removes them as it starts; `sudo clawjail reap` does it while it runs")
}

// record is as much of a record of the journal as tells whose things are on the host.
type record struct {
	Name  jail.Name  `json:"name"`
	Lease jail.Lease `json:"lease"`
}

// records reads the journal without taking it: only the host daemon may.
func (e *exam) records(id jail.Installation) ([]record, error) {
	dir := filepath.Join(e.Config.DataDir, "journal")
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	var out []record
	for _, entry := range entries {
		stem, ok := strings.CutSuffix(entry.Name(), ".json")
		name, nameErr := jail.ParseName(stem, id)
		if !ok || nameErr != nil {
			continue
		}
		r := record{Name: name, Lease: jail.Lease{Index: -1}}
		data, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err == nil {
			err = json.Unmarshal(data, &r)
		}
		if err != nil || r.Name != name {
			r = record{Name: name, Lease: jail.Lease{Index: -1}} // damaged; the file's name still says that the jail is known
		}
		out = append(out, r)
	}
	return out, nil
}

// strays are the things that belong to a jail of which there is no record. Things that all jails share stay out: the bridge,
// the tables, the installation's own group.
func strays(things []inventory.HostResource, known []record, id jail.Installation, pool *jail.Pool, data, run string) []inventory.HostResource {
	names := map[jail.Name]bool{}
	indices := map[int]bool{}
	for _, r := range known {
		names[r.Name] = true
		if r.Lease.Index >= 0 {
			indices[r.Lease.Index] = true
		}
	}
	named := regexp.MustCompile(`\b[ab]` + string(id) + `\d{5}\b`)
	var out []inventory.HostResource
	for _, t := range things {
		if shared(t, id, data, run) {
			continue
		}
		if name := named.FindString(t.ID); name != "" {
			if !names[jail.Name(name)] {
				out = append(out, t)
			}
			continue
		}
		index, of := leaseOf(t, id, pool)
		if of && indices[index] || !of && len(known) > 0 {
			continue // of a jail that is known, or of one of those that are
		}
		out = append(out, t)
	}
	return out
}

func shared(t inventory.HostResource, id jail.Installation, data, run string) bool {
	base := filepath.Base(t.ID)
	switch t.Kind {
	case "nft_table", "record":
		return true
	case "nft_element": // the table of origins has one for every jail that there can be
		_, address, _ := strings.Cut(t.ID, " ")
		_, err := netip.ParseAddr(address)
		return err != nil
	case "interface":
		return t.ID == bridgePrefix+string(id)
	case "cgroup":
		return base == "clawjail-"+string(id)
	case "mount":
		return t.ID == data || t.ID == run || t.ID == filepath.Join(run, "jails")
	}
	return false
}

// leaseOf is the lease that a thing belongs to, when the thing tells.
func leaseOf(t inventory.HostResource, id jail.Installation, pool *jail.Pool) (int, bool) {
	words := strings.Fields(t.ID)
	last := words[max(len(words)-1, 0):]
	if len(last) == 0 {
		return -1, false
	}
	switch t.Kind {
	case "process":
		if uid, err := strconv.Atoi(last[0]); err == nil && slices.Contains(words, "uid") {
			first, errFirst := pool.Lease(0)
			return uid - int(first.UID), errFirst == nil
		}
	case "nft_element":
		if a, err := netip.ParseAddr(last[0]); err == nil {
			return pool.IndexOf(a), true
		}
	case "interface":
		if n, err := strconv.ParseUint(strings.TrimPrefix(t.ID, "cj"+string(id)), 16, 16); err == nil {
			return int(n), true
		}
	case "namespace":
		if n, err := strconv.ParseUint(filepath.Base(t.ID), 16, 16); err == nil {
			return int(n), true
		}
	}
	return -1, false
}
