package mcp

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// operator answers what is asked, and keeps it.
type operator struct {
	asked  string
	answer egress.AccessRequest
	fail   error
}

func (o *operator) Ask(_ context.Context, by identity.Principal, kind egress.AccessKind, target, reason string, wait time.Duration) (egress.AccessRequest, error) {
	o.asked = fmt.Sprintf("%q %s %s %q %s", by.ID, kind, target, reason, wait)
	return o.answer, o.fail
}

func (o *operator) AccessRequest(_ context.Context, by identity.Principal, id string, wait time.Duration) (egress.AccessRequest, error) {
	o.asked = fmt.Sprintf("%q what became of %s %s", by.ID, id, wait)
	return o.answer, o.fail
}

func TestAccessIsAskedForInFewWords(t *testing.T) {
	o := new(operator)
	w := newFixtureWith(t, Options{Backend: new(backend), Access: o})
	for state, want := range map[egress.AccessState]string{
		egress.AccessPending:  "not answered yet (ar_1); go on with something else, and ask the same again later, or with this id, to hear the answer",
		egress.AccessApproved: "approved; try again now\noperator: for the docs only",
		egress.AccessRefused:  "refused; do not ask for it again\noperator: for the docs only",
		egress.AccessExpired:  "nobody answered; go on without it",
	} {
		o.answer = egress.AccessRequest{Meta: egress.Meta{ID: "ar_1"}, State: state}
		if strings.Contains(want, "operator") {
			o.answer.Answer = "for the\ndocs only"
		}
		got, out := w.tool("request_access", args{"kind": "host", "target": "example.com", "reason": "to read", "wait_seconds": 30})
		if got != want || out.IsError {
			t.Errorf("%s: %q", state, got)
		}
	}
	if o.asked != `"" host example.com "to read" 30s` {
		t.Errorf("asked for %s", o.asked)
	}
	// The id alone is enough to hear the decision.
	o.answer = egress.AccessRequest{Meta: egress.Meta{ID: "ar_1"}, State: egress.AccessRefused}
	if got, out := w.tool("request_access", args{"id": "ar_1", "wait_seconds": 30}); got != "refused; do not ask for it again" || out.IsError || o.asked != `"" what became of ar_1 30s` {
		t.Errorf("%q, asked for %s", got, o.asked)
	}
}

func TestAccessThatCannotBeAskedFor(t *testing.T) {
	o := &operator{fail: problem.New(problem.Forbidden, "use an agent's token", "only agents ask")}
	w := newFixtureWith(t, Options{Backend: new(backend), Access: o})
	good := args{"kind": "tool", "target": "GET https://a.test/", "reason": "x"}
	if got, out := w.tool("request_access", good); !out.IsError || got != "error forbidden: only agents ask\nhint: use an agent's token" {
		t.Errorf("%q", got)
	}
	o.asked = ""
	for _, wait := range []int{-1, maxAccessWait + 1} {
		if got, out := w.tool("request_access", args{"kind": "host", "target": "a", "reason": "x", "wait_seconds": wait}); !out.IsError || !strings.Contains(got, "wait_seconds") {
			t.Errorf("%d: %q", wait, got)
		}
	}
	for _, a := range []args{{}, {"wait_seconds": 1}, {"kind": "host", "target": "a", "reason": "x", "id": "ar_1"}} {
		if got, out := w.tool("request_access", a); !out.IsError || !strings.Contains(got, "id alone") {
			t.Errorf("%v: %q", a, got)
		}
	}
	if got, out := w.tool("request_access", args{"kind": "host", "target": "a", "reason": "x", "tenant": "acme"}); !out.IsError || !strings.Contains(got, "tenant") {
		t.Errorf("%q", got)
	}
	if o.asked != "" {
		t.Errorf("it was asked for %s", o.asked)
	}
}

// Where nobody takes questions, there is no tool to ask them with.
func TestAccessIsOfferedWhereItIsTaken(t *testing.T) {
	for _, o := range []Options{{Backend: new(backend)}, {Backend: new(backend), Access: new(operator)}} {
		w := newFixtureWith(t, o)
		listed, err := w.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, tool := range listed.Tools {
			found = found || tool.Name == "request_access"
		}
		if found != (o.Access != nil) {
			t.Errorf("offered: %t", found)
		}
	}
}
