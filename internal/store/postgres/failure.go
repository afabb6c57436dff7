package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/sqldb"
)

// notInOrder is the SQLSTATE of the trigger audit_in_order.
const notInOrder = "CJ001"

// state is the SQLSTATE of an error of the server; empty for others.
func state(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// failure gives an error its meaning for callers. It is nil for nil.
func failure(ctx context.Context, what string, err error) error {
	if err == nil {
		return nil
	}
	// A call that is given up ends with the context's error, a timeout of the network, or the server's query_canceled.
	if over := ctx.Err(); over != nil && (errors.Is(err, over) || pgconn.Timeout(err) || state(err) == "57014") {
		return fmt.Errorf("%s: %w", what, over)
	}
	return fmt.Errorf("%s: %w", what, meaning(err))
}

// meaning follows https://www.postgresql.org/docs/current/errcodes-appendix.html.
func meaning(err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return store.ErrNotFound
	}
	switch code := state(err); code {
	case "":
	case "23505": // unique_violation
		return fmt.Errorf("%w: %w", store.ErrExists, err)
	case "23503", // foreign_key_violation
		"22021": // character_not_in_repertoire: what is written has been checked, so this text was looked for, and no row has it
		return fmt.Errorf("%w: %w", store.ErrNotFound, err)
	case "53100": // disk_full
		return store.Full(err)
	case "28000", "28P01": // invalid_authorization_specification, invalid_password
		return problem.Wrap(fmt.Errorf("%w: %w", store.ErrUnavailable, err), problem.BadConfig, "check the user and the password in database:",
			"the database refuses this user")
	case "3D000": // invalid_catalog_name
		return problem.Wrap(fmt.Errorf("%w: %w", store.ErrUnavailable, err), problem.BadConfig,
			"make it with createdb, or correct the end of database:", "there is no such database on the server")
	case "42501": // insufficient_privilege
		return problem.Wrap(err, problem.BadConfig, "make the user of database: the owner of the database",
			"the user may not use the database as clawjail needs to")
	default:
		switch code[:2] {
		case "08", // connection_exception
			"40", // transaction_rollback: deadlocks and the like
			"53", // insufficient_resources
			"55", // object_not_in_prerequisite_state: lock_not_available and the like
			"57", // operator_intervention: the server is being stopped or started
			"58": // system_error, such as an I/O error
			return store.Unavailable(err)
		case "25": // invalid_transaction_state: the server is read-only
			return store.Unavailable(err)
		}
		return err
	}
	var connecting *pgconn.ConnectError
	var network net.Error
	if errors.As(err, &connecting) || errors.As(err, &network) || pgconn.Timeout(err) || pgconn.SafeToRetry(err) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, puddle.ErrClosedPool) ||
		errors.Is(err, driver.ErrBadConn) || sqldb.Closed(err) {
		return store.Unavailable(err)
	}
	return err
}
