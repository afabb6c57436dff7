package identity

import (
	"context"
	"net/netip"

	"github.com/clawjail/clawjail/internal/audit"
)

// Record writes down what is about to be done, and does it. An act that cannot be written down is not done.
func (s *Service) Record(ctx context.Context, i audit.Intent, do func() error) error {
	return audit.Do(ctx, s.o.Audit, i, do)
}

// Ending does something that waits only for a moment for its record.
func (s *Service) Ending(i audit.Intent, do func() error) error {
	return audit.Ending(s.o.Audit, i, do)
}

// Note writes down that something was refused.
func (s *Service) Note(e audit.Event) {
	e.Result = audit.Refused
	s.o.Audit.Note(e)
}

// Detail is what is recorded beside who did what: the fields that are not empty.
func Detail(fields map[string]string) audit.Detail {
	out := audit.Fields{}
	for name, value := range fields {
		if value != "" {
			out[name] = value
		}
	}
	return audit.NewDetail(out)
}

// Address is an address as it is recorded, and empty for none.
func Address(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return canonical(a).String()
}
