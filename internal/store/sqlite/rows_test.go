package sqlite_test

import (
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/clawjail/clawjail/internal/store"
)

var noon = time.Date(2031, 2, 3, 12, 0, 0, 0, time.UTC)

func row(node string, seq int64) store.AuditRow {
	hash := sha256.Sum256([]byte(fmt.Sprint(node, seq)))
	return store.AuditRow{
		Node: node, Seq: seq, Time: noon.Add(time.Duration(seq) * time.Millisecond), ID: fmt.Sprintf("%s-%d", node, seq), Phase: "intent",
		Action: "session.open", Tenant: "default", Actor: "operator:3f0c8a52", Session: fmt.Sprintf("session-%d", seq), Jail: "browser-17",
		Target: "example.com", Detail: []byte(`{"domains":["example.com"],"grant":"9c2f1e0d7b6a5948","access":"cdp","count":42}`),
		PrevHash: hash[:], Hash: hash[:],
	}
}

func grantNamed(id string) store.Grant {
	return store.Grant{
		ID: id, Tenant: store.DefaultTenant, Domains: []string{"example.com"}, Access: "cdp", Operator: "operator-1",
		IssuedAt: noon, NotBefore: noon, ExpiresAt: noon.Add(time.Hour),
	}
}
