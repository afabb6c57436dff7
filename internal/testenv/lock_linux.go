package testenv

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Cache keeps what takes long to make from one run to the next, and the locks that all test binaries of the machine share.
const Cache = "/var/cache/clawjail-test"

// Alone waits until no other test of the machine has the lock of that name, and has it until this one has ended. It is for what
// no namespace divides.
func Alone(t testing.TB, name string) {
	t.Helper()
	take(t, lockNamed(t, name), unix.LOCK_EX)
}

// Keep has something built that is kept in Cache, unless it is current. Until this test has ended no other one builds it.
func Keep(t testing.TB, name string, current func() bool, build func()) {
	t.Helper()
	lock := lockNamed(t, name)
	for range 3 {
		if take(t, lock, unix.LOCK_SH); current() {
			return
		}
		// Between the two locks somebody else may have built it.
		take(t, lock, unix.LOCK_UN)
		if take(t, lock, unix.LOCK_EX); !current() {
			build()
		}
	}
	t.Fatalf("others keep building another %s", name)
}

// lockNamed opens the file of a lock, which is free when the test has ended.
func lockNamed(t testing.TB, name string) *os.File {
	t.Helper()
	if err := os.MkdirAll(Cache, 0o755); err != nil {
		t.Fatal(err)
	}
	lock, err := os.OpenFile(filepath.Join(Cache, name+".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lock.Close(); err != nil {
			t.Error(err)
		}
	})
	return lock
}

func take(t testing.TB, lock *os.File, how int) {
	t.Helper()
	err := unix.Flock(int(lock.Fd()), how)
	for errors.Is(err, unix.EINTR) {
		err = unix.Flock(int(lock.Fd()), how)
	}
	if err != nil {
		t.Fatal(err)
	}
}
