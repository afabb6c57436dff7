//go:build linux

package linux

import (
	"reflect"
	"strings"
	"testing"
)

func TestMountinfoIsParsed(t *testing.T) {
	for line, want := range map[string]mount{
		`36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`: {
			ID: 36, Parent: 35, Root: "/mnt1", Point: "/mnt2", Options: []string{"rw", "noatime"}, FSType: "ext3", Super: []string{"rw", "errors=continue"}},
		`36 35 98:0 / /a\040b\011\134 ro shared:7 master:1 - tmpfs  ro`: {
			ID: 36, Parent: 35, Root: "/", Point: "/a b\t\\", Options: []string{"ro"}, Shared: true, FSType: "tmpfs", Super: []string{"ro"}},
		`1 1 0:1 / / rw - rootfs none rw`: {
			ID: 1, Parent: 1, Root: "/", Point: "/", Options: []string{"rw"}, FSType: "rootfs", Super: []string{"rw"}},
	} {
		got, err := parseMount(line)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s\n got %+v (%v)\nwant %+v", line, got, err, want)
		}
	}
	for _, line := range []string{"", "36 35 98:0 / / rw", "x 35 98:0 / / rw - ext3 a rw", "36 35 - ext3 a rw", "36 35 98:0 / / rw - ext3"} {
		if m, err := parseMount(line); err == nil {
			t.Errorf("%q was read as %+v", line, m)
		}
	}
}

func TestOnlyWhatLiesBelowIsBelow(t *testing.T) {
	for point, want := range map[string]bool{"/run/x": true, "/run/x/y": true, "/run/xy": false, "/run": false, "/": false} {
		if got := (mount{Point: point}).below("/run/x"); got != want {
			t.Errorf("%s below /run/x: %v", point, got)
		}
		if !(mount{Point: point}).below("/") {
			t.Errorf("%s is not below /", point)
		}
	}
}

func FuzzMountinfo(f *testing.F) {
	f.Add(`36 35 98:0 /mnt1 /mnt\0402 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`)
	f.Add(`1 1 0:1 \ \04 - - - - -`)
	f.Fuzz(func(t *testing.T, line string) {
		m, err := parseMount(line)
		if err != nil {
			return
		}
		// A path that the kernel has escaped comes back as it was.
		escaped := strings.NewReplacer(`\`, `\134`, " ", `\040`, "\t", `\011`, "\n", `\012`).Replace(m.Point)
		if back := unescapeMount(escaped); back != m.Point {
			t.Errorf("%q became %q", m.Point, back)
		}
	})
}
