//go:build linux

package linux

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/problem"
)

// Each kernel takes the layers of an overlay in its own way; an error that says something else is not hidden.
func TestLayersAreSetAsTheKernelTakesThem(t *testing.T) {
	for _, c := range []struct {
		name     string
		answer   error // of the kernel, to a descriptor
		wantText string
		wantErr  error
	}{
		{"a descriptor is taken", nil, "", nil},
		{"the key is unknown, as before Linux 6.13", unix.EINVAL, "lowerdir=/proc/self/fd/7", nil},
		{"descriptors are unknown, as before Linux 6.5", unix.EOPNOTSUPP, "lowerdir=/proc/self/fd/7", nil},
		{"no permission", unix.EPERM, "", unix.EPERM},
	} {
		t.Run(c.name, func(t *testing.T) {
			var text string
			calls := layerCalls{
				descriptor: func(_ int, key string, fd int) error {
					if key != "lowerdir+" || fd != 7 {
						t.Errorf("the descriptor %d was given as %q", fd, key)
					}
					return c.answer
				},
				text: func(_ int, key, value string) error { text = key + "=" + value; return nil },
			}
			if err := calls.set(3, "lowerdir+", "lowerdir", 7); !errors.Is(err, c.wantErr) {
				t.Errorf("error %v, want %v", err, c.wantErr)
			}
			if text != c.wantText {
				t.Errorf("set as text: %q, want %q", text, c.wantText)
			}
		})
	}
}

// A host daemon whose kernel cannot make any jail's file system says so when it starts.
func TestAKernelWithoutOverlaysIsNoticedBeforeAJailIsMade(t *testing.T) {
	for _, answer := range []error{unix.ENODEV, unix.ENOSYS} {
		err := readyToOverlay(func(string, int) (int, error) { return -1, answer })
		if p, ok := problem.As(err); !ok || p.Code != problem.Unsupported || !strings.Contains(p.Hint, "modprobe overlay") {
			t.Errorf("%v: got %v", answer, err)
		}
	}
	if err := readyToOverlay(func(string, int) (int, error) { return -1, unix.EPERM }); !errors.Is(err, unix.EPERM) || problem.CodeOf(err) == problem.Unsupported {
		t.Errorf("no permission: got %v", err)
	}
	asked := ""
	if err := readyToOverlay(func(fstype string, _ int) (int, error) {
		asked = fstype
		return unix.Open("/", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}); err != nil || asked != "overlay" {
		t.Errorf("a kernel that has it: asked for %q, got %v", asked, err)
	}
}
