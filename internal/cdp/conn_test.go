package cdp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/testenv"
)

func TestRepliesReachWhoAskedInAnyOrder(t *testing.T) {
	var held []*Message
	b := newFake(t, Options{}, func(c *Message) []string {
		held = append(held, c)
		if len(held) < 3 {
			return nil
		}
		var out []string
		for i := len(held) - 1; i >= 0; i-- {
			out = append(out, fmt.Sprintf(`{"id":%d,"result":{"method":%q}}`, held[i].ID, held[i].Method))
		}
		return out
	})
	errs := make(chan error, 3)
	for _, method := range []string{"A.a", "A.b", "A.c"} {
		go func() {
			var got struct {
				Method string `json:"method"`
			}
			err := b.conn.Call(short(t), "", method, nil, &got)
			if err == nil && got.Method != method {
				err = fmt.Errorf("%s got the reply of %s", method, got.Method)
			}
			errs <- err
		}()
	}
	for range 3 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func TestBrowserErrorComesBackAsError(t *testing.T) {
	b := newFake(t, Options{}, func(c *Message) []string {
		return []string{fmt.Sprintf(`{"id":%d,"error":{"code":-32000,"message":"no","data":"why"}}`, c.ID)}
	})
	err := b.conn.Call(short(t), "", "A.b", struct{}{}, nil)
	var refused *Error
	if !errors.As(err, &refused) || refused.Code != -32000 || err.Error() != "A.b: no: why (-32000)" {
		t.Fatalf("got %v", err)
	}
}

func TestGarbageEndsTheConnectionWithACause(t *testing.T) {
	tests := []struct {
		name, frame string
		want        error
	}{
		{"no JSON", `hello`, ErrProtocol},
		{"reply to an id never used", `{"id":99,"result":{}}`, ErrProtocol},
		{"reply to a negative id", `{"id":-1,"result":{}}`, ErrProtocol},
		{"too large", `{"method":"` + strings.Repeat("x", 5000) + `"}`, ErrFrameTooLarge},
		{"attached without a session", `{"method":"Target.attachedToTarget","params":{}}`, ErrProtocol},
		{"attached with a huge session", `{"method":"Target.attachedToTarget","params":{"sessionId":"` + strings.Repeat("S", 200) + `"}}`, ErrProtocol},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b := newFake(t, Options{MaxFrame: 4096}, func(*Message) []string { return []string{test.frame} })
			err := b.conn.Call(short(t), "", "A.b", nil, nil)
			if !errors.Is(err, test.want) {
				t.Fatalf("the call got %v", err)
			}
			<-b.conn.Done()
			if !errors.Is(b.conn.Err(), test.want) {
				t.Fatalf("the cause is %v", b.conn.Err())
			}
			if err := b.conn.Call(short(t), "", "A.b", nil, nil); !errors.Is(err, test.want) {
				t.Fatalf("a later call got %v", err)
			}
		})
	}
}

func TestDeathOfTheBrowserEndsWhoeverWaits(t *testing.T) {
	var b *fakeBrowser
	b = newFake(t, Options{}, func(*Message) []string { b.out.Close(); return nil })
	sub, err := b.conn.Subscribe("", "A.b")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.conn.Call(short(t), "", "A.b", nil, nil); !errors.Is(err, ErrBrowserGone) {
		t.Errorf("the call got %v", err)
	}
	if _, err := sub.Next(short(t)); !errors.Is(err, ErrBrowserGone) {
		t.Errorf("the subscription got %v", err)
	}
}

func TestCloseFreesACallToABrowserThatHangs(t *testing.T) {
	b := newFake(t, Options{}, nil)
	got := make(chan error, 2)
	for range 2 {
		go func() { got <- b.conn.Call(short(t), "", "A.b", nil, nil) }()
	}
	testenv.Eventually(t, 5*time.Second, func() bool {
		b.conn.mu.Lock()
		defer b.conn.mu.Unlock()
		return len(b.conn.pending) == 2
	}, "two calls wait")
	if err := b.conn.Close(); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := <-got; !errors.Is(err, ErrClosed) {
			t.Errorf("got %v", err)
		}
	}
}

