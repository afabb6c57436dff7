package cdp

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/clawjail/clawjail/internal/skim"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestALargeResultCostsTheCommand(t *testing.T) {
	const limit = 200 << 10
	b := newFake(t, Options{MaxFrame: limit}, browserWithSessions(func(c *Message) []string {
		switch c.Method {
		case "A.fits":
			return []string{fmt.Sprintf(`{"id":%d,"result":{"data":%q},"sessionId":%q}`, c.ID, strings.Repeat("x", limit-100), c.SessionID)}
		case "A.large":
			return []string{fmt.Sprintf(`{"id":%d,"result":{"data":"%s","sessionId":"X9","id":7},"sessionId":%q}`, c.ID, strings.Repeat(`\"x`, limit/2), c.SessionID)}
		case "A.logs":
			return []string{fmt.Sprintf(`{"method":%q,"params":{"a":%q},"sessionId":%q}`, line, strings.Repeat("x", limit), c.SessionID), ok(c)}
		}
		return nil
	}))
	c := attach(t, NewMux(b.conn), ClientOptions{})
	const no = `{"code":-32000,"message":"The result has 1 MiB, and one may have 1 MiB. Use smaller ones."}`
	send(t, c, `{"id":1,"method":"A.large"}`)
	expect(t, c, `{"id":1,"error":`+no+`}`)
	send(t, c, `{"id":2,"method":"A.logs"}`)
	expect(t, c, `{"method":"Clawjail.eventsLeftOut","params":{"count":1,"methods":{"`+line+`":1}}}`)
	expect(t, c, `{"id":2,"result":{}}`)
	send(t, c, `{"id":3,"method":"A.fits"}`)
	if got := receive(t, c); len(got) < limit-100 {
		t.Errorf("received %s", got)
	}
	// The keeper's own commands are no exception.
	var refused *Error
	if err := b.conn.Call(short(t), "", "A.large", nil, nil); !errors.As(err, &refused) {
		t.Errorf("the keeper got %v", err)
	}
	if err := b.conn.Call(short(t), "", "A.fits", nil, nil); err != nil {
		t.Error(err)
	}
}

// A client that would believe what is not so without a large event is ended, and no other.
func TestALargeEventThatCannotBeLeftOutEndsItsClientOnly(t *testing.T) {
	const limit = 200 << 10
	b := newFake(t, Options{MaxFrame: limit}, browserWithSessions(func(c *Message) []string {
		if c.Method != "A.pause" {
			return nil
		}
		return []string{fmt.Sprintf(`{"method":"Fetch.requestPaused","params":{"a":%q},"sessionId":%q}`, strings.Repeat("x", limit), c.SessionID), ok(c)}
	}))
	m := NewMux(b.conn)
	one, two := attach(t, m, ClientOptions{}), attach(t, m, ClientOptions{})
	send(t, one, `{"id":1,"method":"A.pause"}`)
	<-one.Done()
	if !errors.Is(one.Err(), ErrFrameTooLarge) {
		t.Errorf("it ended with %v", one.Err())
	}
	send(t, two, `{"id":1,"method":"A.b"}`)
	expect(t, two, `{"id":1,"result":{}}`)
}

func TestALargeCommandCostsTheCommand(t *testing.T) {
	b := newFake(t, Options{}, browserWithSessions(nil))
	m := NewMux(b.conn)
	c, other := attach(t, m, ClientOptions{MaxFrame: 8 << 10}), attach(t, m, ClientOptions{})
	long := strings.Repeat("x", 9000)
	ways := map[string]func(c *Client, frame string) error{
		"whole": func(c *Client, frame string) error { return c.Send(short(t), []byte(frame)) },
		"read":  func(c *Client, frame string) error { return c.SendFrom(short(t), strings.NewReader(frame)) },
		"in pieces": func(c *Client, frame string) error {
			return c.SendFrom(short(t), iotest.OneByteReader(strings.NewReader(frame)))
		},
	}
	for name, way := range ways {
		before := len(b.commands())
		for frame, want := range map[string]string{
			`{"id":9,"method":"A.b","params":{"a":"` + long + `"}}`:                  `{"id":9,"error":{"code":-32000,"message":"The command has 1 MiB, and one may have 1 MiB. Use smaller ones."}}`,
			`{"params":{"a":"` + long + `","id":8},"sessionId":"X2","id":9}`:         `{"id":9,"error":{"code":-32001,"message":"Session with given id not found."}}`,
			`{"id":9,"method":"A.b","params":{"a":"` + long + `"},"sessionId":"X1"}`: `{"id":9,"error":{"code":-32001,"message":"Session with given id not found."}}`,
		} {
			if err := way(c, frame); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			expect(t, c, want)
		}
		if n := len(b.commands()); n != before {
			t.Errorf("%s: %d commands reached the browser", name, n-before)
		}
		if err := way(c, `{"id":1,"method":"A.b"}`); err != nil {
			t.Fatal(err)
		}
		expect(t, c, `{"id":1,"result":{}}`)
	}
	// Without an id the client cannot be told which command it was.
	if err := ways["read"](c, `{"method":"A.b","params":{"a":"`+long+`"}}`); !errors.Is(err, ErrFrameTooLarge) {
		t.Errorf("got %v", err)
	}
	send(t, other, `{"id":1,"method":"A.b"}`)
	expect(t, other, `{"id":1,"result":{}}`)
}

