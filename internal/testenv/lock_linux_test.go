package testenv

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func TestWhoIsAloneIsUntilTheEnd(t *testing.T) {
	Need(t, Root)
	other := lockNamed(t, "test")
	taken := func() bool {
		err := unix.Flock(int(other.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
			t.Fatal(err)
		}
		return err != nil
	}
	t.Run("alone", func(t *testing.T) {
		Alone(t, "test")
		if !taken() {
			t.Error("another one has the lock too")
		}
	})
	if taken() {
		t.Error("the lock is not free when the test has ended")
	}
}
