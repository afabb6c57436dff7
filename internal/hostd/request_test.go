package hostd

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestRequestsThatAreNotExactAreRefused(t *testing.T) {
	f := newFixture(t, nil)
	for _, c := range []struct{ name, body, code string }{
		{"as it should be", `{"protocol":7,"op":"info","args":{}}`, ""},
		{"not JSON", `hello`, problem.BadJSON},
		{"nothing", ``, problem.BadJSON},
		{"not an object", `[]`, problem.BadJSON},
		{"unknown member", `{"protocol":7,"op":"info","args":{},"x":1}`, problem.BadJSON},
		{"doubled member", `{"protocol":7,"op":"info","op":"list","args":{}}`, problem.BadJSON},
		{"member in another case", `{"protocol":7,"Op":"info","args":{}}`, problem.BadJSON},
		{"data after the value", `{"protocol":7,"op":"info","args":{}} {}`, problem.BadJSON},
		{"text that is not UTF-8", "{\"protocol\":1,\"op\":\"in\xfffo\",\"args\":{}}", problem.BadJSON},
		{"no arguments", `{"protocol":7,"op":"info"}`, problem.BadJSON},
		{"arguments that are null", `{"protocol":7,"op":"info","args":null}`, problem.BadJSON},
		{"unknown argument", `{"protocol":7,"op":"info","args":{"verbose":true}}`, problem.BadJSON},
		{"doubled argument", `{"protocol":7,"op":"destroy","args":{"name":"btest00001","name":"btest00002"}}`, problem.BadJSON},
		{"argument of another type", `{"protocol":7,"op":"destroy","args":{"name":7}}`, problem.BadJSON},
		{"unknown operation", `{"protocol":7,"op":"run","args":{}}`, problem.BadRequest},
		{"no operation", `{"protocol":7,"args":{}}`, problem.BadRequest},
		{"another protocol", `{"protocol":2,"op":"info","args":{}}`, problem.Conflict},
		{"no protocol", `{"op":"info","args":{}}`, problem.Conflict},
		{"name of another installation", `{"protocol":7,"op":"destroy","args":{"name":"bxxxx00001"}}`, problem.BadName},
		{"name with a path", `{"protocol":7,"op":"destroy","args":{"name":"../../etc"}}`, problem.BadName},
		{"empty name", `{"protocol":7,"op":"inspect","args":{"name":""}}`, problem.BadName},
		{"checkpoint that is no note", `{"protocol":7,"op":"checkpoint","args":{"note":"hello"}}`, problem.BadRequest},
		{"checkpoint without a note", `{"protocol":7,"op":"checkpoint","args":{}}`, problem.BadRequest},
		{"number below zero", `{"protocol":7,"op":"reaped","args":{"after":-1}}`, problem.BadJSON},
		{"owner that is none", `{"protocol":7,"op":"hold","args":{"owner":"me"}}`, problem.BadRequest},
		{"unknown member deep inside", strings.Replace(createRequest(t, strings.Repeat("a", 32)), `"limits":{`, `"limits":{"swap":1,`, 1), problem.BadJSON},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := f.code(t, c.body); got != c.code {
				t.Errorf("code %q, want %q", got, c.code)
			}
		})
	}
	if n := len(f.host.Resources()); n != 0 {
		t.Errorf("%d things were made", n)
	}
}

func TestEveryOperationHasAHandlerAndRefusesUnknownArguments(t *testing.T) {
	f := newFixture(t, nil)
	handlers := newHandlers()
	if len(handlers) != len(Operations()) {
		t.Errorf("%d handlers for %d operations", len(handlers), len(Operations()))
	}
	for _, op := range Operations() {
		if handlers[op] == nil {
			t.Errorf("%s has no handler", op)
		}
		if got := f.code(t, fmt.Sprintf(`{"protocol":7,"op":%q,"args":{"nobody_knows":1}}`, op)); got != problem.BadJSON {
			t.Errorf("%s with an unknown argument: code %q", op, got)
		}
	}
}

