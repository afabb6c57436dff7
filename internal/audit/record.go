package audit

import (
	"crypto/rand"
	"encoding/base32"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/clawjail/clawjail/internal/store"
)

const (
	maxName   = 128 // bytes of an action, a tenant, an actor, a session, a jail, a node
	maxTarget = 1024
)

// The log's own actions.
const (
	actionLost  = "audit.lost"  // records that found no place; count
	actionClock = "audit.clock" // the clock went back; behind_ms
	actionTrim  = "audit.trim"  // rows were removed because of their age
	// actionLeftOut says how many refusals of an actor, or of a tenant without room for records, have no record of their own.
	actionLeftOut = "audit.left_out"

	actorSystem = "system"
	actorAdmin  = "admin"
	// jailsActions is what the actions of requests out of jails begin with.
	jailsActions = "gateway."

	// ActionRestore is the action of the record that a restored installation begins with. [Verify] counts it, and names it
	// where checkpoints of rows were kept that the backup does not have. It excuses nothing.
	ActionRestore = "audit.restore"
)

// intentRow is the row of an intent, without what the writer gives it. With an error, the row is what of it can be
// recorded.
func intentRow(i Intent) (store.AuditRow, error) {
	return fit(store.AuditRow{
		Phase: PhaseIntent, Action: i.Action, Tenant: i.Tenant, Actor: i.Actor, Session: i.Session, Jail: i.Jail, Target: i.Target,
	}, i.Detail)
}

func eventRow(e Event) (store.AuditRow, error) {
	return fit(store.AuditRow{
		Phase: PhaseEvent, Action: e.Action, Result: string(result(e.Result, OK)), Tenant: e.Tenant, Actor: e.Actor,
		Session: e.Session, Jail: e.Jail, Target: e.Target,
	}, e.Detail)
}

func outcomeRow(intent store.AuditRow, o Outcome) (store.AuditRow, error) {
	row := store.AuditRow{
		Phase: PhaseOutcome, Ref: intent.ID, Action: intent.Action, Result: string(result(o.Result, Unknown)), Tenant: intent.Tenant,
		Actor: intent.Actor, Session: intent.Session, Jail: intent.Jail, Target: intent.Target,
	}
	if o.Session != "" {
		row.Session = o.Session
	}
	if o.Jail != "" {
		row.Jail = o.Jail
	}
	return fit(row, o.Detail)
}

// result is r, or what stands for it when it is none.
func result(r, otherwise Result) Result {
	switch r {
	case OK, Refused, Failed, Unknown:
		return r
	}
	return otherwise
}

// fit checks what callers wrote. One row that a database does not take would keep out all that are in its transaction.
func fit(row store.AuditRow, detail Detail) (store.AuditRow, error) {
	row.Target = bareTarget(row.Target)
	row.Detail = detail.bytes()
	var errs []error
	if err := checkAction(row.Action); err != nil {
		errs = append(errs, err)
		row.Action = "audit.unnamed"
	}
	checked := func(name, text string, limit int) string {
		if err := checkText(name, text, limit); err != nil {
			errs = append(errs, err)
			return ""
		}
		return text
	}
	row.Tenant = checked("tenant", row.Tenant, maxName)
	row.Actor = checked("actor", row.Actor, maxName)
	row.Session = checked("session", row.Session, maxName)
	row.Jail = checked("jail", row.Jail, maxName)
	row.Target = checked("target", row.Target, maxTarget)
	if err := detail.Err(); err != nil {
		errs = append(errs, err)
		row.Detail = Detail{}.bytes()
	}
	return row, errors.Join(errs...)
}

// mend makes a row of what fit says, for records that cannot be refused: it says what was left out of it.
func mend(row store.AuditRow, err error) store.AuditRow {
	if err != nil {
		why := strings.ToValidUTF8(err.Error(), "?")
		if len(why) > 500 {
			why = strings.ToValidUTF8(why[:500], "")
		}
		row.Detail = encodeDetail(Fields{"left_out": why}).bytes()
	}
	return row
}

func checkAction(action string) error {
	ok := action != "" && len(action) <= maxName && action[0] >= 'a' && action[0] <= 'z'
	for _, c := range action {
		ok = ok && (c == '.' || c == '_' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9')
	}
	if !ok {
		return fmt.Errorf("%q is not the name of an action", action)
	}
	return nil
}

func checkText(name, text string, limit int) error {
	switch {
	case len(text) > limit:
		return fmt.Errorf("the %s has %d bytes, more than %d", name, len(text), limit)
	case !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl):
		return fmt.Errorf("the %s is not UTF-8 without control characters", name)
	}
	return nil
}

// bareTarget leaves out of a URL what may be secret in it.
func bareTarget(target string) string {
	if !strings.Contains(target, "://") {
		return target
	}
	u, err := url.Parse(target)
	if err != nil {
		target, _, _ = strings.Cut(target, "?")
		target, _, _ = strings.Cut(target, "#")
		scheme, rest, _ := strings.Cut(target, "://")
		authority, path, _ := strings.Cut(rest, "/")
		return scheme + "://" + authority[strings.LastIndexByte(authority, '@')+1:] + "/" + path
	}
	u.User, u.RawQuery, u.ForceQuery, u.Fragment, u.RawFragment = nil, "", false, "", ""
	return u.String()
}

// stamp says when, and names the row.
func stamp(row *store.AuditRow, now time.Time) {
	row.Time = store.Microsecond(now)
	row.ID = newID(row.Time)
}

// newID is 26 letters and digits: the time, so that new ones stand together in an index, and 80 random bits.
func newID(at time.Time) string {
	var id [16]byte
	ms := uint64(at.UnixMilli())
	for i := range 6 {
		id[i] = byte(ms >> (40 - 8*i))
	}
	_, _ = rand.Read(id[6:]) // it never fails
	return strings.ToLower(base32.HexEncoding.WithPadding(base32.NoPadding).EncodeToString(id[:]))
}
