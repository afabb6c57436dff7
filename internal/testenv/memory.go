package testenv

import (
	"runtime"
	"strings"
)

// Allocated is how many bytes f takes in memory, one after the other.
func Allocated(f func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

// Members are members of a JSON object, of about n bytes, each with a name of its own.
func Members(n int) string {
	var out strings.Builder
	for i := range n / 9 {
		if i > 0 {
			out.WriteByte(',')
		}
		out.WriteByte('"')
		for shift := range 5 {
			out.WriteByte('a' + byte(i>>(4*shift)&15))
		}
		out.WriteString(`":1`)
	}
	return out.String()
}