func TestAFrameThatIsTooLargeIsRefusedBeforeItIsRead(t *testing.T) {
	f := newFixture(t, nil)
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: f.socket})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(binary.BigEndian.AppendUint32(nil, maxRequest+1)); err != nil {
		t.Fatal(err)
	}
	body, err := readFrame(conn, maxAnswer)
	if err != nil {
		t.Fatal(err)
	}
	if a := decodeAnswer(t, body); a.Error == nil || a.Error.Code != problem.BadRequest {
		t.Errorf("answer %s", body)
	}
}

func TestACallerThatIsSlowIsCutOff(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.Patience = 100 * time.Millisecond })
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: f.socket})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte{0, 0, 1}); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) || len(rest) > 0 {
		t.Fatalf("the connection stays open: %q, %v", rest, err)
	}
}

func TestConnectionsOfOneUserAreBounded(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.MaxConnections = 8 })
	c := f.client(t) // one hold
	j := create(t, c, spec("exec cat"))
	wait := fmt.Sprintf(`{"protocol":7,"op":"wait","args":{"name":%q}}`, j.Name)
	answers := make(chan string, 6)
	var reading sync.WaitGroup
	for range 6 { // with the hold, one more than three quarters of eight
		conn := f.raw(t, wait)
		reading.Go(func() {
			body, err := readFrame(conn, maxAnswer)
			if err != nil {
				t.Errorf("one that waits got %v", err)
			}
			answers <- string(body)
		})
	}
	if first := <-answers; !strings.Contains(first, problem.RateLimited) {
		t.Errorf("a sixth call waits beside the hold; the first answer is %s", first)
	}
	if _, err := c.Inspect(t.Context(), j.Name); err != nil {
		t.Errorf("those who wait leave no room: %v", err)
	}
	// Two more that say nothing. One of them is refused when an earlier connection has not quite ended: then another takes its place.
	var idle []*net.UnixConn
	refused := func(conn *net.UnixConn) bool {
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Millisecond)) // shows in the read
		_, err := conn.Read(make([]byte, 1))
		gone := !errors.Is(err, os.ErrDeadlineExceeded)
		if gone {
			_ = conn.Close()
		}
		return gone
	}
	testenv.Eventually(t, patience, func() bool {
		for idle = slices.DeleteFunc(idle, refused); len(idle) < 2; {
			conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: f.socket})
			if err != nil {
				t.Fatal(err)
			}
			idle = append(idle, conn)
		}
		_, err := c.Info(t.Context())
		return hasCode(err, problem.RateLimited)
	}, "a ninth connection is served")
	for _, conn := range idle {
		_ = conn.Close()
	}
	testenv.Eventually(t, patience, func() bool {
		_, err := c.Info(t.Context())
		return err == nil
	}, "closed connections are still counted")
	if err := c.Destroy(t.Context(), j.Name); err != nil {
		t.Fatal(err)
	}
	reading.Wait()
	for range 5 {
		if got := <-answers; !strings.Contains(got, string(jail.CauseDestroyed)) {
			t.Errorf("one that waited got %s", got)
		}
	}
}

func TestErrorsKeepTheirMeaningOverTheSocket(t *testing.T) {
	flaws := &problem.ValidationError{Code: problem.BadConfig, Flaws: []problem.Flaw{{Field: "a", Message: "b"}}}
	for _, c := range []struct {
		name string
		err  error
		code string
		is   error
		hint string
	}{
		{"problem", fmt.Errorf("make: %w", problem.New(problem.DiskFull, "free some", "no space")), problem.DiskFull, nil, "free some"},
		{"not found", fmt.Errorf("jail x: %w", jail.ErrNotFound), problem.NotFound, jail.ErrNotFound, ""},
		{"deadline", context.DeadlineExceeded, problem.Timeout, context.DeadlineExceeded, ""},
		{"anything else", errors.New("boom"), problem.Internal, nil, ""},
		{"joined", errors.Join(errors.New("first"), problem.New(problem.JailBusy, "", "second")), problem.JailBusy, nil, ""},
		{"list", flaws, problem.BadConfig, nil, ""},
		{"details without a JSON form", problem.New(problem.JailFailed, "", "x").With("f", func() {}), problem.Internal, nil, ""},
		{"text that is not UTF-8", errors.New("runc said \xff\xfe"), problem.Internal, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			frame := encodeAnswer(nil, c.err)
			body, err := readFrame(bytes.NewReader(frame), maxAnswer)
			if err != nil {
				t.Fatal(err)
			}
			got := fromWire(decodeAnswer(t, body).Error)
			if problem.CodeOf(got) != c.code {
				t.Errorf("code %s, want %s", problem.CodeOf(got), c.code)
			}
			if c.is != nil && !errors.Is(got, c.is) {
				t.Errorf("%v is not %v", got, c.is)
			}
			if p, _ := problem.As(got); p.Hint != c.hint {
				t.Errorf("hint %q, want %q", p.Hint, c.hint)
			}
			if strings.HasPrefix(c.name, "joined") && got.Error() != c.err.Error() {
				t.Errorf("text %q, want %q", got, c.err)
			}
		})
	}
}

