// Package texts makes texts that somebody else wrote fit for a message: bounded, quoted, and harmless for a terminal.
//
// It promises no more than that: which bounds a text has, and what else may not be in it, is its users' to say.
package texts

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Clip bounds a text to max bytes. A longer one is cut at the border of a character, and ends with "…", which is not counted.
func Clip(s string, max int) string {
	if len(s) <= max {
		return s
	}
	return strings.ToValidUTF8(s[:max], "") + "…"
}

// Fit bounds a text to max characters, for a column or a line. A longer one ends with "…", which is the last of them.
func Fit(s string, max int) string {
	if runes := []rune(s); len(runes) > max {
		return string(runes[:max-1]) + "…"
	}
	return s
}

// Quote is the text in quotation marks and clipped to max bytes, with escapes for what cannot be printed.
func Quote(s string, max int) string { return fmt.Sprintf("%q", Clip(s, max)) }

// Printable is a text in which the replacement stands for each character that cannot be printed; a negative one takes them out.
func Printable(s string, replacement rune) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return replacement
		}
		return r
	}, s)
}

// Duration reads a time as Go writes it, such as 1h30m, or a number of days, such as 30d, up to 100 000.
func Duration(text string) (time.Duration, error) {
	days, found := strings.CutSuffix(text, "d")
	if !found {
		return time.ParseDuration(text)
	}
	n, err := strconv.ParseUint(days, 10, 32)
	if err == nil && n > 100_000 {
		err = strconv.ErrRange
	}
	if err != nil {
		return 0, err
	}
	return time.Duration(n) * 24 * time.Hour, nil
}
