package console

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/identity"
)

// detailShown bounds what a list shows of a detail.
const detailShown = 140

// auditRecordData is the page of one record.
type auditRecordData struct {
	audit.Row
	Who, Detail    string
	Hash, PrevHash string
	// Other is the outcome of an intent, or the intent of an outcome; nil when there is none.
	Other       *audit.Row
	OtherDetail string
	// Before and Next are beside it in the chain of its node, for who sees all of them.
	Before, Next *audit.Row
	// Denied leads to why a request was refused; empty for what is none.
	Denied string
}

// auditRecord shows one record, and what belongs to it.
func (c *Console) auditRecord(q *request) error {
	row, err := c.auditor().Record(q.ctx(), q.by, q.value("id"))
	if err != nil {
		return err
	}
	data := auditRecordData{Row: row, Who: c.names(q.ctx(), q.by).of(row.Actor), Detail: pretty(row.Detail), Hash: hex.EncodeToString(row.Hash),
		PrevHash: hex.EncodeToString(row.PrevHash)}
	if data.Other, err = c.otherHalf(q, row); err != nil {
		return err
	}
	if data.Other != nil {
		data.OtherDetail = pretty(data.Other.Detail)
	}
	if q.by.Tenant == "" {
		if data.Before, data.Next, err = c.neighbours(q.ctx(), row); err != nil {
			return err
		}
	}
	data.Denied = whyDenied(row)
	return q.show("audit-record", row.Action, data)
}

// otherHalf is the outcome of an intent, or the intent of an outcome.
func (c *Console) otherHalf(q *request, row audit.Row) (*audit.Row, error) {
	filter := audit.Filter{Tenant: q.by.Tenant, Limit: 1}
	switch {
	case row.Phase == audit.PhaseIntent:
		filter.Ref = row.ID
	case row.Ref != "":
		intent, err := c.auditor().Record(q.ctx(), q.by, row.Ref)
		if err != nil {
			return nil, nil // it was removed because of its age
		}
		return &intent, nil
	default:
		return nil, nil
	}
	rows, err := c.Audit.List(q.ctx(), filter)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	return &rows[0], nil
}

// neighbours are the records before and after one in the chain of its node.
func (c *Console) neighbours(ctx context.Context, row audit.Row) (before, next *audit.Row, err error) {
	rows, err := c.Audit.List(ctx, audit.Filter{Node: row.Node, AfterSeq: max(0, row.Seq-2), Limit: 3})
	if err != nil {
		return nil, nil, fmt.Errorf("read the records beside one: %w", err)
	}
	for n := range rows {
		switch rows[n].Seq {
		case row.Seq - 1:
			before = &rows[n]
		case row.Seq + 1:
			next = &rows[n]
		}
	}
	return before, next, nil
}

// pretty is a detail with its lines. A detail that is no JSON was tampered with: it is shown as it is.
func pretty(detail []byte) string {
	var out bytes.Buffer
	if json.Indent(&out, detail, "", "  ") != nil {
		return strings.ToValidUTF8(string(detail), "�")
	}
	return out.String()
}

// detailLine is a detail in one line: its members with their values, by name.
func detailLine(row audit.Row) string {
	var members map[string]json.RawMessage
	if json.Unmarshal(row.Detail, &members) != nil {
		return short(detailShown, strings.ToValidUTF8(string(row.Detail), "�"))
	}
	parts := make([]string, 0, len(members))
	for _, name := range sorted(members) {
		value := string(members[name])
		var text string
		if json.Unmarshal(members[name], &text) == nil {
			value = text
		}
		if !slices.Contains([]string{"", "[]", "{}", "null", "0", "false"}, value) {
			parts = append(parts, name+" "+value)
		}
	}
	return short(detailShown, strings.Join(parts, ", "))
}

// whyDenied is where to ask why a request was refused: with its method, its address and who made it.
func whyDenied(row audit.Row) string {
	surface, ofGateway := strings.CutPrefix(row.Action, "gateway.")
	if !ofGateway || row.Result != string(audit.Refused) {
		return ""
	}
	var d struct {
		Agent, Method, Path, Scheme, Service string
		Confined                             bool
	}
	if json.Unmarshal(row.Detail, &d) != nil {
		return ""
	}
	if surface == "connect" || surface == "forward" {
		surface = "proxy"
		// Whose session it is decides: one that an agent opened has that agent's rules.
		if id, is := strings.CutPrefix(row.Actor, string(identity.KindAgent)+":"); is && row.Session != "" {
			surface, d.Agent = "browser", id
		}
	}
	asked := url.Values{"tenant": {row.Tenant}, "surface": {surface}, "url": {cmp.Or(d.Scheme, "https") + "://" + row.Target + d.Path}}
	if d.Confined {
		asked.Set("confined", "true")
	}
	for name, value := range map[string]string{"agent": d.Agent, "method": d.Method, "service": d.Service, "session": row.Session} {
		if value != "" {
			asked.Set(name, value)
		}
	}
	return Prefix + "/network/explain?" + asked.Encode()
}
