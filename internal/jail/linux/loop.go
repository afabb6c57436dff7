//go:build linux

package linux

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/problem"
)

// loopDevice returns an open loop device of an image. It ends by itself when the last descriptor and mount of it do.
//
// An image must never have two: each would have a file system of its own in memory, and they would destroy each other on
// the disk. A mount of an earlier jail may still be held, for example in the namespace that the runtime of another jail is
// started in; its device is used again, which mounts the same file system once more. The caller holds the image's lock.
func loopDevice(image *os.File) (*os.File, error) {
	var st unix.Stat_t
	if err := control(image, func(fd int) error { return unix.Fstat(fd, &st) }); err != nil {
		return nil, fmt.Errorf("look at the image: %w", err)
	}
	found, err := findLoop(st.Dev, st.Ino)
	if found != nil || err != nil {
		return found, err
	}
	ctl, err := openDevice("/dev/loop-control", os.O_RDWR, unix.S_IFCHR, unix.Mkdev(10, 237)) // LOOP_CTRL_MINOR of linux/miscdevice.h
	if err != nil {
		return nil, problem.Wrap(err, problem.Unsupported, "sudo modprobe loop, and the line loop in /etc/modules-load.d/clawjail.conf to keep it", "this host has no loop devices")
	}
	defer func() { _ = ctl.Close() }() // nothing was written to it
	for range 256 {
		var number int
		err := control(ctl, func(fd int) (err error) {
			number, err = unix.IoctlRetInt(fd, unix.LOOP_CTL_GET_FREE)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("find a free loop device: %w", err)
		}
		device, err := openLoop(fmt.Sprintf("loop%d", number), os.O_RDWR)
		if errors.Is(err, unix.ENXIO) {
			continue // being given back at this moment
		}
		if err != nil {
			return nil, err
		}
		config := unix.LoopConfig{Size: volumeBlock}
		config.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
		copy(config.Info.File_name[:len(config.Info.File_name)-1], filepath.Base(image.Name()))
		err = control(image, func(from int) error {
			config.Fd = uint32(from)
			return control(device, func(fd int) error {
				if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.LOOP_CONFIGURE, uintptr(unsafe.Pointer(&config))); errno != 0 {
					return errno
				}
				return nil
			})
		})
		if err == nil {
			return device, nil
		}
		err = errors.Join(err, device.Close())
		if !errors.Is(err, unix.EBUSY) { // that says that somebody else took it first
			return nil, fmt.Errorf("configure %s: %w", device.Name(), err)
		}
	}
	return nil, fmt.Errorf("find a free loop device: %w", unix.EBUSY)
}

// findLoop returns the device that an image has already. While it is open it stays that image's.
func findLoop(dev, ino uint64) (*os.File, error) {
	used, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	for _, path := range used {
		device, err := openLoop(strings.Split(path, "/")[3], os.O_RDONLY) // for writing, its closing would be an event to udev
		if gone(err) || errors.Is(err, unix.ENXIO) {
			continue // given back meanwhile
		}
		if err != nil {
			return nil, err
		}
		var info *unix.LoopInfo64
		err = control(device, func(fd int) (err error) {
			info, err = unix.IoctlLoopGetStatus64(fd)
			return err
		})
		if err == nil && info.Device == dev && info.Inode == ino {
			return device, nil
		}
		if err := device.Close(); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// openLoop opens a loop device by its name. One that is not there is fs.ErrNotExist.
func openLoop(name string, flags int) (*os.File, error) {
	text, err := os.ReadFile("/sys/block/" + name + "/dev")
	if err != nil {
		return nil, err
	}
	var major, minor uint32
	if _, err := fmt.Sscanf(string(text), "%d:%d", &major, &minor); err != nil {
		return nil, fmt.Errorf("read the number of %s: %w", name, err)
	}
	return openDevice("/dev/"+name, flags, unix.S_IFBLK, unix.Mkdev(major, minor))
}

// openDevice opens a device, for which it makes the file where that is missing: /dev of a container is a folder that nobody
// fills, with the devices of its beginning alone.
func openDevice(path string, flags int, kind uint32, number uint64) (*os.File, error) {
	f, err := os.OpenFile(path, flags, 0)
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	if err := unix.Mknod(path, kind|0o600, int(number)); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, &os.PathError{Op: "mknod", Path: path, Err: err}
	}
	return os.OpenFile(path, flags, 0)
}