func TestAnAbandonedCallIsForgotten(t *testing.T) {
	first := make(chan *Message, 1)
	b := newFake(t, Options{}, func(c *Message) []string {
		select {
		case first <- c:
			return nil
		default:
			return []string{ok(<-first), ok(c)}
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	got := make(chan error, 1)
	go func() { got <- b.conn.Call(ctx, "", "A.b", nil, nil) }()
	testenv.Eventually(t, 5*time.Second, func() bool { return len(first) == 1 }, "the browser has the command")
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	// The late reply is thrown away; the connection goes on.
	if err := b.conn.Call(short(t), "", "A.c", nil, nil); err != nil {
		t.Fatal(err)
	}
	if n := b.conn.Stats().Unclaimed; n != 1 {
		t.Errorf("%d replies unclaimed, want 1", n)
	}
}

func TestSlowSubscriberIsToldWhatItLostAndStallsNobody(t *testing.T) {
	const sent = subscriptionCount + 100
	events := make([]string, 0, sent+1)
	for i := range sent {
		events = append(events, fmt.Sprintf(`{"method":"A.e","params":{"n":%d}}`, i))
	}
	b := newFake(t, Options{}, func(c *Message) []string {
		if c.Method == "A.more" {
			return []string{`{"method":"A.e","params":{"n":-1}}`, ok(c)}
		}
		return append(events, ok(c))
	})
	sub, err := b.conn.Subscribe("", "A.e")
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	if err := b.conn.Call(short(t), "", "A.b", nil, nil); err != nil {
		t.Fatalf("the reply behind the events: %v", err)
	}
	for i := range subscriptionCount {
		m, err := sub.Next(short(t))
		if err != nil || string(m.Params) != fmt.Sprintf(`{"n":%d}`, i) {
			t.Fatalf("event %d is %s, %v", i, m.Params, err)
		}
	}
	var lost *LostError
	if _, err := sub.Next(short(t)); !errors.As(err, &lost) || lost.Count != sent-subscriptionCount || lost.Noise {
		t.Fatalf("got %v, want %d lost", err, sent-subscriptionCount)
	}
	if err := b.conn.Call(short(t), "", "A.more", nil, nil); err != nil {
		t.Fatal(err)
	}
	if m, err := sub.Next(short(t)); err != nil || string(m.Params) != `{"n":-1}` {
		t.Fatalf("behind the gap: %s, %v", m.Params, err)
	}
}

func TestDetachEndsCallsAndSubscriptionsBelow(t *testing.T) {
	b := newFake(t, Options{}, func(c *Message) []string {
		switch c.Method {
		case "A.attach":
			return []string{
				`{"method":"Target.attachedToTarget","params":{"sessionId":"P"}}`,
				`{"method":"Target.attachedToTarget","sessionId":"P","params":{"sessionId":"C"}}`, ok(c)}
		case "A.foreign":
			return []string{`{"method":"Target.detachedFromTarget","params":{"sessionId":"C"}}`, ok(c)}
		case "A.hang":
			return []string{`{"method":"Target.detachedFromTarget","params":{"sessionId":"P"}}`}
		}
		return []string{ok(c)}
	})
	if err := b.conn.Call(short(t), "", "A.attach", nil, nil); err != nil {
		t.Fatal(err)
	}
	sub, err := b.conn.Session("C").Subscribe("A.e")
	if err != nil {
		t.Fatal(err)
	}
	// A session is ended by the one above it, and by nobody else.
	if err := b.conn.Call(short(t), "", "A.foreign", nil, nil); err != nil {
		t.Fatal(err)
	}
	if n := b.conn.attachedSessions(); n != 2 {
		t.Errorf("%d sessions in the table, want 2", n)
	}
	if err := b.conn.Session("C").Call(short(t), "A.hang", nil, nil); !errors.Is(err, ErrSessionGone) {
		t.Errorf("the call got %v", err)
	}
	if _, err := sub.Next(short(t)); !errors.Is(err, ErrSessionGone) {
		t.Errorf("the subscription got %v", err)
	}
	if _, err := b.conn.Session("C").Subscribe("A.e"); !errors.Is(err, ErrSessionGone) {
		t.Errorf("a new subscription got %v", err)
	}
	if n := b.conn.attachedSessions(); n != 0 {
		t.Errorf("%d sessions left in the table", n)
	}
}

func TestIDsStartAgainWithoutMeetingThoseInUse(t *testing.T) {
	b := newFake(t, Options{}, func(c *Message) []string {
		if c.Method == "A.hang" {
			return nil
		}
		return []string{ok(c)}
	})
	ctx, cancel := context.WithCancel(context.Background())
	got := make(chan error, 1)
	go func() { got <- b.conn.Call(ctx, "", "A.hang", nil, nil) }() // takes id 1
	testenv.Eventually(t, 5*time.Second, func() bool { return len(b.commands()) == 1 }, "the first command")
	b.conn.mu.Lock()
	b.conn.lastID = 1<<31 - 2
	b.conn.mu.Unlock()
	for _, want := range []int32{1<<31 - 1, 2, 3} {
		if err := b.conn.Call(short(t), "", "A.b", nil, nil); err != nil {
			t.Fatal(err)
		}
		if seen := b.commands(); seen[len(seen)-1].ID != want {
			t.Errorf("id %d, want %d", seen[len(seen)-1].ID, want)
		}
	}
	cancel()
	<-got
}

func TestFrameReaderKeepsItsBound(t *testing.T) {
	const max = 200 << 10 // several fills of the buffer
	room := func() Room { return nil }
	frames := newFrameReader(io.MultiReader(
		bytes.NewReader(append(bytes.Repeat([]byte("a"), max), 0)), strings.NewReader("b\x00\x00"),
		bytes.NewReader(append(bytes.Repeat([]byte("c"), max+1), 0)), strings.NewReader("d\x00")), max, room)
	if frame, _, err := frames.next(); err != nil || len(frame) != max {
		t.Fatalf("got %d bytes, %v", len(frame), err)
	}
	for _, want := range []string{"b", ""} {
		if frame, _, err := frames.next(); err != nil || string(frame) != want {
			t.Fatalf("got %q, %v", frame, err)
		}
	}
	if frame, left, err := frames.next(); err != nil || frame != nil || left.blocks != nil || left.skimmed.Size != max+1 {
		t.Fatalf("got %d bytes and %+v, %v", len(frame), left, err)
	}
	if frame, _, err := frames.next(); err != nil || string(frame) != "d" {
		t.Fatalf("behind it: %q, %v", frame, err)
	}
	for _, half := range []int{4, max, 2 * max} {
		if _, _, err := newFrameReader(bytes.NewReader(make([]byte, 0)), max, room).next(); err != io.EOF {
			t.Fatalf("got %v", err)
		}
		if _, _, err := newFrameReader(strings.NewReader(strings.Repeat("h", half)), max, room).next(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("got %v", err)
		}
	}
}

func TestAFileThatCannotBePolledIsRefused(t *testing.T) {
	file, err := os.Create(t.TempDir() + "/plain")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := New(file, file, Options{}); !errors.Is(err, os.ErrNoDeadline) {
		t.Fatalf("got %v", err)
	}
}
