package console

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/auditor"
	"github.com/clawjail/clawjail/internal/identity"
)

const (
	auditPath = Prefix + "/audit"
	// auditPage is how many records one page lists.
	auditPage = 50
)

func (c *Console) auditRoutes() {
	c.get("/audit", c.auditList)
	c.get("/audit/new", c.auditNew)
	c.post("/audit/verify", c.verifyAudit)
	c.get("/audit/verify", func(q *request) error { return q.goTo(auditPath) }) // its answer is loaded again
	c.get("/audit/export", c.exportAudit)
	c.get("/audit/{id}", c.auditRecord)
}

// auditor reads the audit log for people.
func (c *Console) auditor() auditor.Auditor {
	return auditor.Auditor{Identity: c.Identity, Records: c.Audit, Rows: c.Rows, Search: c.Audit.List, Check: c.Verify, Find: c.Rows.FindAudit}
}

// auditLine is one record in a list.
type auditLine struct {
	audit.Row
	Who, Text string
	New       bool // it came while somebody looked
	// Began is the intent of an outcome, when it has no line of its own.
	Began *audit.Row
}

// auditData is the page with the list.
type auditData struct {
	Form *form
	Find auditFind
	Rows []auditLine
	// Older and Newer are the addresses of the pages beside this one; empty where there is none.
	Older, Newer string
	// Live says that new records are put on top, and Again is where to ask for them. Switch turns it on or off; it is empty on
	// pages that do not begin with the newest record.
	Live          bool
	Again, Switch string
	Narrowed      bool // something is asked for
	Results       []option
	Phases        []option
	Ranges        []option
	Tenants       []option
}

// auditList shows records, the newest first.
func (c *Console) auditList(q *request) error {
	data, err := c.auditOf(q, q.r.URL.Query())
	if err != nil {
		return err
	}
	if len(data.Form.flaws) > 0 {
		return q.again("audit", "Audit", data)
	}
	return q.show("audit", "Audit", data)
}

// auditNew is the list anew for a person who follows it, when there is something new behind the record that they name.
func (c *Console) auditNew(q *request) error {
	if !q.fragment() {
		return q.goTo(auditPath)
	}
	asked := q.r.URL.Query()
	seen, known := readPlace(asked.Get("seen"))
	asked.Del("seen")
	data, err := c.auditOf(q, asked)
	if err != nil {
		return err
	}
	if len(data.Rows) == 0 || known && !seen.before(placeOf(data.Rows[0].Row)) {
		q.started = true
		q.w.WriteHeader(http.StatusNoContent) // nothing is put anywhere
		return nil
	}
	for n := range data.Rows {
		data.Rows[n].New = known && seen.before(placeOf(data.Rows[n].Row))
	}
	return q.part("audit", "audit-list", data)
}

// auditOf reads what is asked for, and finds it.
func (c *Console) auditOf(q *request, asked url.Values) (auditData, error) {
	find, f := readAuditFind(asked, c.Now())
	data := auditData{Form: f, Find: find, Results: auditResults(), Phases: auditPhases(), Ranges: auditRanges()}
	tenant, err := c.auditor().Selection(q.ctx(), q.by, find.Tenant)
	if err != nil {
		return data, err
	}
	if data.Tenants, err = c.tenantOptions(q); err != nil {
		return data, err
	}
	if len(data.Tenants) > 0 {
		data.Tenants = append([]option{{Value: "", Label: "any tenant"}}, data.Tenants...)
	}
	if len(f.flaws) > 0 {
		return data, nil
	}
	filter := find.filter()
	filter.Tenant = tenant
	rows, older, newer, err := findAudit(q.ctx(), c.Audit.List, filter, find)
	if err != nil {
		return data, err
	}
	data.links(find, rows, older, newer)
	names := c.names(q.ctx(), q.by)
	lines, err := c.folded(q, rows, find)
	for _, line := range lines {
		line.Who, line.Text = names.of(line.Actor), detailLine(line.Row)
		if line.Began != nil {
			line.Text = short(detailShown, strings.Trim(detailLine(*line.Began)+", "+line.Text, ", "))
		}
		data.Rows = append(data.Rows, line)
	}
	return data, err
}