func TestUnreachableSaysWhatToDo(t *testing.T) {
	_, err := NewClient(newSocket(t), nil).Info(t.Context())
	p, ok := problem.As(err)
	if !ok || p.Code != problem.HostdUnreachable || !strings.Contains(p.Hint, "clawjail up") {
		t.Errorf("no socket: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := NewClient(newSocket(t), nil).Hold(ctx); !hasCode(err, problem.HostdUnreachable) {
		t.Errorf("a hold that nobody answers: %v", err)
	}
}

func TestAFrameIsNotBelieved(t *testing.T) {
	for _, c := range []struct {
		name  string
		frame []byte
	}{
		{"short header", []byte{0, 0}},
		{"short body", []byte{0, 0, 0, 9, 'x'}},
	} {
		if _, err := readFrame(bytes.NewReader(c.frame), maxRequest); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// A request that is accepted says the same when it is written again, and every handler's arguments can be read or
// are refused, whatever the bytes.
func FuzzRequest(f *testing.F) {
	for _, op := range Operations() {
		f.Add([]byte(fmt.Sprintf(`{"protocol":7,"op":%q,"args":{}}`, op)))
	}
	f.Add([]byte(`{"protocol":7,"op":"destroy","args":{"name":"btest00001"}}`))
	f.Add([]byte(`{"protocol":7,"op":"reap","args":{"dry_run":true}}`))
	body, err := json.Marshal(createArguments{Owner: strings.Repeat("a", 32), Spec: spec("exec cat")}, durations())
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(fmt.Sprintf(`{"protocol":7,"op":"create","args":%s}`, body)))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := decodeRequest(body)
		if err != nil {
			if code := problem.CodeOf(err); code != problem.BadJSON && code != problem.Conflict {
				t.Fatalf("refused with code %s", code)
			}
			return
		}
		again, err := json.Marshal(r, durations())
		if err != nil {
			return // arguments that are missing
		}
		r2, err := decodeRequest(again)
		if err != nil || r2.Operation != r.Operation {
			t.Fatalf("%s became %s: %v", body, again, err)
		}
		if a, err := decodeArguments[createArguments](r); err == nil {
			checkSpec(t, a)
		}
		if a, err := decodeArguments[nameArguments](r); err == nil {
			if name, err := jail.ParseName(a.Name, "test"); err == nil && string(name) != a.Name {
				t.Fatalf("%q was accepted as %q", a.Name, name)
			}
		}
	})
}

func checkSpec(t *testing.T, a createArguments) {
	t.Helper()
	if a.Spec.Validate() != nil {
		return
	}
	data, err := json.Marshal(a, durations())
	if err != nil {
		t.Fatalf("a valid spec cannot be encoded: %v", err)
	}
	var again createArguments
	if err := json.Unmarshal(data, &again, strict()); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	second, err := json.Marshal(again, durations(), json.Deterministic(true))
	first, err2 := json.Marshal(a, durations(), json.Deterministic(true))
	if diff := cmp.Diff(string(first), string(second)); diff != "" || err != nil || err2 != nil {
		t.Fatalf("the spec changed: %s", diff)
	}
}
