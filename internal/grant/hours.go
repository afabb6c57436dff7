package grant

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/problem"
)

// Hours are those of a day, in UTC, in which a permission is good: 08-18 is from 8:00 until 18:00, 22-06 over midnight.
// Empty are all.
type Hours string

// parse returns the first hour, and the one that is the first outside.
func (h Hours) parse() (from, to int, err error) {
	a, b, found := strings.Cut(string(h), "-")
	from, fromErr := strconv.Atoi(a)
	to, toErr := strconv.Atoi(b)
	if !found || fromErr != nil || toErr != nil || fmt.Sprintf("%02d-%02d", from, to) != string(h) || from < 0 || from > 23 || to < 0 || to > 24 || from == to {
		return 0, 0, fmt.Errorf("%s is not a range of hours", texts.Quote(string(h), 80))
	}
	return from, to, nil
}

// Validate says what is wrong with them.
func (h Hours) Validate() error {
	if _, _, err := h.parse(); err != nil && h != "" {
		return problem.Wrap(err, problem.BadRequest, "write the first hour and the hour after the last, in UTC, such as 08-18", "%s is not a range of hours", texts.Quote(string(h), 80))
	}
	return nil
}

// contain says whether a moment is within the hours. Hours that cannot be read contain none.
func (h Hours) contain(t time.Time) bool {
	if h == "" {
		return true
	}
	from, to, err := h.parse()
	hour := t.UTC().Hour()
	switch {
	case err != nil:
		return false
	case from < to:
		return from <= hour && hour < to
	}
	return hour >= from || hour < to
}
