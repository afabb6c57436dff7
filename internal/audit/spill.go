package audit

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

const (
	minSpill = 64 << 10
	maxSpill = 1 << 30

	spillMagic   = "clawjail spill 1"
	frameMagic   = 0x41554454
	spillStart   = 4096
	slotSize     = 512
	secondSlot   = 2048
	frameHeader  = 20
	maxFrameBody = 64 << 10
)

var errSpillFull = errors.New("the spill file has no space left")

// spill is the file for records that the database cannot take. All its space is taken and written when it is made, so
// that a full disk does not matter later; what is in it survives a SIGKILL when add returns, and the loss of power too.
//
// It starts with two copies of a header, of which the one with the higher count is good, so that one of them always
// is. Behind them stand frames: magic, generation, length and CRC-32C in twenty bytes, then the record as JSON. The
// file is emptied by raising the generation. When it is full the oldest records stay, and those that came later are
// counted.
type spill struct {
	node string
	path string

	mu         sync.Mutex
	file       *os.File // nil when closed
	size       int64
	count      uint64
	generation uint64
	lost       uint64
	off        int64 // where the next frame goes
	records    int64
	full       bool // a record found no space: a smaller one that came later must not take it
}

// openSpill opens the file, or makes it. It is locked for as long as it is open: it stands for the node.
func openSpill(path string, size int64, node string) (_ *spill, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s has mode %v: it must be a file that only its owner may use (chmod 600)", path, info.Mode())
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return nil, problem.New(problem.Conflict, "stop it first, or give this one its own data_dir and node name",
			"another control plane writes the audit log of node %s", node)
	} else if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	s := &spill{node: node, path: path, file: f, size: info.Size(), off: spillStart}
	if s.readHeader() {
		if s.node != node {
			return nil, fmt.Errorf("%s belongs to the node %s, not to %s", path, s.node, node)
		}
		return s, s.findEnd()
	}
	if empty, err := allZero(f); err != nil || !empty {
		return nil, errors.Join(err, fmt.Errorf("%s is damaged, or not a spill file; look at it and move it away", path))
	}
	return s, s.make(size)
}