// folded are the lines of some records, the newest first: an intent and its outcome are one, at the place of the outcome. When
// records of one kind are asked for, each is a line.
func (c *Console) folded(q *request, rows []audit.Row, find auditFind) (out []auditLine, err error) {
	ended := map[string]int{} // lines, by the intent of what ended
	for _, row := range rows {
		if at, is := ended[row.ID]; is && find.Phase == "" {
			out[at].Began = &row
			continue
		}
		if row.Phase == audit.PhaseIntent && find.Phase == "" && find.Before != "" {
			// Its outcome may be on a page before this one, which has both.
			later, err := c.Audit.List(q.ctx(), audit.Filter{Tenant: q.by.Tenant, Ref: row.ID, Limit: 1})
			if err != nil {
				return nil, err
			}
			if len(later) > 0 && (find.until.IsZero() || later[0].Time.Before(find.until)) {
				continue
			}
		}
		if row.Ref != "" {
			ended[row.Ref] = len(out)
		}
		out = append(out, auditLine{Row: row})
	}
	return out, nil
}

// links are the addresses that lead on from a list.
func (d *auditData) links(find auditFind, rows []audit.Row, older, newer bool) {
	first := find
	first.Before, first.After, first.Live = "", "", false
	d.Narrowed = len(first.values()) > 0
	if older && len(rows) > 0 {
		on := first
		on.Before = placeOf(rows[len(rows)-1]).String()
		d.Older = on.address("")
	}
	if newer && len(rows) > 0 {
		on := first
		on.After = placeOf(rows[0]).String()
		d.Newer = on.address("")
	}
	if newer || find.Before != "" {
		return
	}
	turned := first
	turned.Live = !find.Live
	d.Live, d.Switch = find.Live, turned.address("")
	if find.Live {
		again := find
		seen := ""
		if len(rows) > 0 {
			seen = placeOf(rows[0]).String()
		}
		again.After = ""
		d.Again = again.address("/new") + "&seen=" + url.QueryEscape(seen)
	}
}

// lister is how records are listed: in their order, as audit.Log.List does.
type lister func(ctx context.Context, f audit.Filter) ([]audit.Row, error)

// verifyAudit proves that no record was changed, and shows what was looked at.
func (c *Console) verifyAudit(q *request) error {
	report, err := c.auditor().Verify(q.ctx(), q.by)
	if err != nil {
		return err
	}
	return q.show("audit-verify", "The audit log was verified", report)
}

// exportAudit sends all records as they can be verified elsewhere. An export that breaks off in the middle breaks off for the browser,
// too: a part must not be taken for the whole.
func (c *Console) exportAudit(q *request) error {
	write, err := c.auditor().Export(q.ctx(), q.by, q.query("node"))
	if err != nil {
		return err
	}
	out := &download{w: q.w, name: "clawjail-audit-" + c.Now().UTC().Format("20060102-150405") + ".jsonl"}
	err = write(q.ctx(), out)
	q.started = out.begun
	if err != nil && out.begun {
		c.Log.Warn("export the audit log", "error", err)
		panic(http.ErrAbortHandler) // which net/http takes as it is meant
	}
	return err
}

// download begins a file with its first bytes: an error before them is shown as every error is.
type download struct {
	w     http.ResponseWriter
	name  string
	begun bool
}

// Write implements io.Writer.
func (d *download) Write(b []byte) (int, error) {
	if !d.begun {
		d.begun = true
		d.w.Header().Set("Content-Type", "application/x-ndjson")
		d.w.Header().Set("Content-Disposition", `attachment; filename="`+d.name+`"`)
	}
	return d.w.Write(b)
}

// MayVerify says whether the principal may verify the whole log, which [frame.May] asks of one tenant.
func (f frame) MayVerify() bool { return identity.Can(f.By, identity.AuditVerify, "") == nil }

// MayExport says whether the principal may have the whole log.
func (f frame) MayExport() bool { return identity.Can(f.By, identity.AuditExport, "") == nil }
