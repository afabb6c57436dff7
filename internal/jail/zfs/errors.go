package zfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"

	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

var (
	errMounted    = errors.New("mounted already")
	errNotMounted = errors.New("not mounted")
)

// meanings maps texts of zfs(8) to errors. The exit code is 1 for all of them, so only the text tells.
//
// Sources: libzfs_error_description and zfs_standard_error_fmt in lib/libzfs/libzfs_util.c; zfs_do_destroy in cmd/zfs/zfs_main.c;
// unmount_one and zfs_mount in lib/libzfs/libzfs_mount.c, all of OpenZFS and, older, of illumos and zfs-fuse 0.7.0. Versions that run
// umount(8) pass its texts on: util-linux sys-utils/umount.c. The first match counts: "has children" may come with others.
var meanings = []struct {
	text string
	err  error
}{
	{"has dependent clones", jail.ErrHasDependents},  // a snapshot, when it is destroyed
	{"has dependents", jail.ErrHasDependents},        // a file system whose snapshots have clones
	{"has children", jail.ErrHasDependents},          // a file system with others, or with snapshots, below it
	{"dataset is busy", jail.ErrBusy},                // destroy; "pool or dataset is busy" of unmount, too
	{"Device busy", jail.ErrBusy},                    // unmount on FreeBSD before OpenZFS: strerror(EBUSY)
	{"evice or resource busy", jail.ErrBusy},         // matches Device and device; Linux
	{"target is busy", jail.ErrBusy},                 // umount(8) of util-linux
	{"already exists", fs.ErrExist},                  // "dataset already exists"
	{"dataset exists", fs.ErrExist},                  // "pool or dataset exists"
	{"dataset does not exist", fs.ErrNotExist},       // of a snapshot, too
	{"could not find any snapshots", fs.ErrNotExist}, // destroy of a snapshot that is not there, since 0.6.1
	{"no such pool or dataset", fs.ErrNotExist},
	{"parent does not exist", fs.ErrNotExist}, // create and clone
	{"filesystem already mounted", errMounted},
	{"not currently mounted", errNotMounted},
	{"permission denied", fs.ErrPermission},
}

// translate wraps an error of the command in the one that its text means.
func translate(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, exec.ErrNotFound) {
		return problem.Wrap(err, problem.ToolMissing, "install ZFS: on Debian zfsutils-linux; on FreeBSD it is part of the system",
			"the command zfs is not there")
	}
	if hostcmd.Says(err, "out of space") || hostcmd.Says(err, "No space left on device") {
		return problem.Wrap(err, problem.DiskFull, "free some space in the pool, or raise the quota of its dataset, then try again",
			"the pool is full")
	}
	for _, s := range meanings {
		if hostcmd.Says(err, s.text) {
			return fmt.Errorf("%w: %w", s.err, err)
		}
	}
	return err
}
