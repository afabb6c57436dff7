package audit

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/clawjail/clawjail/internal/store"
)

const timeFormat = "2006-01-02T15:04:05.000000Z"

// rowLine is a row as one line of JSON: in an export, and in the spill file. The order of the fields is kept.
type rowLine struct {
	Node    string `json:"node"`
	Seq     int64  `json:"seq"`
	Time    string `json:"time"`
	ID      string `json:"id"`
	Ref     string `json:"ref"`
	Phase   string `json:"phase"`
	Action  string `json:"action"`
	Result  string `json:"result"`
	Tenant  string `json:"tenant"`
	Actor   string `json:"actor"`
	Session string `json:"session"`
	Jail    string `json:"jail"`
	Target  string `json:"target"`
	// Detail is as it is in the row. If that is not JSON without white space, which the log never writes, it stands
	// in DetailBytes, so that the line still has the bytes that were hashed.
	Detail      json.RawMessage `json:"detail,omitempty"`
	DetailBytes string          `json:"detail_base64,omitempty"`
	PrevHash    string          `json:"prev_hash"`
	Hash        string          `json:"hash"`
}

func lineOf(r store.AuditRow) rowLine {
	w := rowLine{
		Node: r.Node, Seq: r.Seq, Time: r.Time.UTC().Format(timeFormat), ID: r.ID, Ref: r.Ref, Phase: r.Phase, Action: r.Action,
		Result: r.Result, Tenant: r.Tenant, Actor: r.Actor, Session: r.Session, Jail: r.Jail, Target: r.Target,
		PrevHash: hex.EncodeToString(r.PrevHash), Hash: hex.EncodeToString(r.Hash),
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, r.Detail); err == nil && bytes.Equal(compact.Bytes(), r.Detail) {
		w.Detail = r.Detail
	} else {
		w.DetailBytes = base64.StdEncoding.EncodeToString(r.Detail)
	}
	return w
}

func (w rowLine) row() (store.AuditRow, error) {
	r := store.AuditRow{
		Node: w.Node, Seq: w.Seq, ID: w.ID, Ref: w.Ref, Phase: w.Phase, Action: w.Action, Result: w.Result, Tenant: w.Tenant,
		Actor: w.Actor, Session: w.Session, Jail: w.Jail, Target: w.Target, Detail: w.Detail,
	}
	var errs [4]error
	r.Time, errs[0] = time.Parse(timeFormat, w.Time)
	r.PrevHash, errs[1] = hex.DecodeString(w.PrevHash)
	r.Hash, errs[2] = hex.DecodeString(w.Hash)
	if w.Detail == nil {
		r.Detail, errs[3] = base64.StdEncoding.DecodeString(w.DetailBytes)
	} else if w.DetailBytes != "" {
		errs[3] = errors.New("it has its detail twice")
	}
	if err := errors.Join(errs[:]...); err != nil {
		return store.AuditRow{}, fmt.Errorf("read a row: %w", err)
	}
	return r, nil
}
