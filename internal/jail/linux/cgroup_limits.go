//go:build linux

package linux

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// cpuPeriod is how often the share of processor time is refilled, in microseconds.
const cpuPeriod = 100_000

// setLimitsV2 writes the files of Documentation/admin-guide/cgroup-v2.rst. memory.high stays unset: it would slow a
// jail down instead of telling it that its memory is used up.
func setLimitsV2(dir string, l jail.Limits) error {
	if err := writeGroupFile(dir, "memory.max", l.Memory); err != nil {
		return err
	}
	if err := writeGroupFile(dir, "memory.swap.max", 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // without swap in the kernel there is no such file
	}
	if err := writeGroupText(dir, "cpu.max", fmt.Sprintf("%d %d", cpuQuota(l), cpuPeriod)); err != nil {
		return err
	}
	return writeGroupFile(dir, "pids.max", int64(l.Tasks))
}

func (l *Limiter) setLimitsV1(name string, limits jail.Limits) error {
	memory := l.group(l.memory, name)
	if err := writeGroupFile(memory, "memory.limit_in_bytes", limits.Memory); err != nil {
		return err
	}
	// Memory and swap together may not exceed the memory alone. A kernel that does not count swap is told not to
	// use it instead.
	err := writeGroupFile(memory, "memory.memsw.limit_in_bytes", limits.Memory)
	if errors.Is(err, fs.ErrNotExist) {
		err = writeGroupFile(memory, "memory.swappiness", 0)
	}
	if err != nil {
		return err
	}
	cpu := l.group(l.cpu, name)
	if err := writeGroupFile(cpu, "cpu.cfs_period_us", cpuPeriod); err != nil {
		return err
	}
	if err := writeGroupFile(cpu, "cpu.cfs_quota_us", cpuQuota(limits)); err != nil {
		return err
	}
	return writeGroupFile(l.group(l.pids, name), "pids.max", int64(limits.Tasks))
}

func cpuQuota(l jail.Limits) int64 { return int64(l.MilliCPU) * cpuPeriod / 1000 }

// milliCPU is the inverse of cpuQuota; no quota is 0.
func milliCPU(quota, period int64) int {
	if quota <= 0 || period <= 0 {
		return 0
	}
	return int(quota * 1000 / period)
}

// enforced reads the limits back. A limit that is not set is 0, and so is every limit of a group that the process is
// not in.
func (l *Limiter) enforced(name string, pid int) (memory int64, milli, tasks int, err error) {
	in := func(h hierarchy) bool {
		pids, err2 := readPIDs(l.group(h, name))
		err = errors.Join(err, err2)
		return slices.Contains(pids, pid)
	}
	read := func(h hierarchy, file string) int64 {
		v, err2 := readGroupNumber(l.group(h, name), file)
		err = errors.Join(err, err2)
		return v
	}
	if l.Version() == 2 {
		if !in(l.memory) {
			return 0, 0, 0, err
		}
		q, period := int64(0), int64(0)
		text, err2 := readGroupText(l.group(l.cpu, name), "cpu.max")
		if f := strings.Fields(text); len(f) == 2 && f[0] != "max" {
			q, err = atoi(f[0], err)
			period, err = atoi(f[1], err)
		}
		return read(l.memory, "memory.max"), milliCPU(q, period), int(read(l.pids, "pids.max")), errors.Join(err, err2)
	}
	if in(l.memory) {
		memory = read(l.memory, "memory.limit_in_bytes")
	}
	if in(l.cpu) {
		milli = milliCPU(read(l.cpu, "cpu.cfs_quota_us"), read(l.cpu, "cpu.cfs_period_us"))
	}
	if in(l.pids) {
		tasks = int(read(l.pids, "pids.max"))
	}
	return memory, milli, tasks, err
}

func atoi(s string, before error) (int64, error) {
	v, err := strconv.ParseInt(s, 10, 64)
	return v, errors.Join(before, err)
}

// enableControllers makes controllers available to the children of a group of version 2.
func enableControllers(dir string, controllers ...string) error {
	offered, err := readGroupText(dir, "cgroup.controllers")
	if err != nil {
		return err
	}
	enabled, err := readGroupText(dir, "cgroup.subtree_control")
	if err != nil {
		return err
	}
	for _, c := range controllers {
		if slices.Contains(strings.Fields(enabled), c) {
			continue
		}
		if !slices.Contains(strings.Fields(offered), c) {
			return problem.New(problem.Unsupported, "enable it in the groups above, for systemd with Delegate=yes, or name another cgroup_parent",
				"the control group %s does not offer the controller %s", dir, c)
		}
		err := writeGroupText(dir, "cgroup.subtree_control", "+"+c)
		if errors.Is(err, unix.EBUSY) {
			return problem.Wrap(err, problem.Unsupported, "name a cgroup_parent without processes of its own",
				"processes run in the control group %s, which therefore cannot have limited children", dir)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func writeGroupFile(dir, file string, value int64) error {
	return writeGroupText(dir, file, strconv.FormatInt(value, 10))
}

func writeGroupText(dir, file, text string) error {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

func readGroupText(dir, file string) (string, error) {
	text, err := os.ReadFile(filepath.Join(dir, file))
	return strings.TrimSpace(string(text)), err
}

// readGroupNumber reads a number; "max" is 0.
func readGroupNumber(dir, file string) (int64, error) {
	text, err := readGroupText(dir, file)
	if err != nil || text == "max" {
		return 0, err
	}
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", filepath.Join(dir, file), err)
	}
	return v, nil
}

// readGroupKey reads one value of a file of "key value" lines; a key that is not there is 0.
func readGroupKey(dir, file, key string) (int64, error) {
	text, err := readGroupText(dir, file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == key {
			n, err := strconv.ParseInt(v, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("read %s: %w", filepath.Join(dir, file), err)
			}
			return n, nil
		}
	}
	return 0, nil
}
