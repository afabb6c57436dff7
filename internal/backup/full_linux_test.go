package backup

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/problem"
)

func TestAFullDiskStopsARestoreBeforeAnythingIsChanged(t *testing.T) {
	h := newHouse(t)
	h.write("agents/big", strings.Repeat("0123456789abcdef", 1<<16))
	data := h.backup(nil)
	home := t.TempDir()
	h.must(unix.Mount("tmpfs", home, "tmpfs", 0, "size=800k"))
	t.Cleanup(func() { _ = unix.Unmount(home, unix.MNT_DETACH) })
	o := restoring(home)
	_, err := Restore(t.Context(), bytes.NewReader(data), o)
	code(t, err, problem.DiskFull)
	if left, err := os.ReadDir(o.Config.DataDir); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}
