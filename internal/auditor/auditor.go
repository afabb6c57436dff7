// Package auditor lets people read the audit log: it checks who may see which records, and records exports and verifications.
//
// A principal of one tenant sees the records of that tenant; for records of others it gets the same answer as for records that do
// not exist. The whole log is for admins of the installation: a chain without some of its records would not hold together.
package auditor

import (
	"context"
	"errors"
	"io"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// Authority decides who may do what. *identity.Service is one.
type Authority interface {
	Authorize(ctx context.Context, p identity.Principal, op identity.Operation, tenant string) error
}

// Auditor reads the log for people. All of its fields are required, but Find only for a caller of Record.
type Auditor struct {
	Identity Authority
	Records  audit.Records // exports and verifications are recorded here
	Rows     audit.Rows
	Search   func(ctx context.Context, f audit.Filter) ([]audit.Row, error)
	// Check compares the log with its checkpoints.
	Check func(ctx context.Context) (audit.Report, error)
	// Find is one record by its id; [store.ErrNotFound] when there is none.
	Find func(ctx context.Context, id string) (audit.Row, error)
}

// Selection is the tenant whose records a caller gets that asks for those of a tenant or, without one, for all that it may see.
// It is empty for all tenants. One that was removed has its records still.
func (a Auditor) Selection(ctx context.Context, by identity.Principal, tenant string) (string, error) {
	tenant = by.Among(tenant)
	err := a.Identity.Authorize(ctx, by, identity.AuditRead, tenant)
	if by.LacksTenant(err) {
		if some, failed := a.Search(ctx, audit.Filter{Tenant: tenant, Limit: 1}); failed != nil || len(some) > 0 {
			err = failed
		}
	}
	if err != nil {
		return "", err
	}
	if by.Tenant != "" {
		return by.Tenant, nil
	}
	return tenant, nil
}

// Record is one record. The code is not_found for one of another tenant's, as for one that does not exist.
func (a Auditor) Record(ctx context.Context, by identity.Principal, id string) (audit.Row, error) {
	tenant, err := a.Selection(ctx, by, "")
	if err != nil {
		return audit.Row{}, err
	}
	row, err := a.Find(ctx, id)
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrInvalid) || err == nil && tenant != "" && row.Tenant != tenant {
		return audit.Row{}, problem.New(problem.NotFound, "list them: clawjail audit ls", "there is no record of that id")
	}
	return row, err
}

// Export writes all records of a node, or without one of all nodes, as [audit.WriteExport] does. It is in the log that
// somebody has them before there is a byte.
func (a Auditor) Export(ctx context.Context, by identity.Principal, node string) (write func(context.Context, io.Writer) error, err error) {
	if err := a.Identity.Authorize(ctx, by, identity.AuditExport, ""); err != nil {
		return nil, err
	}
	if err := a.Records.Event(ctx, audit.Event{Action: string(identity.AuditExport), Actor: by.Actor(), Target: node}); err != nil {
		return nil, err
	}
	return func(ctx context.Context, out io.Writer) error {
		written, err := audit.WriteExport(ctx, out, a.Rows, node)
		if err == nil && written == 0 && node != "" {
			err = problem.New(problem.NotFound, "leave the node out for all of them", "the audit log has nothing of the node %.80q", node)
		}
		return err
	}, nil
}

// Verify proves that no record was changed, or says which was. It does not wait for its own record: a log that cannot be
// written to is one that somebody has to look at.
func (a Auditor) Verify(ctx context.Context, by identity.Principal) (audit.Report, error) {
	if err := a.Identity.Authorize(ctx, by, identity.AuditVerify, ""); err != nil {
		return audit.Report{}, err
	}
	a.Records.Note(audit.Event{Action: string(identity.AuditVerify), Actor: by.Actor()})
	return a.Check(ctx)
}
