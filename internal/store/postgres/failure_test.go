package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

func TestErrorsOfTheServerHaveTheirMeaning(t *testing.T) {
	code := func(code string) error { return fmt.Errorf("exec: %w", &pgconn.PgError{Code: code, Message: "m"}) }
	for _, tt := range []struct {
		err  error
		want error
		code string
	}{
		{pgx.ErrNoRows, store.ErrNotFound, problem.Internal},
		{code("23505"), store.ErrExists, problem.Internal},
		{code("23503"), store.ErrNotFound, problem.Internal},
		{code("22021"), store.ErrNotFound, problem.Internal},
		{code("53100"), store.ErrUnavailable, problem.DiskFull},
		{code("53300"), store.ErrUnavailable, problem.DatabaseUnavailable},
		{code("57P01"), store.ErrUnavailable, problem.DatabaseUnavailable},
		{code("08006"), store.ErrUnavailable, problem.DatabaseUnavailable},
		{code("40P01"), store.ErrUnavailable, problem.DatabaseUnavailable},
		{code("25006"), store.ErrUnavailable, problem.DatabaseUnavailable},
		{code("58030"), store.ErrUnavailable, problem.DatabaseUnavailable},
		{code("28P01"), store.ErrUnavailable, problem.BadConfig},
		{code("3D000"), store.ErrUnavailable, problem.BadConfig},
		{io.ErrUnexpectedEOF, store.ErrUnavailable, problem.DatabaseUnavailable},
		{driver.ErrBadConn, store.ErrUnavailable, problem.DatabaseUnavailable},
		{sql.ErrConnDone, store.ErrUnavailable, problem.DatabaseUnavailable},
	} {
		err := failure(t.Context(), "test", tt.err)
		if !errors.Is(err, tt.want) || problem.CodeOf(err) != tt.code || !errors.Is(err, tt.err) && tt.err != pgx.ErrNoRows {
			t.Errorf("%v: got %v (%s), want %v (%s)", tt.err, err, problem.CodeOf(err), tt.want, tt.code)
		}
	}
	for _, err := range []error{code("42601"), code("P0001"), errors.New("other")} {
		got := failure(t.Context(), "test", err)
		for _, sentinel := range []error{store.ErrUnavailable, store.ErrNotFound, store.ErrExists} {
			if errors.Is(got, sentinel) {
				t.Errorf("%v: got %v", err, got)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := failure(ctx, "test", code("57014")); !errors.Is(err, context.Canceled) {
		t.Errorf("a statement that was given up: %v", err)
	}
	if err := failure(ctx, "test", code("23505")); !errors.Is(err, store.ErrExists) {
		t.Errorf("a statement that was refused: %v", err)
	}
}
