package egress

import (
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/testenv/property"
)

func TestTextOfAllowanceIsReadAgain(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		a := Allowance{Path: rapid.StringMatching(`/[a-z*/]{0,10}`).Draw(t, "path"), Methods: rapid.SliceOfN(rapid.SampledFrom([]string{"GET", "POST"}), 0, 3).Draw(t, "methods")}
		if len(a.Methods) == 0 {
			a.Methods = nil
		}
		if got, err := ParseAllowance(a.String()); err != nil || !reflect.DeepEqual(got, a) {
			t.Fatalf("%q: %+v, %v", a.String(), got, err)
		}
	})
	if got, err := ParseAllowance(" get,Post  /x "); err != nil || got.String() != "GET,POST /x" {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "GET", "GET x", "GET /a /b", "a/b /c", ", /x"} {
		if got, err := ParseAllowance(bad); err == nil {
			t.Errorf("%q is read as %v", bad, got)
		}
	}
}

func TestTextOfPriceIsReadAgain(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		p := Price{Model: rapid.StringMatching(`[a-z0-9*.-]{1,20}`).Draw(t, "model"), Input: rapid.Float64Range(0, maxMoney).Draw(t, "in"), Output: rapid.Float64Range(0, maxMoney).Draw(t, "out")}
		for _, a := range p.amounts() {
			if rapid.Bool().Draw(t, a.name) {
				*a.amount = new(rapid.Float64Range(0, maxMoney).Draw(t, "amount"))
			}
		}
		if got, err := ParsePrice(p.String()); err != nil || !reflect.DeepEqual(got, p) {
			t.Fatalf("%q: %+v, %v", p.String(), got, err)
		}
	})
	for _, bad := range []string{"", "x", "x=", "x=1", "=1/2", "x=1/y", "x=-1/2", "x=NaN/1", "x=1/Inf", "x=1/1e300", "x=1/2 call", "x=1/2 call=", "x=1/2 call=-1", "x=1/2 other=1", "x=1/2 call=1 call=2"} {
		if got, err := ParsePrice(bad); err == nil {
			t.Errorf("%q is read as %v", bad, got)
		}
	}
}
