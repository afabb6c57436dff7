package testenv

import "testing"

// Templates returns a folder with the given templates in it, which cannot be written to, for this test alone.
func Templates(t testing.TB, templates ...string) string {
	t.Helper()
	Root(t)
	return together(t, templates...)
}
