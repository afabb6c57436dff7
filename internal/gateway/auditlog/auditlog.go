// Package auditlog writes what the gateway decides into the audit log: an intent before anything leaves, its outcome when it is
// over, and refusals.
//
// The actions are gateway.connect, gateway.forward, gateway.execute, gateway.service and gateway.llm. The target is host:port;
// the detail has what is needed to decide the request again (method, scheme, path, rule), and nothing of a query, a
// header or a body.
package auditlog

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/problem"
)

// Log is an audit log as the gateway writes it.
type Log struct{ log audit.Records }

// New makes a Log.
func New(log audit.Records) Log { return Log{log} }

var _ gateway.Records = Log{}

func intent(d gateway.Decision) audit.Intent {
	target := d.Host.String()
	if target != "" {
		target += ":" + strconv.Itoa(int(d.Port))
	}
	return audit.Intent{Action: "gateway." + string(d.Surface), Tenant: d.Tenant, Actor: d.Actor, Session: d.Session, Jail: d.Jail, Target: target,
		Detail: detail(d)}
}

// detail is what is recorded of a decision: enough to decide it again, and nothing of a query, a header or a body. It is made
// for every request, so without a map; the names are in order.
func detail(d gateway.Decision) audit.Detail {
	fields := make([]audit.Field, 0, 11)
	text := func(name, value string) {
		if value != "" {
			fields = append(fields, audit.Text(name, printable(value)))
		}
	}
	flag := func(name string, set bool) {
		if set {
			fields = append(fields, audit.True(name))
		}
	}
	text("agent", d.Agent)
	flag("allowed", d.Allowed)
	if !d.Allowed {
		fields = append(fields, audit.False("allowed"))
	}
	text("code", d.Code)
	flag("confined", d.Confined)
	flag("injected", d.Credential)
	fields = append(fields, audit.Text("method", printable(d.Method)))
	text("path", d.Path)
	flag("reported", d.Reported)
	text("rule", d.Rule)
	fields = append(fields, audit.Text("scheme", string(d.Scheme)))
	text("service", d.Service)
	return audit.NewDetailOf(fields...)
}

// printable replaces what some database would not store: a jail may put any bytes into a path.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '\uFFFD'
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
}

// Begin implements gateway.Records.
func (l Log) Begin(ctx context.Context, d gateway.Decision) (gateway.Record, error) {
	p, err := l.log.Begin(ctx, intent(d))
	if err != nil {
		return nil, err
	}
	return entry{p}, nil
}

// Refused implements gateway.Records.
func (l Log) Refused(d gateway.Decision) {
	i := intent(d)
	l.log.Note(audit.Event{Action: i.Action, Result: audit.Refused, Tenant: i.Tenant, Actor: i.Actor, Session: i.Session, Jail: i.Jail, Target: i.Target, Detail: i.Detail})
}

// entry is the record of one request that was begun.
type entry struct{ pending audit.Pending }

// End implements gateway.Record.
func (e entry) End(o gateway.Outcome) {
	fields := make([]audit.Field, 0, 7)
	if o.Address.IsValid() {
		fields = append(fields, audit.Text("address", o.Address.String()))
	}
	fields = append(fields, audit.Number("bytes_in", o.BytesIn), audit.Number("bytes_out", o.BytesOut))
	result := audit.OK
	if o.Code != "" {
		fields = append(fields, audit.Text("code", o.Code))
		result = audit.Failed
		if refusalCode(o.Code) {
			result = audit.Refused
		}
	}
	fields = append(fields, audit.Number("ms", o.Took.Milliseconds()))
	if o.Reused {
		fields = append(fields, audit.True("reused"))
	}
	if o.Status != 0 {
		fields = append(fields, audit.Number("status", int64(o.Status)))
	}
	e.pending.End(audit.Outcome{Result: result, Detail: audit.NewDetailOf(fields...)})
}

// refusalCode says whether the code is that of a refusal, and not of a failure.
func refusalCode(code string) bool {
	return slices.Contains([]string{problem.SNIMismatch, problem.AddressDenied, problem.HostDenied, problem.PortDenied}, code) ||
		slices.Contains(gateway.OwnCodes(), code)
}
