package yamldoc

import (
	"slices"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/problem"
)

// Value is a scalar as it stands in the file.
type Value struct {
	// Text is the value without quotes.
	Text string
	tag  string
}

// Int reads a whole decimal number. YAML has several bases, and 010 is a different number in each of its versions:
// only what everybody reads alike is accepted.
func (v Value) Int() (int64, error) {
	digits := strings.TrimPrefix(v.Text, "-")
	if v.tag != "!!int" || strings.Trim(digits, "0123456789") != "" || len(digits) > 1 && digits[0] == '0' {
		return 0, problem.New(problem.BadConfig, "write a number such as 20, without quotes", "%q is not a whole number", shorten(v.Text))
	}
	n, err := strconv.ParseInt(v.Text, 10, 64)
	if err != nil {
		return 0, problem.New(problem.BadConfig, "", "%s is too large", shorten(v.Text))
	}
	return n, nil
}

// Number reads a decimal number with or without a fraction. Infinity and not-a-number are refused.
func (v Value) Number() (float64, error) {
	bad := problem.New(problem.BadConfig, "write a number such as 1.5, without quotes", "%q is not a number", shorten(v.Text))
	if v.tag != "!!int" && v.tag != "!!float" || strings.Trim(v.Text, "-.0123456789") != "" {
		return 0, bad
	}
	n, err := strconv.ParseFloat(v.Text, 64)
	if err != nil {
		return 0, bad
	}
	return n, nil
}

// Bool reads true or false, and nothing else that YAML has for them.
func (v Value) Bool() (bool, error) {
	if v.tag == "!!bool" && (v.Text == "true" || v.Text == "false") {
		return v.Text == "true", nil
	}
	return false, problem.New(problem.BadConfig, "write true or false", "%q is not true or false", shorten(v.Text))
}

// Word reads one of the allowed words.
func (v Value) Word(allowed ...string) (string, error) {
	if slices.Contains(allowed, v.Text) {
		return v.Text, nil
	}
	return "", problem.New(problem.BadConfig, "write one of "+strings.Join(allowed, ", "), "%q is not known here", shorten(v.Text))
}

// shorten keeps messages readable when the value is not.
func shorten(text string) string { return texts.Clip(text, 60) }
