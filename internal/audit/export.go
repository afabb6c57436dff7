package audit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"slices"

	"github.com/clawjail/clawjail/internal/store"
)

// maxLine is the longest line of an export that is read, in bytes. A longer one is bufio.ErrTooLong.
const maxLine = 1 << 20

// WriteExport writes rows as JSON, one a line, with their hashes in hex: node after node, each in the order of seq. The
// fields of a line and their order are kept. An empty node is all of them. The file can be verified like the
// database that it came from; see [Export].
func WriteExport(ctx context.Context, out io.Writer, rows Rows, node string) (written int64, err error) {
	nodes := []string{node}
	if node == "" {
		if nodes, err = rows.AuditNodes(ctx); err != nil {
			return 0, fmt.Errorf("list the nodes of the audit log: %w", err)
		}
		slices.Sort(nodes)
	}
	buffered := bufio.NewWriterSize(out, 64<<10)
	for _, node := range nodes {
		for row, err := range rows.WalkAudit(ctx, node, 1) {
			if err != nil {
				return written, fmt.Errorf("read the audit log: %w", err)
			}
			if err := WriteRow(buffered, row); err != nil {
				return written, err
			}
			written++
		}
	}
	return written, buffered.Flush()
}

// WriteRow writes one row as WriteExport does, with the end of the line.
func WriteRow(out io.Writer, row Row) error {
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false) // the detail must keep its bytes
	return encoder.Encode(lineOf(row))
}

// Export is a file that [WriteExport] wrote. It is read anew for every node; a file that is not an export is an error of
// reading it.
type Export struct {
	File io.ReadSeeker
}

// AuditNodes are the nodes that have rows in the file.
func (e Export) AuditNodes(ctx context.Context) ([]string, error) {
	var out []string
	for row, err := range e.all(ctx) {
		if err != nil {
			return nil, err
		}
		if !slices.Contains(out, row.Node) {
			out = append(out, row.Node)
		}
	}
	return out, nil
}

// WalkAudit yields the rows of a node from a seq on, in the order of the file.
func (e Export) WalkAudit(ctx context.Context, node string, from int64) iter.Seq2[store.AuditRow, error] {
	return func(yield func(store.AuditRow, error) bool) {
		for row, err := range e.all(ctx) {
			if err == nil && (row.Node != node || row.Seq < from) {
				continue
			}
			if !yield(row, err) || err != nil {
				return
			}
		}
	}
}

func (e Export) all(ctx context.Context) iter.Seq2[store.AuditRow, error] {
	return func(yield func(store.AuditRow, error) bool) {
		if _, err := e.File.Seek(0, io.SeekStart); err != nil {
			yield(store.AuditRow{}, fmt.Errorf("read the export: %w", err))
			return
		}
		lines := bufio.NewScanner(e.File)
		lines.Buffer(make([]byte, 64<<10), maxLine)
		for number := 1; lines.Scan(); number++ {
			row, err := ReadRow(lines.Bytes())
			if err != nil {
				err = fmt.Errorf("line %d of the export: %w", number, err)
			}
			if err == nil {
				err = ctx.Err()
			}
			if !yield(row, err) || err != nil {
				return
			}
		}
		if err := lines.Err(); err != nil {
			yield(store.AuditRow{}, fmt.Errorf("read the export: %w", err))
		}
	}
}

// ReadRow reads a line that [WriteRow] wrote, without the end of the line. Anything that is not exactly as WriteRow
// writes it is an error.
func ReadRow(line []byte) (Row, error) {
	var w rowLine
	if err := json.Unmarshal(line, &w); err != nil {
		return Row{}, fmt.Errorf("read a row: %w", err)
	}
	row, err := w.row()
	if err != nil {
		return Row{}, err
	}
	var again bytes.Buffer
	if err := WriteRow(&again, row); err != nil {
		return Row{}, err
	}
	if !bytes.Equal(bytes.TrimSuffix(again.Bytes(), []byte("\n")), line) {
		return Row{}, fmt.Errorf("row %d is not written as rows are", row.Seq)
	}
	return row, nil
}
