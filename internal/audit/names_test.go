package audit

import (
	"fmt"
	"strings"
	"testing"
)

// A record has room for 4 KiB, and a grant may name more.
func TestNamesOfManyDomainsAreCutAndCounted(t *testing.T) {
	var long []string
	for n := range 70 {
		long = append(long, fmt.Sprintf("%s-%02d.example", strings.Repeat("x", 200), n))
	}
	kept := Names(long)
	if len(kept) == 0 || len(kept) == len(long) {
		t.Errorf("%d of %d names are kept", len(kept), len(long))
	}
	if err := NewDetail(Fields{"domains": kept, "egress_domains": kept, "domain_count": len(long)}).Err(); err != nil {
		t.Error(err)
	}
	if none := Names(nil); none == nil || len(none) != 0 {
		t.Errorf("no names are %v", none)
	}
}