// make takes the space. Zeros are written over it: blocks that are only reserved may still need space when they are
// first written.
func (s *spill) make(size int64) error {
	if err := allocate(s.file, size); err != nil {
		return diskFull(s.path, err)
	}
	zeros := make([]byte, 256<<10)
	for off := int64(0); off < size; off += int64(len(zeros)) {
		if _, err := s.file.WriteAt(zeros[:min(int64(len(zeros)), size-off)], off); err != nil {
			return diskFull(s.path, err)
		}
	}
	s.size, s.generation = size, 1
	if err := s.writeHeader(); err != nil {
		return diskFull(s.path, err)
	}
	if err := s.writeHeader(); err != nil { // the second copy
		return diskFull(s.path, err)
	}
	dir, err := os.Open(filepath.Dir(s.path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func diskFull(path string, err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return problem.Wrap(err, problem.DiskFull, "free some space: the audit log needs it before anything else runs",
			"there is no space for %s", path)
	}
	return err
}

func allZero(f *os.File) (bool, error) {
	r := io.NewSectionReader(f, 0, maxSpill)
	buf, zeros := make([]byte, 64<<10), make([]byte, 64<<10)
	for {
		n, err := r.Read(buf)
		if !bytes.Equal(buf[:n], zeros[:n]) {
			return false, nil
		}
		if errors.Is(err, io.EOF) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
}

// writeHeader writes the header: magic 16, count 8, generation 8, lost 8, length of the node 2, node, zeros, and the CRC in the last 4.
func (s *spill) writeHeader() error {
	s.count++
	b := make([]byte, 0, slotSize)
	b = append(b, spillMagic...)
	b = binary.BigEndian.AppendUint64(b, s.count)
	b = binary.BigEndian.AppendUint64(b, s.generation)
	b = binary.BigEndian.AppendUint64(b, s.lost)
	b = binary.BigEndian.AppendUint16(b, uint16(len(s.node)))
	b = append(b, s.node...)
	b = b[:slotSize]
	binary.BigEndian.PutUint32(b[slotSize-4:], checksum(b[:slotSize-4]))
	if _, err := s.file.WriteAt(b, int64(s.count%2)*secondSlot); err != nil {
		return err
	}
	return syncData(s.file)
}

func (s *spill) readHeader() bool {
	found := false
	for _, at := range []int64{0, secondSlot} {
		b := make([]byte, slotSize)
		if _, err := s.file.ReadAt(b, at); err != nil || string(b[:16]) != spillMagic ||
			binary.BigEndian.Uint32(b[slotSize-4:]) != checksum(b[:slotSize-4]) {
			continue
		}
		count, n := binary.BigEndian.Uint64(b[16:]), int(binary.BigEndian.Uint16(b[40:]))
		if n > maxName || found && count < s.count {
			continue
		}
		found = true
		s.count, s.generation, s.lost = count, binary.BigEndian.Uint64(b[24:]), binary.BigEndian.Uint64(b[32:])
		s.node = string(b[42 : 42+n])
	}
	return found
}

func checksum(parts ...[]byte) uint32 {
	table := crc32.MakeTable(crc32.Castagnoli)
	var sum uint32
	for _, part := range parts {
		sum = crc32.Update(sum, table, part)
	}
	return sum
}

// findEnd finds the frames that are there. One that was being written when the process died ends them.
func (s *spill) findEnd() error {
	for {
		row, next, err := s.frame(s.off)
		if err != nil {
			return err
		}
		if row == nil {
			return nil
		}
		s.off = next
		s.records++
	}
}

// frame reads the record at an offset; nil behind the last one.
func (s *spill) frame(off int64) (*store.AuditRow, int64, error) {
	var h [frameHeader]byte
	if off+frameHeader > s.size {
		return nil, off, nil
	}
	if _, err := s.file.ReadAt(h[:], off); err != nil {
		return nil, off, fmt.Errorf("read the spill file: %w", err)
	}
	n := int64(binary.BigEndian.Uint32(h[12:]))
	if binary.BigEndian.Uint32(h[:]) != frameMagic || binary.BigEndian.Uint64(h[4:]) != s.generation || n > maxFrameBody || off+frameHeader+n > s.size {
		return nil, off, nil
	}
	body := make([]byte, n)
	if _, err := s.file.ReadAt(body, off+frameHeader); err != nil {
		return nil, off, fmt.Errorf("read the spill file: %w", err)
	}
	if checksum(h[4:16], body) != binary.BigEndian.Uint32(h[16:]) {
		return nil, off, nil
	}
	var w rowLine
	if err := json.Unmarshal(body, &w); err != nil {
		return nil, off, nil // with a good checksum, it was written by something else
	}
	row, err := w.row()
	if err != nil {
		return nil, off, nil
	}
	return &row, off + frameHeader + n, nil
}

// add keeps a record. Notes may fill half of the file. When there is no space the record is counted instead.
func (s *spill) add(row store.AuditRow, k kind) error {
	return s.addAll([]*entry{{row: row, kind: k}})
}

// addAll keeps records in their order, and returns when they are on the disk.
func (s *spill) addAll(entries []*entry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil {
		return os.ErrClosed
	}
	var errs []error
	wrote, lost := false, false
	for _, e := range entries {
		err := s.put(e.row, e.kind)
		wrote = wrote || err == nil
		if err != nil {
			lost = true
			s.lost++
			errs = append(errs, err)
		}
	}
	if lost {
		errs = append(errs, s.writeHeader())
	} else if wrote {
		errs = append(errs, syncData(s.file))
	}
	return errors.Join(errs...)
}

func (s *spill) put(row store.AuditRow, k kind) error {
	body, err := json.Marshal(lineOf(row))
	if err != nil {
		return err
	}
	end := s.off + frameHeader + int64(len(body))
	if s.full || len(body) > maxFrameBody || end > s.size || k == kindNote && end > s.size/2 {
		s.full = s.full || k != kindNote
		return errSpillFull
	}
	b := make([]byte, 0, frameHeader+len(body))
	b = binary.BigEndian.AppendUint32(b, frameMagic)
	b = binary.BigEndian.AppendUint64(b, s.generation)
	b = binary.BigEndian.AppendUint32(b, uint32(len(body)))
	b = binary.BigEndian.AppendUint32(b, checksum(b[4:16], body))
	b = append(b, body...)
	if _, err := s.file.WriteAt(b, s.off); err != nil {
		return fmt.Errorf("write the spill file: %w", err)
	}
	s.off = end
	s.records++
	return nil
}

// read returns up to n records from an offset on, 0 for the first one, and the offset behind them.
func (s *spill) read(off int64, n int) (rows []store.AuditRow, next int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next = max(off, spillStart)
	for len(rows) < n && next < s.off {
		row, after, err := s.frame(next)
		if err != nil {
			return nil, off, err
		}
		if row == nil {
			return nil, off, fmt.Errorf("the spill file was changed by something else at byte %d", next)
		}
		rows = append(rows, *row)
		next = after
	}
	return rows, next, nil
}

// waiting says whether something has to join the log.
func (s *spill) waiting() bool {
	records, lost, _ := s.numbers()
	return records > 0 || lost > 0
}

// numbers are the records in the file, those that found no place in it, and the generation.
func (s *spill) numbers() (records int64, lost, generation uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.records, s.lost, s.generation
}

// empty forgets the records before an offset and a number of lost ones, all of which are in the database. It does
// nothing, and says so, when more was added meanwhile.
func (s *spill) empty(upTo int64, lost uint64) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil {
		return false, os.ErrClosed
	}
	if s.off > max(upTo, spillStart) || s.lost != lost {
		return false, nil
	}
	s.generation++
	s.lost, s.off, s.records, s.full = 0, spillStart, 0, false
	return true, s.writeHeader()
}

func (s *spill) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil {
		return nil
	}
	err := s.file.Close()
	s.file = nil
	return err
}
