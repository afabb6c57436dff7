//go:build linux

package operators

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/selftest"
	"github.com/clawjail/clawjail/test/testkit"
)

// TestTheSelfTestJudgesThisMachine runs `clawjail selftest` where everything holds, and where it cannot.
func TestTheSelfTestJudgesThisMachine(t *testing.T) {
	t.Run("a machine that is well", func(t *testing.T) {
		b := testkit.Prepare(t, instance.Options{Settings: testkit.NoPool})
		b.AsUnit(t)
		out, err := b.Run(t.Context(), "selftest", "--cycles", "1", "--json")
		var r selftest.Report
		if jsonErr := json.Unmarshal([]byte(out), &r); jsonErr != nil {
			t.Fatalf("%v\n%v\n%s", err, jsonErr, out)
		}
		if err != nil || !r.OK || r.Cycles != 1 || r.Operator != 1 || len(r.Failures)+len(r.Residue) > 0 {
			t.Errorf("%v\n%+v", err, r)
		}
		for _, stage := range []string{"clone", "attach", "start", "ready", "inject", "open", "navigate", "teardown"} {
			if r.Stages[stage].Max <= 0 {
				t.Errorf("nothing was measured of %s", stage)
			}
		}
		if _, err := os.Stat(filepath.Join(b.Config.DataDir, "selftest")); !os.IsNotExist(err) {
			t.Errorf("its folder is left: %v", err)
		}
	})
	t.Run("a host daemon that may not enter mounts", func(t *testing.T) {
		b := testkit.Prepare(t, instance.Options{Settings: testkit.NoPool})
		b.AsUnit(t, "sys_chroot")
		out, err := b.Command(t.Context(), "selftest", "--cycles", "1", "--json").Output()
		var r selftest.Report
		if jsonErr := json.Unmarshal(out, &r); jsonErr != nil || err == nil || r.OK || len(r.Failures) == 0 {
			t.Errorf("%v, %v\n%s", err, jsonErr, out)
		}
	})
	t.Run("a machine without a runtime", func(t *testing.T) {
		b := testkit.Prepare(t, instance.Options{Settings: testkit.NoPool + "runtime: /bin/false\n"})
		cmd := b.Command(t.Context(), "selftest", "--cycles", "1", "--json")
		out, err := cmd.Output()
		var r selftest.Report
		if jsonErr := json.Unmarshal(out, &r); jsonErr != nil {
			t.Fatalf("%v\n%v\n%s", err, jsonErr, out)
		}
		if err == nil || r.OK || r.Cycles != 0 || len(r.Failures) == 0 {
			t.Errorf("%v\n%+v", err, r)
		}
	})
}
