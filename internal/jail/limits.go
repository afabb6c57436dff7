package jail

import (
	"errors"
	"slices"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

// LimitName names a limit in reports: what a jail ran into.
type LimitName string

// The limits of a jail.
const (
	LimitMemory    LimitName = "memory"
	LimitTasks     LimitName = "tasks"
	LimitDisk      LimitName = "disk"
	LimitFiles     LimitName = "files"
	LimitWallClock LimitName = "wall_clock"
)

// The limits of all jails of a tenant together.
const (
	LimitTenantMemory LimitName = "tenant_memory"
	LimitTenantTasks  LimitName = "tenant_tasks"
)

// Words name the limit to people, as what a jail has a limit of.
func (n LimitName) Words() string {
	switch n {
	case LimitTenantMemory:
		return "memory of all jails of its tenant"
	case LimitTenantTasks:
		return "tasks of all jails of its tenant"
	}
	return string(n)
}

// OutOfMemory reports whether one of the limits is one of memory.
func OutOfMemory(hit []LimitName) bool {
	return slices.Contains(hit, LimitMemory) || slices.Contains(hit, LimitTenantMemory)
}

// Limits bound one jail. Every field is required: zero is an error and never means unlimited.
type Limits struct {
	// Memory bounds the processes and everything they write to tmpfs, in bytes. Swap is not given.
	Memory int64 `json:"memory"`
	// MilliCPU is the share of processor time in thousandths of one CPU.
	MilliCPU int `json:"milli_cpu"`
	// Tasks bounds processes and threads together.
	Tasks int `json:"tasks"`
	// Disk bounds each writable tmpfs of an ephemeral jail (/tmp and the home directory), in bytes. Data that is
	// written there counts against Memory.
	Disk int64 `json:"disk"`
	// SharedMemory bounds /dev/shm, in bytes. It counts against Memory too.
	SharedMemory int64 `json:"shared_memory"`
	// Files is the number of descriptors one process may hold.
	Files int `json:"files"`
	// WallClock is how long the jail may exist.
	WallClock time.Duration `json:"wall_clock"`
}

// Bounds of the limits: below the smaller nothing useful starts, above the larger a typing error is likelier
// than a wish.
const (
	MinMemory, MaxMemory       = 16 << 20, 1 << 40
	MinMilliCPU, MaxMilliCPU   = 10, 1_024_000
	MinTasks, MaxTasks         = 4, 4_000_000
	MinDisk, MaxDisk           = 1 << 20, 1 << 40
	MinFiles, MaxFiles         = 64, 1 << 20
	MinWallClock, MaxWallClock = time.Second, 366 * 24 * time.Hour // the most is no limit
)

// Validate reports every limit that is missing or out of bounds, all at once.
func (l Limits) Validate() error {
	var errs []error
	check := func(name, unit string, v, lo, hi int64) {
		if v < lo || v > hi {
			hint := "zero does not mean unlimited; leave the limit out to get the configured default"
			errs = append(errs, problem.New(problem.BadLimit, hint, "limit %s is %d %s, not between %d and %d", name, v, unit, lo, hi))
		}
	}
	check("memory", "bytes", l.Memory, MinMemory, MaxMemory)
	check("cpu", "thousandths", int64(l.MilliCPU), MinMilliCPU, MaxMilliCPU)
	check("tasks", "tasks", int64(l.Tasks), MinTasks, MaxTasks)
	check("disk", "bytes", l.Disk, MinDisk, MaxDisk)
	check("shared_memory", "bytes", l.SharedMemory, MinDisk, MaxDisk)
	check("files", "descriptors", int64(l.Files), MinFiles, MaxFiles)
	check("wall_clock", "ms", l.WallClock.Milliseconds(), MinWallClock.Milliseconds(), MaxWallClock.Milliseconds())
	return errors.Join(errs...)
}
