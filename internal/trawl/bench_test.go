package trawl

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// BenchmarkSearch is bytes per second through twenty values in all forms, for data of several kinds.
func BenchmarkSearch(b *testing.B) {
	random := rand.NewChaCha8([32]byte{1})
	var needles []Needle
	for n := range 20 {
		value := make([]byte, 32)
		_, _ = random.Read(value) // it never fails
		needles = append(needles, Needle{fmt.Sprint("n", n), []byte(base64.StdEncoding.EncodeToString(value))})
	}
	set, err := NewSet(needles...)
	if err != nil {
		b.Fatal(err)
	}
	const size = 16 << 20
	noise := make([]byte, size)
	_, _ = random.Read(noise) // it never fails
	row := `{"time":"2030-05-01T12:00:00Z","level":"INFO","path":"\/v1\/sessions","html":"\u003cb\u003e","n":1234}` + "\n"
	for _, data := range []struct {
		name string
		data []byte
	}{
		{"random", noise},
		{"zeros", make([]byte, size)},
		{"log", []byte(strings.Repeat(row, size/len(row)))},
		{"base64", []byte(base64.StdEncoding.EncodeToString(noise[:size/4*3]))},
		{"hex", []byte(fmt.Sprintf("%x", noise[:size/2]))},
		{"url", []byte(strings.Repeat("%2F%3dab%20", size/11))},
		{"almost", bytes.Repeat(needles[3].Value[:40], size/40)},
	} {
		b.Run(data.name, func(b *testing.B) {
			b.SetBytes(int64(len(data.data)))
			for b.Loop() {
				if hits, err := set.Reader("data", bytes.NewReader(data.data)); err != nil || len(hits) > 0 {
					b.Fatal(hits, err)
				}
			}
		})
	}
}

// BenchmarkNewSet prepares twenty values.
func BenchmarkNewSet(b *testing.B) {
	var needles []Needle
	for n := range 20 {
		needles = append(needles, Needle{fmt.Sprint("n", n),
			[]byte(fmt.Sprintf("a/b+c=%d;%%&\"'<e>\\ %[1]d|%[1]o~0123456789abcdef", n))})
	}
	for b.Loop() {
		if _, err := NewSet(needles...); err != nil {
			b.Fatal(err)
		}
	}
}
