// Package checkpoint is the signed notes that say how far a node's audit log had come, and the append-only file that
// keeps them out of reach of an attacker who can change the log.
//
// The control plane signs, because it knows the log; the host daemon appends, because its file is root's. To rewrite
// history unseen takes the database, the signing key and root: with less, the notes that were written before the
// change say otherwise, and cannot be taken back. It is detection, not prevention.
//
// The package knows nothing of rows or databases, so that the host daemon can use it. The format of a note, and of
// what is signed, is kept: notes are read for as long as the log that they speak of.
package checkpoint

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

const (
	// HashSize is the size of the hash of a row: SHA-256.
	HashSize = 32
	// MaxNote is the largest note that is accepted, in bytes without the end of its line.
	MaxNote = 1024

	version    = 1
	noteDomain = "clawjail audit checkpoint v1"
	timeFormat = "2006-01-02T15:04:05.000000Z"
)

// Note says that the log of a node had a row of that number with that hash, which covers every row before it.
type Note struct {
	Node string
	Seq  int64
	Hash [HashSize]byte
	// Time is when the note was signed, to the microsecond.
	Time time.Time
	// Kid is the ID of the key; see [Key.ID].
	Kid string
	Sig []byte
}

// wire is a note as it is written. The order of its fields is the order on the line.
type wire struct {
	Version int    `json:"v"`
	Node    string `json:"node"`
	Seq     int64  `json:"seq"`
	Hash    string `json:"hash"`
	Time    string `json:"time"`
	Kid     string `json:"kid"`
	Sig     string `json:"sig"`
}

// Marshal is the note as one line of JSON, without the end of the line.
func (n Note) Marshal() ([]byte, error) {
	return json.Marshal(wire{
		Version: version, Node: n.Node, Seq: n.Seq, Hash: hex.EncodeToString(n.Hash[:]),
		Time: n.Time.UTC().Format(timeFormat), Kid: n.Kid, Sig: base64.StdEncoding.EncodeToString(n.Sig),
	})
}

// Parse reads what [Note.Marshal] wrote, and nothing else: other white space, another order or an unknown key is an
// error. It does not look at the signature.
func Parse(line []byte) (Note, error) {
	if len(line) > MaxNote {
		return Note{}, fmt.Errorf("the note has %d bytes, more than %d", len(line), MaxNote)
	}
	var w wire
	if err := json.Unmarshal(line, &w); err != nil {
		return Note{}, fmt.Errorf("read the note: %w", err)
	}
	if w.Version != version {
		return Note{}, fmt.Errorf("the note has version %d, which is not known", w.Version)
	}
	n := Note{Node: w.Node, Seq: w.Seq, Kid: w.Kid}
	hash, err := hex.DecodeString(w.Hash)
	if err != nil || len(hash) != HashSize {
		return Note{}, errors.New("the note has no proper hash")
	}
	n.Hash = [HashSize]byte(hash)
	if n.Time, err = time.Parse(timeFormat, w.Time); err != nil {
		return Note{}, fmt.Errorf("read the time of the note: %w", err)
	}
	if n.Sig, err = base64.StdEncoding.DecodeString(w.Sig); err != nil {
		return Note{}, fmt.Errorf("read the signature of the note: %w", err)
	}
	if n.Node == "" || n.Seq < 1 || n.Kid == "" {
		return Note{}, errors.New("the note names no node, row or key")
	}
	if again, err := n.Marshal(); err != nil || !bytes.Equal(again, line) {
		return Note{}, errors.New("the note is not written as notes are")
	}
	return n, nil
}

func (n Note) signed() []byte {
	return Encode(nil, []byte(n.Node), Number(n.Seq), n.Hash[:], Number(n.Time.UnixMicro()), []byte(n.Kid))
}

// Encode appends fields to dst so that no two lists of fields give the same bytes: each has its length before it, in
// eight bytes, most significant first.
func Encode(dst []byte, fields ...[]byte) []byte {
	for _, field := range fields {
		dst = binary.BigEndian.AppendUint64(dst, uint64(len(field)))
		dst = append(dst, field...)
	}
	return dst
}

// Number is a number as a field of [Encode].
func Number(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }
