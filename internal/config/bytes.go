package config

import (
	"math"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/problem"
)

// Bytes is a size. It is written with a binary unit: "512MiB".
type Bytes int64

// The units, each 1024 of the one before.
const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
	TiB Bytes = 1 << 40
)

type unit struct {
	name string
	size Bytes
}

// units are the largest first.
func units() []unit { return []unit{{"TiB", TiB}, {"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB}} }

// ParseBytes reads a whole number with one of the units KiB, MiB, GiB and TiB. The unit is required, and M or MB are
// refused: people mean different numbers by them.
func ParseBytes(text string) (Bytes, error) {
	bad := problem.New(problem.BadLimit, "write a whole number with KiB, MiB or GiB, such as 512MiB", "%q is not a size", text)
	for _, u := range units() {
		digits, found := strings.CutSuffix(text, u.name)
		if !found {
			continue
		}
		if digits == "" || strings.Trim(digits, "0123456789") != "" {
			return 0, bad
		}
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || n > math.MaxInt64/int64(u.size) {
			return 0, problem.New(problem.BadLimit, "", "%s is too large", text)
		}
		return Bytes(n) * u.size, nil
	}
	return 0, bad
}

// String writes the size as ParseBytes reads it, with the largest unit that it is a whole number of. A size below a
// KiB, which no configuration has, is written in bytes.
func (b Bytes) String() string {
	for _, u := range units() {
		if b != 0 && b%u.size == 0 {
			return strconv.FormatInt(int64(b/u.size), 10) + u.name
		}
	}
	if b == 0 {
		return "0KiB"
	}
	return strconv.FormatInt(int64(b), 10) + "B"
}
