package zfs

import (
	"errors"
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

// said is what zfs(8) says, and what it means. It ends with 1 for each of them, and the texts are all there is.
//
// Sources: libzfs_error_description and zfs_standard_error_fmt in lib/libzfs/libzfs_util.c; zfs_do_destroy in
// cmd/zfs/zfs_main.c; unmount_one and zfs_mount in lib/libzfs/libzfs_mount.c, all of OpenZFS and, older, of illumos and
// zfs-fuse 0.7.0. The texts of umount(8) are passed on by versions that run it: util-linux sys-utils/umount.c. Of two causes, the one that a
// dataset depends on counts: "has children" may come together with others.
var said = []struct {
	text  string
	means error
}{
	{"has dependent clones", jail.ErrHasDependents},  // a snapshot, when it is destroyed
	{"has dependents", jail.ErrHasDependents},        // a file system whose snapshots have clones
	{"has children", jail.ErrHasDependents},          // a file system with others, or with snapshots, below it
	{"dataset is busy", jail.ErrBusy},                // destroy; "pool or dataset is busy" of unmount, too
	{"Device busy", jail.ErrBusy},                    // unmount on FreeBSD before OpenZFS: strerror(EBUSY)
	{"evice or resource busy", jail.ErrBusy},         // the same of Linux
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

// translate gives an error of the command its meaning. The command's own words stay in the text.
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
	for _, s := range said {
		if hostcmd.Says(err, s.text) {
			return errors.Join(s.means, err)
		}
	}
	return err
}
