//go:build linux

package operators

import (
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/health"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/test/testkit"
)

// statusOf is what `clawjail status` says, and with what status it ends. It must not hang.
func statusOf(b *testkit.Installation) (out health.Status, code int) {
	b.T.Helper()
	ctx, cancel := context.WithTimeout(b.T.Context(), 20*time.Second) // the machine may be busy
	defer cancel()
	text, err := b.Command(ctx, "status", "--json").Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code, err = exit.ExitCode(), nil
	}
	if err := errors.Join(err, json.Unmarshal(text, &out)); err != nil {
		b.T.Fatalf("status: %v\n%s", err, text)
	}
	return out, code
}

func TestStatusOfAnInstanceThatRunsAndOfOneThatDoesNot(t *testing.T) {
	b := testkit.Start(t, instance.Options{Settings: testkit.NoPool})
	s, code := statusOf(b)
	if code != 0 || s.Level == health.Failed || !s.ControlPlane || s.Machine == nil || !s.Machine.Reachable || s.Gateway == nil || s.Gateway.Listen == "" ||
		s.Database == nil || !s.Database.Answers || s.Database.Bytes == 0 || s.Audit == nil || len(s.Machine.Templates) == 0 {
		t.Errorf("it ended with %d and said %+v", code, s)
	}
	if err := b.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	s, code = statusOf(b)
	has := func(code string) bool {
		return slices.ContainsFunc(s.Attention, func(a health.Attention) bool { return a.Code == code })
	}
	if code != 1 || s.Level != health.Failed || s.ControlPlane || s.Machine == nil || s.Machine.Reachable || len(s.Machine.Templates) == 0 ||
		!has(health.ControlPlaneDown) || !has(health.HostDaemonDown) {
		t.Errorf("stopped, it ended with %d and said %+v", code, s)
	}
}
