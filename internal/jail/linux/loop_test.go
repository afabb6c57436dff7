//go:build linux

package linux

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/testenv"
)

// A container's /dev is a plain folder: the kernel puts nothing there, and a loop device that was never opened before has no
// file.
func TestADeviceWithoutAFileGetsOne(t *testing.T) {
	testenv.Need(t, testenv.Root)
	path := filepath.Join(t.TempDir(), "zero")
	f, err := openDevice(path, os.O_RDONLY, unix.S_IFCHR, unix.Mkdev(1, 5))
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := errors.Join(unix.Fstat(int(f.Fd()), &st), f.Close()); err != nil {
		t.Fatal(err)
	}
	if st.Mode != unix.S_IFCHR|0o600 || st.Rdev != unix.Mkdev(1, 5) {
		t.Errorf("mode %o, device %x", st.Mode, st.Rdev)
	}
	// One that is there is opened as it is, whatever it is.
	other := filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err = openDevice(other, os.O_RDONLY, unix.S_IFCHR, unix.Mkdev(1, 5))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.Fstat(int(f.Fd()), &st), f.Close()); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		t.Errorf("mode %o, %v", st.Mode, err)
	}
	if _, err := openLoop("loop-none", os.O_RDONLY); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a device that the kernel does not have: %v", err)
	}
}
