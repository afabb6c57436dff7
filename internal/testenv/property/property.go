// Package property runs property tests, of pgregory.net/rapid: `make test` with the same cases each time, so that a change is
// not stopped by a rare case of something else, and `make test-long` with others each time.
package property

import (
	"flag"
	"strconv"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/testenv"
)

// seed is that of `make test`.
const seed = 20261126

// Check tries a property a hundred times.
func Check(t *testing.T, property func(*rapid.T)) {
	t.Helper()
	once()
	t.Logf("-rapid.seed=%v", flag.Lookup("rapid.seed").Value)
	rapid.Check(t, property)
}

// CheckFew is Check for a property of which one try takes long: 25 times, but in `make test-long` a hundred times.
func CheckFew(t *testing.T, property func(*rapid.T)) {
	t.Helper()
	if !testenv.IsLong() {
		checks := flag.Lookup("rapid.checks")
		was := checks.Value.String()
		set("rapid.checks", "25")
		defer set("rapid.checks", was)
	}
	Check(t, property)
}

// once sets the seed, unless the caller of go test has said one.
var once = sync.OnceFunc(func() {
	if given := flag.Lookup("rapid.seed").Value.String(); given == "0" && !testenv.IsLong() {
		set("rapid.seed", strconv.Itoa(seed))
	}
})

func set(name, value string) {
	if err := flag.Set(name, value); err != nil {
		panic(err) // the flag and the value are rapid's
	}
}
