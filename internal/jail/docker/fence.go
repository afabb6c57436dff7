//go:build linux

package docker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/cgroup"
)

// fence is a control group of its own below a container's, for a program that was started in it. Nothing that the program
// starts can leave it, re-parented or not: programs in a container cannot write to control groups.
type fence struct {
	dir     string
	version int
}

const fencePrefix = "clawjail-exec-"

var errNoTasksGroup = errors.New("the container's tasks are in no control group")

// makeFence makes one below the group that counts a container's tasks.
func makeFence(proc jail.Process, id string) (*fence, error) {
	g, err := cgroup.Of(proc)
	if err != nil {
		return nil, err
	}
	dir, version := g.Dir("pids")
	if version == 0 {
		return nil, errNoTasksGroup
	}
	f := &fence{dir: filepath.Join(dir, fencePrefix+id), version: version}
	if err := os.Mkdir(f.dir, 0o755); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *fence) add(pid int) error {
	return os.WriteFile(filepath.Join(f.dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
}

// limits are those in force for a program in the fence: those of the group that the fence is in, and with version 1, where each controller
// has groups of its own, those that the engine has put the program into.
func (f *fence) limits(container, program jail.Process) (memory int64, milli, tasks int, err error) {
	above, err := cgroup.Of(container)
	if err != nil {
		return 0, 0, 0, err
	}
	if f.version == 1 {
		own, err := cgroup.Of(program)
		if err != nil {
			return 0, 0, 0, err
		}
		own["pids"] = above["pids"]
		above = own
	}
	return f.below(above)
}

// below reads the limits of the groups above the fence, if that is where it is.
func (f *fence) below(above cgroup.Groups) (memory int64, milli, tasks int, err error) {
	if dir, version := above.Dir("pids"); version != f.version || dir != filepath.Dir(f.dir) {
		return 0, 0, 0, fmt.Errorf("the program is in %s, and the container in %s", f.dir, dir)
	}
	memory, milli, tasks = above.Limits()
	return memory, milli, tasks, nil
}

func (f *fence) pids() ([]int, error) {
	text, err := os.ReadFile(filepath.Join(f.dir, "cgroup.procs"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	var out []int
	for _, word := range strings.Fields(string(text)) {
		n, err := strconv.Atoi(word)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", f.dir, err)
		}
		out = append(out, n)
	}
	return out, err
}

// kill ends everything in the fence and removes it. A group of version 1 is first forbidden to grow, so that what forks
// cannot outrun it. busy is true while something is left.
func (f *fence) kill() (busy bool, err error) {
	if f.version == 1 {
		err = os.WriteFile(filepath.Join(f.dir, "pids.max"), []byte("0"), 0)
	} else {
		err = os.WriteFile(filepath.Join(f.dir, "cgroup.kill"), []byte("1"), 0)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
		return true, err
	}
	pids, err := f.pids()
	if err != nil {
		return true, err
	}
	for _, pid := range pids {
		// The number is of a member a moment ago. Numbers are not given again so soon, and a process of the host's that had
		// this one would have to be in the group to be looked at again.
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return true, err
		}
	}
	if err := unix.Rmdir(f.dir); err != nil && !errors.Is(err, unix.ENOENT) {
		if errors.Is(err, unix.EBUSY) {
			return true, nil
		}
		return true, err
	}
	return false, nil
}

// fences lists those that are below a container's group.
func fences(proc jail.Process) ([]*fence, error) {
	g, err := cgroup.Of(proc)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil, nil // it has ended
	}
	if err != nil {
		return nil, err
	}
	dir, version := g.Dir("pids")
	if version == 0 {
		return nil, errNoTasksGroup
	}
	inside, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var out []*fence
	for _, group := range inside {
		if strings.HasPrefix(group.Name(), fencePrefix) {
			out = append(out, &fence{dir: filepath.Join(dir, group.Name()), version: version})
		}
	}
	return out, nil
}
