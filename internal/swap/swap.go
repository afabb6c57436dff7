// Package swap puts new files in the place of those of a folder, all of them or none.
//
// New files are made below <folder>/.clawjail-restore/new. [Commit] writes down what goes where; from then on the new ones count,
// and before that the old ones. A process that dies in between leaves either a stage that [Finish] removes, or a plan
// that Finish carries out. A program calls Finish before it uses the files. Nothing that was there is removed: it is moved
// into a folder that the plan names.
package swap

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/base/keyfile"
	"github.com/clawjail/clawjail/internal/safepath"
)

const (
	// Stage is the folder, in the folder whose files are swapped, of what is being prepared.
	Stage = ".clawjail-restore"
	// New is the folder in it of what is put in place.
	New = "new"

	planFile = "plan.json"
	maxPlan  = 64 << 10
)

// Plan says what goes where. All names are of entries of one folder.
type Plan struct {
	// Items are the entries that are replaced, or made.
	Items []string `json:"items"`
	// Aside is where those go that are there now.
	Aside string `json:"aside"`
	// Outside are files elsewhere that belong to them.
	Outside []Outside `json:"outside,omitempty"`
}

// Outside is one file that is replaced elsewhere, by the one beside it that has its name and [Suffix]. Aside is the path, in the
// same folder, where it goes that is there now.
type Outside struct {
	Path  string `json:"path"`
	Aside string `json:"aside"`
}

// Suffix is behind the name of a file that is to replace one outside of the folder.
const Suffix = ".restored"

func (p Plan) validate() error {
	for _, name := range append([]string{p.Aside}, p.Items...) {
		if name == "" || name != filepath.Base(name) || !filepath.IsLocal(name) || name == "." || name == Stage {
			return fmt.Errorf("the plan of a restore names %q, which is no entry of the folder", name)
		}
	}
	for _, o := range p.Outside {
		if !filepath.IsAbs(o.Path) || filepath.Clean(o.Path) != o.Path || filepath.Clean(o.Aside) != o.Aside || o.Aside == o.Path ||
			filepath.Dir(o.Path) != filepath.Dir(o.Aside) {
			return fmt.Errorf("the plan of a restore moves %q to %q, which is not beside it", o.Path, o.Aside)
		}
	}
	return nil
}

// Commit replaces the items of a folder by those of its stage. step is called before every change; it may be nil.
func Commit(dir string, p Plan, step func(string)) error {
	if err := p.validate(); err != nil {
		return err
	}
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	if step != nil {
		step("plan")
	}
	stage := filepath.Join(dir, Stage)
	if err := keyfile.SyncFolder(stage); err != nil {
		return err
	}
	fresh := filepath.Join(stage, "."+planFile)
	if err := writeSynced(fresh, data); err != nil {
		return fmt.Errorf("write the plan of a restore: %w", err)
	}
	if err := errors.Join(os.Rename(fresh, filepath.Join(stage, planFile)), keyfile.SyncFolder(stage)); err != nil {
		return fmt.Errorf("write the plan of a restore: %w", err)
	}
	return finish(dir, p, step)
}

// Finish carries out the plan that a process left, and says so; a stage without a plan is removed. No process may use
// the folder meanwhile.
func Finish(dir string) (finished bool, err error) {
	stage := filepath.Join(dir, Stage)
	f, err := os.OpenFile(filepath.Join(stage, planFile), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, os.RemoveAll(stage)
	}
	if err != nil {
		return false, fmt.Errorf("look for a restore that has not ended: %w", err)
	}
	data := make([]byte, maxPlan)
	n, err := f.Read(data)
	if err = errors.Join(err, f.Close()); err != nil {
		return false, fmt.Errorf("read the plan of a restore: %w", err)
	}
	var p Plan
	if err := json.Unmarshal(data[:n], &p); err != nil {
		return false, fmt.Errorf("read the plan of a restore: %w", err)
	}
	if err := p.validate(); err != nil {
		return false, err
	}
	return true, finish(dir, p, nil)
}

func finish(dir string, p Plan, step func(string)) error {
	if step == nil {
		step = func(string) {}
	}
	fresh := filepath.Join(dir, Stage, New)
	for _, name := range p.Items {
		from, to, aside := filepath.Join(fresh, name), filepath.Join(dir, name), filepath.Join(dir, p.Aside, name)
		if !there(from) {
			continue // it is in its place
		}
		if there(to) && !there(aside) {
			step("aside " + name)
			if err := os.Mkdir(filepath.Dir(aside), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("make the folder of what is replaced: %w", err)
			}
			if err := os.Rename(to, aside); err != nil {
				return fmt.Errorf("move %s aside: %w", name, err)
			}
		}
		step("place " + name)
		// An empty folder that somebody has made there since is replaced, and
		// anything else is an error. os.Rename replaces no folder.
		if err := unix.Rename(from, to); err != nil {
			return fmt.Errorf("put %s in its place: %w", name, err)
		}
	}
	for _, o := range p.Outside {
		if err := o.finish(step); err != nil {
			return err
		}
	}
	step("sync")
	if there(filepath.Join(dir, p.Aside)) {
		if err := keyfile.SyncFolder(filepath.Join(dir, p.Aside)); err != nil {
			return err
		}
	}
	if err := keyfile.SyncFolder(dir); err != nil {
		return err
	}
	step("done")
	// The plan goes first: a stage without one is rubbish, and a plan without its stage is done.
	if err := os.Remove(filepath.Join(dir, Stage, planFile)); err != nil {
		return fmt.Errorf("end a restore: %w", err)
	}
	return os.RemoveAll(filepath.Join(dir, Stage))
}

// finish works by descriptor: others than root may have the folder, and could put another, or a link, in its place.
func (o Outside) finish(step func(string)) (err error) {
	dir, err := safepath.OpenPlain(filepath.Dir(o.Path))
	if err != nil {
		return fmt.Errorf("put %s in its place: %w", o.Path, err)
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	name, aside := filepath.Base(o.Path), filepath.Base(o.Aside)
	has := func(name string) bool {
		var st unix.Stat_t
		return unix.Fstatat(dir.FD(), name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil
	}
	if !has(name + Suffix) {
		return nil // it is in its place
	}
	if has(name) && !has(aside) {
		step("aside " + o.Path)
		if err := dir.Rename(name, aside); err != nil {
			return fmt.Errorf("move %s aside: %w", o.Path, err)
		}
	}
	step("place " + o.Path)
	if err := dir.Rename(name+Suffix, name); err != nil {
		return fmt.Errorf("put %s in its place: %w", o.Path, err)
	}
	return unix.Fsync(dir.FD())
}

// Drop removes what was to replace the file.
func (o Outside) Drop() error {
	dir, err := safepath.OpenPlain(filepath.Dir(o.Path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Remove(filepath.Base(o.Path)+Suffix), dir.Close())
}

// Decided says whether a folder has a plan that is not carried out, or not to its end.
func Decided(dir string) bool { return there(filepath.Join(dir, Stage, planFile)) }

func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func writeSynced(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}
