package op

import (
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/quota"
)

// Block is a part of what people read of an answer: a table, pairs of a name and a value, or a line. The command line
// writes values of the types below, times, lists of texts and texts as it always does; whatever they hold, no terminal
// obeys them.
type Block struct {
	// Table has its heading in the first row.
	Table [][]any
	// Folds is the number of a column, from 1, that is left out while all its values are the same.
	Folds int
	// Pairs with an empty value are left out.
	Pairs [][2]any
	// Line is a format of fmt for Args.
	Line string
	Args []any
	// Aside is beside the result: on standard error.
	Aside bool
}

type (
	// Age is when something began, written as how long ago that was.
	Age time.Time
	// Ends is a time that may never come.
	Ends time.Time
	// Deadline is a time with how long it is until then.
	Deadline time.Time
	// Bytes is a size.
	Bytes int64
	// Key is how a key is doing.
	Key struct{ Revoked, Expires time.Time }
	// Joined is written as one.
	Joined []any
	// Count is a number of what Of says, in the singular.
	Count struct {
		N  int
		Of string
	}
)

// Share is a number of what is divided between tenants.
func Share(u quota.Use, n int64) any {
	if u.Unit == "bytes" {
		return Bytes(n)
	}
	return n
}

// table makes a table of what is listed.
func table[T any](all []T, heading []any, row func(T) []any) Block {
	return Block{Table: append([][]any{heading}, listOf(all, row)...)}
}

func line(format string, args ...any) Block { return Block{Line: format, Args: args} }

// listOf is a list of what is made of each. It is there, also when it is empty.
func listOf[A, B any](all []A, of func(A) B) []B {
	out := make([]B, len(all))
	for n, one := range all {
		out[n] = of(one)
	}
	return out
}

// commas are texts in one.
func commas[T ~string](all []T) string {
	return strings.Join(listOf(all, func(one T) string { return string(one) }), ", ")
}

// same is an element of a list that is answered as it is.
func same[T any](one T) T { return one }

// when is a time, or nothing.
func when(t time.Time) any {
	if t.IsZero() {
		return ""
	}
	return t
}

// allWhenNone is a tenant, or all of them.
func allWhenNone(tenant string) string {
	if tenant == "" {
		return "(all)"
	}
	return tenant
}
