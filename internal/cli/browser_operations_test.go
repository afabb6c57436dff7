package cli

import (
	"strings"
	"testing"
)

// The bounds of a time are in the help of its flag, and the error for another time has them in the same words.
func TestTimesSayTheirBounds(t *testing.T) {
	for _, c := range []struct{ command, flag, bounds, least, most, below, above string }{
		{"wait", "time", "1ms to 30s", "1ms", "30s", "0s", "31s"},
		{"wait", "timeout", "500ms to 2m", "500ms", "2m", "499ms", "5m"},
		{"navigate", "timeout", "1s to 2m", "1s", "120s", "999ms", "121s"},
	} {
		root := New("v1.2.3")
		cmd, _, err := root.Find([]string{"session", c.command})
		if err != nil {
			t.Fatal(err)
		}
		flag := cmd.Flags().Lookup(c.flag)
		if flag == nil || !strings.HasSuffix(flag.Usage, "; "+c.bounds) {
			t.Fatalf("the help of %s --%s is %+v", c.command, c.flag, flag)
		}
		for _, good := range []string{c.least, c.most} {
			if err := flag.Value.Set(good); err != nil {
				t.Errorf("%s --%s %s: %v", c.command, c.flag, good, err)
			}
		}
		for _, bad := range []string{c.below, c.above, "99h", "-1s", "x"} {
			if err := flag.Value.Set(bad); err == nil || !strings.Contains(err.Error(), c.bounds) {
				t.Errorf("%s --%s %s: %v", c.command, c.flag, bad, err)
			}
		}
	}
}
