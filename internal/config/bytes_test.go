package config

import (
	"testing"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv/property"
	"pgregory.net/rapid"
)

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]Bytes{
		"1KiB": 1024, "512MiB": 512 << 20, "2GiB": 2 << 30, "1TiB": 1 << 40, "0KiB": 0, "8388607TiB": 8388607 << 40,
	} {
		if got, err := ParseBytes(text); err != nil || got != want {
			t.Errorf("%s: got %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "5", "5B", "5M", "5MB", "5mib", "MiB", "-5MiB", "+5MiB", "1.5GiB", " 5MiB", "5 MiB", "0x5MiB", "8388608TiB", "99999999999999999999KiB"} {
		if got, err := ParseBytes(text); problem.CodeOf(err) != problem.BadLimit {
			t.Errorf("%q: got %d, %v", text, got, err)
		}
	}
}

func TestBytesAreReadAsTheyAreWritten(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		want := Bytes(rapid.Int64Range(0, 1<<52).Draw(t, "KiB")) * KiB
		if got, err := ParseBytes(want.String()); err != nil || got != want {
			t.Fatalf("%d is written %s and read %d, %v", want, want, got, err)
		}
	})
}
