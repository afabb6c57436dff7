package op

import (
	"fmt"
	"time"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// OfTenant is a request about all that a tenant has of something.
type OfTenant struct {
	Tenant string `query:"tenant" pattern:"^[a-z0-9-]{1,40}$" doc:"the caller's own when it is left out; of a caller of all tenants, all" flag:"tenant" value:"tenant" usage:"tenant whose it is; only an admin of all tenants can name another than their own" complete:"tenants"`
}

// CheckTenant refuses a tenant of a body that none can be called. Those of addresses are checked by their pattern.
func CheckTenant(name string) error {
	valid := len(name) <= 40
	for _, c := range name {
		valid = valid && (c == '-' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9')
	}
	if !valid {
		return problem.New(problem.BadName, "use 1 to 40 of a-z, 0-9 and -", "the name of the tenant is not valid")
	}
	return nil
}

// Never is the life of a key that is good until it is revoked.
const Never = "never"

// Life reads how long a key is to be good.
func Life(text string) (time.Duration, error) {
	if text == "" || text == Never {
		return identity.NeverExpires, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 { // below zero there is a number that means never
		return 0, problem.New(problem.BadLimit, "give a time such as 720h, or never", "the life %s is not a positive duration", quote(text))
	}
	return d, nil
}

// quote is a text of the caller's in a message, as far as it is short.
func quote(s string) string {
	if len(s) > 80 {
		s = s[:80] + "…"
	}
	return fmt.Sprintf("%q", s)
}
