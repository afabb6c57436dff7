package auditlog

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/problem"
)

// notebook keeps what it is given.
type notebook struct {
	audit.Records
	begun  []audit.Intent
	events []audit.Event
	err    error
}

func (n *notebook) Begin(_ context.Context, i audit.Intent) (audit.Pending, error) {
	if n.err != nil {
		return nil, n.err
	}
	n.begun = append(n.begun, i)
	return nil, i.Detail.Err()
}

func (n *notebook) Note(e audit.Event) { n.events = append(n.events, e) }

func decision() gateway.Decision {
	return gateway.Decision{
		Time: time.Now(), Jail: "a1", Tenant: "default", Agent: "ag_1", Actor: "agent:ag_1", Surface: gateway.SurfaceService, Scheme: "https", Method: "GET",
		Host: hostport.MustParseHost("api.example"), Port: 443, Path: "/repos/x", Allowed: true, Rule: "service:github", Service: "github", Credential: true,
	}
}

func TestAnIntentSaysWhatIsNeededToDecideItAgain(t *testing.T) {
	n := new(notebook)
	if _, err := New(n).Begin(t.Context(), decision()); err != nil {
		t.Fatal(err)
	}
	i := n.begun[0]
	if i.Action != "gateway.service" || i.Target != "api.example:443" || i.Actor != "agent:ag_1" || i.Jail != "a1" || i.Tenant != "default" {
		t.Errorf("%+v", i)
	}
	want := `{"agent":"ag_1","allowed":true,"injected":true,"method":"GET","path":"/repos/x","rule":"service:github","scheme":"https","service":"github"}`
	if got := i.Detail.String(); got != want {
		t.Errorf("detail %s", got)
	}
	confined := decision()
	confined.Confined = true
	if _, err := New(n).Begin(t.Context(), confined); err != nil || !strings.Contains(n.begun[1].Detail.String(), `"confined":true`) {
		t.Errorf("of a session with accounts: %s, %v", n.begun[1].Detail, err)
	}
}

func TestWhatCannotBeWrittenIsNotBegun(t *testing.T) {
	n := &notebook{err: errors.New("disk full")}
	if r, err := New(n).Begin(t.Context(), decision()); err == nil || r != nil {
		t.Errorf("%v %v", r, err)
	}
}

func TestARefusalIsAnEvent(t *testing.T) {
	n := new(notebook)
	d := decision()
	d.Allowed, d.Code, d.Rule = false, problem.HostDenied, ""
	New(n).Refused(d)
	if e := n.events[0]; e.Result != audit.Refused || e.Action != "gateway.service" || !strings.Contains(e.Detail.String(), `"code":"host_denied"`) {
		t.Errorf("%+v", e)
	}
	// A request without a host that can be read.
	New(n).Refused(gateway.Decision{Surface: gateway.SurfaceConnect, Code: problem.BadHost})
	if e := n.events[1]; e.Target != "" || e.Detail.Err() != nil {
		t.Errorf("%+v", e)
	}
}

func FuzzEveryPathCanBeRecorded(f *testing.F) {
	f.Add("/\x00", "GET")
	f.Add("/\xff\xfe", "M\x7f")
	f.Add(strings.Repeat("/\"<>&", 100), "")
	f.Fuzz(func(t *testing.T, path, method string) {
		d := decision()
		d.Path, d.Method = path[:min(len(path), 512)], method[:min(len(method), 64)]
		n := new(notebook)
		if _, err := New(n).Begin(t.Context(), d); err != nil {
			t.Errorf("%q %q: %v", path, method, err)
		}
	})
}
