//go:build linux

package linux

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/problem"
)

// The functions below are called with the lock held.

// withConnection runs f with open connections. After an error they are closed, because a connection may hold
// answers to a question that was given up; the next call opens new ones. An error that only says that something is
// not as expected costs a new connection too, which is cheap.
func (f *Firewall) withConnection(do func() error) error {
	if err := f.connect(); err != nil {
		return err
	}
	if err := do(); err != nil {
		return errors.Join(err, f.disconnect())
	}
	return nil
}

func (f *Firewall) connect() (err error) {
	if f.conn == nil {
		// One transaction is one message, and the first one holds an element for every lease there can be.
		const largest = 32 << 20
		grow := func(c *netlink.Conn) error {
			return errors.Join(c.SetWriteBuffer(largest), c.SetReadBuffer(largest))
		}
		if f.conn, err = nftables.New(nftables.AsLasting(), nftables.WithSockOptions(grow)); err != nil {
			f.conn = nil
			return problem.Wrap(err, problem.Unsupported, "a kernel with nf_tables is needed, and root",
				"the firewall cannot be reached")
		}
	}
	if f.reader == nil {
		if f.reader, err = newNFTReader(); err != nil {
			return err
		}
	}
	return nil
}

func (f *Firewall) disconnect() error {
	var errs []error
	if f.conn != nil {
		errs = append(errs, f.conn.CloseLasting())
		f.conn = nil
	}
	if f.reader != nil {
		errs = append(errs, f.reader.close())
		f.reader = nil
	}
	f.known = 0
	return errors.Join(errs...)
}

// flush commits the batch. A generation that follows directly on the known one is our own work.
func (f *Firewall) flush() error {
	if err := f.conn.Flush(); err != nil {
		return err
	}
	if f.known == 0 {
		return nil
	}
	now, err := f.reader.generation()
	if err != nil {
		return err
	}
	if now == f.known+1 {
		f.known = now
	} else if now != f.known {
		f.known = 0
	}
	return nil
}

// ensure makes sure that the rules and their elements are in force.
func (f *Firewall) ensure() error {
	before, err := f.reader.generation()
	if err != nil {
		return err
	}
	if f.known != 0 && before == f.known {
		return nil
	}
	wrong, err := f.wrong()
	if err != nil {
		return err
	}
	if len(wrong) > 0 {
		if err := f.repair(wrong); err != nil {
			return err
		}
		if before, err = f.reader.generation(); err != nil {
			return err
		}
		if wrong, err = f.wrong(); err != nil {
			return err
		}
	}
	for _, w := range wrong {
		return problem.New(problem.Unsupported, "look at `nft list ruleset` and at the kernel's log",
			"the firewall's table %s was written and is not in force as written (%s)", w.ruleset.table.Name, w.what)
	}
	f.known = before
	return nil
}

// deviation is a table that is not as it should be.
type deviation struct {
	ruleset *ruleset
	there   bool
	what    string
}

func (f *Firewall) wrong() ([]deviation, error) {
	var wrong []deviation
	for _, r := range []*ruleset{f.filter, f.origins} {
		table, err := f.table(r)
		if err != nil {
			return nil, err
		}
		if table == nil {
			wrong = append(wrong, deviation{r, false, "it is missing"})
			continue
		}
		what, err := f.deviates(r, table)
		if err != nil {
			return nil, err
		}
		if what != "" {
			wrong = append(wrong, deviation{r, true, what})
		}
	}
	return wrong, nil
}

// deviates says what is different about a table that is there, and nothing when it is as it should be.
func (f *Firewall) deviates(r *ruleset, table *nftables.Table) (string, error) {
	if table.Flags != 0 {
		return "it is dormant or somebody else's", nil // a dormant table is there and decides nothing
	}
	handles, what, err := r.difference(f.conn)
	if err != nil || what != "" || len(r.fixed) == 0 {
		return what, err
	}
	// Container engines change their own rules all the time, and reading thousands of elements takes a tenth of a second.
	// The elements of a constant set are those that it had when the first rule began to use it.
	id, err := f.reader.tableHandle(r.table)
	if err != nil {
		return "", err
	}
	made := fmt.Sprint(id, handles)
	if made == r.compared {
		return "", nil
	}
	if what, err = f.differentElements(r); err == nil && what == "" {
		r.compared = made
	}
	return what, err
}

// table is a ruleset's table as the kernel has it, or nil.
func (f *Firewall) table(r *ruleset) (*nftables.Table, error) {
	tables, err := f.conn.ListTablesOfFamily(r.table.Family)
	if err != nil {
		return nil, fmt.Errorf("list the firewall's tables: %w", err)
	}
	for _, t := range tables {
		if t.Name == r.table.Name {
			return t, nil
		}
	}
	return nil, nil
}

// differentElements compares the sets whose elements are part of the rules.
func (f *Firewall) differentElements(r *ruleset) (string, error) {
	for _, set := range r.sets {
		want, fixed := r.fixed[set.Name]
		if !fixed {
			continue
		}
		have, err := f.reader.keys(set)
		if err != nil {
			return "", err
		}
		if len(have) != len(want) {
			return fmt.Sprintf("%d elements in %s, not %d", len(have), set.Name, len(want)), nil
		}
		expected := make(map[string]bool, len(want))
		for _, key := range want {
			expected[string(key)] = true
		}
		for _, key := range have {
			if !expected[string(key)] {
				return "an element of the set " + set.Name, nil
			}
		}
	}
	return "", nil
}

// repair writes the tables that are missing or different, in one transaction. The table that decides is never
// replaced while it has members; the other one has none and can be replaced at any time, because no packet comes
// between two halves of a transaction.
func (f *Firewall) repair(wrong []deviation) error {
	for _, w := range wrong {
		if w.there && w.ruleset == f.filter {
			members, err := f.members()
			if err != nil {
				return err
			}
			if members > 0 {
				return problem.New(problem.Conflict,
					"end the jails with the version and configuration that made them, then start again",
					"the firewall's table inet %s is not as this clawjail makes it (%s), and %d jails depend on it",
					w.ruleset.table.Name, w.what, members)
			}
		}
		f.log.Info("writing the firewall's table", "table", w.ruleset.table.Name, "because", w.what)
		if w.there {
			f.conn.DelTable(w.ruleset.table)
		}
		if err := w.ruleset.write(f.conn); err != nil {
			return err
		}
	}
	if err := f.conn.Flush(); err != nil {
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EAFNOSUPPORT) {
			return problem.Wrap(err, problem.Unsupported, needsTables, "the firewall's tables cannot be written")
		}
		return fmt.Errorf("write the firewall's tables: %w", err)
	}
	return nil
}

// needsTables is what a kernel lacks that does not know nftables, or not all of it.
const needsTables = "the kernel needs nf_tables for the families inet and bridge, with reject (nft_reject_inet)"

// members is the number of addresses in all tables.
func (f *Firewall) members() (int, error) {
	n := 0
	for _, t := range memberTables() {
		keys, err := f.reader.keys(memberSet(f.filter.table, t))
		if err != nil {
			return 0, err
		}
		n += len(keys)
	}
	return n, nil
}