func TestACommandThatBreaksOffIsNotSent(t *testing.T) {
	b := newFake(t, Options{}, browserWithSessions(nil))
	c := attach(t, NewMux(b.conn), ClientOptions{})
	before := len(b.commands())
	err := c.SendFrom(short(t), io.MultiReader(strings.NewReader(`{"id":1,"method":"A.b"}`), iotest.ErrReader(io.ErrUnexpectedEOF)))
	if !errors.Is(err, ErrUnread) || len(b.commands()) != before {
		t.Errorf("%v, and %d commands", err, len(b.commands())-before)
	}
}

// A room that others have filled costs a command, and is given back whole.
func TestWithoutRoomALargeMessageIsRefused(t *testing.T) {
	const large = 6 << 20
	room := &alone{left: 20 << 20}
	b := newFake(t, Options{Room: room}, browserWithSessions(func(c *Message) []string {
		if c.Method != "A.large" {
			return nil
		}
		return []string{fmt.Sprintf(`{"id":%d,"result":{"data":%q},"sessionId":%q}`, c.ID, strings.Repeat("x", large), c.SessionID)}
	}))
	c := attach(t, NewMux(b.conn), ClientOptions{})
	command := fmt.Sprintf(`{"id":2,"method":"A.b","params":{"a":%q}}`, strings.Repeat("x", large))
	try := func(want bool) {
		t.Helper()
		for _, frame := range []string{`{"id":1,"method":"A.large"}`, command} {
			if err := c.SendFrom(short(t), strings.NewReader(frame)); err != nil {
				t.Fatal(err)
			}
			got := receive(t, c)
			if fits := !strings.Contains(got, "There is no room for a"); fits != want {
				t.Errorf("fits is %t: %.300s", fits, got)
			}
		}
	}
	try(true)
	if !room.Take(19<<20, 0) {
		t.Fatal("others cannot fill it")
	}
	try(false)
	room.Give(19 << 20)
	try(true)
	// Messages that wait for a client are counted until it leaves.
	for range 2 {
		send(t, c, `{"id":1,"method":"A.large"}`)
	}
	testenv.Eventually(t, 5*time.Second, func() bool { return !room.Take(12<<20, 0) || giveBack(room, 12<<20) }, "two results wait")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 5*time.Second, func() bool { room.mu.Lock(); defer room.mu.Unlock(); return room.left == 20<<20 }, "the room is whole again")
}

// giveBack gives back what was taken to see whether it could be.
func giveBack(room Room, n int64) bool {
	room.Give(n)
	return false
}

func TestSkimFindsWhatTheParserFinds(t *testing.T) {
	for _, frame := range []string{
		`{"id":1,"method":"A.b"}`,
		`{"method":"A.b","params":{"id":7,"method":"no","sessionId":"no","a":[{"id":2}]},"id":-5,"sessionId":"S\u0041\""}`,
		" {\n\t\"sessionId\" : \"}{\" , \"id\" : 12 ,\"method\":\"\\\\\" } ",
		`{"id":3,"result":{"a":"\\\"}"},"sessionId":"S"}`,
		`{"id":3,"error":{"code":-1,"message":"id\":4"}}`,
		`{"method":"A.e","params":{}}`,
	} {
		agree(t, []byte(frame))
	}
	s := new(skim.Envelope)
	s.Look([]byte(`{"id":99999999999,"method":"` + strings.Repeat("x", 300) + `","sessionId":"` + strings.Repeat("y", 300) + `"}`))
	if _, err := parseID(s.ID); err == nil || s.Method != "" || s.Session != "" {
		t.Errorf("it found %+v", s)
	}
}

// agree compares both on a message that the parser takes, whole and byte by byte.
func agree(t *testing.T, frame []byte) {
	t.Helper()
	m, err := parse(frame, fromBrowser)
	if err != nil {
		if m, err = parse(frame, fromClient); err != nil {
			return
		}
	}
	if len(m.Method) > 40 || len(m.SessionID) > 40 {
		return
	}
	whole, pieces := new(skim.Envelope), new(skim.Envelope)
	whole.Look(frame)
	for i := range frame {
		pieces.Look(frame[i : i+1])
	}
	for _, s := range []*skim.Envelope{whole, pieces} {
		id, err := parseID(s.ID)
		if (err == nil) != (m.Kind == Command || m.Kind == Reply) || id != m.ID || s.Method != m.Method || s.Session != m.SessionID || s.Size != int64(len(frame)) {
			t.Errorf("%q: %+v, and the parser %+v", frame, s, m)
		}
	}
}

func FuzzSkim(f *testing.F) {
	f.Add([]byte(`{"id":1,"method":"A.b","params":{"id":2,"a":"\"}"},"sessionId":"S"}`))
	f.Fuzz(func(t *testing.T, frame []byte) { agree(t, frame) })
}
