//go:build linux

package linux

import (
	"reflect"
	"strings"
	"testing"
)

func TestMountinfoIsParsed(t *testing.T) {
	const text = `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
37 35 98:0 / /a\040b\011\134 ro shared:7 master:1 - tmpfs  ro
`
	want := []mount{
		{ID: 36, Parent: 35, Root: "/mnt1", Point: "/mnt2", Options: []string{"rw", "noatime"}, FSType: "ext3", Super: []string{"rw", "errors=continue"}},
		{ID: 37, Parent: 35, Root: "/", Point: "/a b\t\\", Options: []string{"ro"}, Shared: true, FSType: "tmpfs", Super: []string{"ro"}},
	}
	if got, err := parseMounts(strings.NewReader(text)); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v (%v)\nwant %+v", got, err, want)
	}
	if got, err := parseMounts(strings.NewReader("36 35 98:0 / / rw\n")); err == nil {
		t.Errorf("half a line is read as %+v", got)
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
