// Package ledger writes what the gateway decides into the audit log: an intent before anything leaves, its outcome when it is
// over, and refusals.
//
// The actions are gateway.connect, gateway.forward, gateway.execute, gateway.service and gateway.llm. The target is host:port;
// the detail has what is needed to decide the request again (method, scheme, path, rule), and nothing of a query, a
// header or a body.
package ledger

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/problem"
)

// Log is where records go. *audit.Log is one.
type Log interface {
	Begin(ctx context.Context, i audit.Intent) (*audit.Pending, error)
	Note(e audit.Event)
}

// Ledger is an audit log as the gateway writes it.
type Ledger struct{ log Log }

// New makes a Ledger.
func New(log Log) Ledger { return Ledger{log} }

var _ gateway.Records = Ledger{}

func intent(d gateway.Decision) audit.Intent {
	target := d.Host.String()
	if target != "" {
		target = fmt.Sprintf("%s:%d", target, d.Port)
	}
	return audit.Intent{Action: "gateway." + string(d.Surface), Tenant: d.Tenant, Actor: d.Actor, Session: d.Session, Jail: d.Jail, Target: target,
		Detail: audit.NewDetail(fieldsOf(d))}
}

// fieldsOf are what is recorded of a decision: enough to decide it again, and nothing of a query, a header or a body.
func fieldsOf(d gateway.Decision) audit.Fields {
	fields := audit.Fields{"method": printable(d.Method), "scheme": string(d.Scheme), "allowed": d.Allowed}
	for name, text := range map[string]string{"path": d.Path, "rule": d.Rule, "service": d.Service, "code": d.Code, "agent": d.Agent} {
		if text != "" {
			fields[name] = printable(text)
		}
	}
	if d.Credential {
		fields["injected"] = true
	}
	if d.Reported {
		fields["reported"] = true
	}
	return fields
}

// printable is a text that every database keeps: a jail may put any bytes into a path.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '\uFFFD'
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
}

// Begin implements gateway.Records.
func (l Ledger) Begin(ctx context.Context, d gateway.Decision) (gateway.Record, error) {
	p, err := l.log.Begin(ctx, intent(d))
	if err != nil {
		return nil, err
	}
	return entry{p}, nil
}

// Refused implements gateway.Records.
func (l Ledger) Refused(d gateway.Decision) {
	i := intent(d)
	l.log.Note(audit.Event{Action: i.Action, Result: audit.Refused, Tenant: i.Tenant, Actor: i.Actor, Session: i.Session, Jail: i.Jail, Target: i.Target, Detail: i.Detail})
}

// entry is one intent of the gateway's.
type entry struct{ pending *audit.Pending }

// End implements gateway.Record.
func (e entry) End(o gateway.Outcome) {
	fields := audit.Fields{"bytes_out": o.BytesOut, "bytes_in": o.BytesIn, "ms": o.Took.Milliseconds()}
	if o.Address.IsValid() {
		fields["address"] = o.Address.String()
	}
	if o.Status != 0 {
		fields["status"] = o.Status
	}
	if o.Reused {
		fields["reused"] = true
	}
	result := audit.OK
	if o.Code != "" {
		fields["code"] = o.Code
		result = audit.Failed
		if refusalCode(o.Code) {
			result = audit.Refused
		}
	}
	e.pending.End(audit.Outcome{Result: result, Detail: audit.NewDetail(fields)})
}

// refusalCode says whether a code is that of something that was not let through, unlike one of something that went wrong.
func refusalCode(code string) bool {
	return slices.Contains([]string{problem.SNIMismatch, problem.AddressDenied, problem.HostDenied, problem.PortDenied}, code) ||
		slices.Contains(gateway.OwnCodes(), code)
}
