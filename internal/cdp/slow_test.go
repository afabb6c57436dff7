package cdp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/testenv"
)

const line = "Runtime.consoleAPICalled"

// lines are events that can be left out, with their numbers.
func lines(session string, from, to int) (out []string) {
	for n := from; n < to; n++ {
		out = append(out, fmt.Sprintf(`{"method":%q,"params":{"n":%d},"sessionId":%q}`, line, n, session))
	}
	return out
}

// leftOutIn is what an event says that was left out; nothing of any other message.
func leftOutIn(t testing.TB, frame string) int {
	t.Helper()
	var m struct {
		Method string
		Params struct {
			Count   int
			Methods map[string]int
		}
	}
	if err := json.Unmarshal([]byte(frame), &m); err != nil {
		t.Fatal(err)
	}
	if m.Method != leftOut {
		return 0
	}
	sum := 0
	for _, n := range m.Params.Methods {
		sum += n
	}
	if sum != m.Params.Count || sum == 0 {
		t.Errorf("the sum is not %d: %s", m.Params.Count, frame)
	}
	return m.Params.Count
}

// A client that computes while its page logs misses lines, is told how many, and nothing else. Others miss nothing.
func TestASlowClientStaysAndIsToldWhatWasLeftOut(t *testing.T) {
	const half = 500
	b := newFake(t, Options{}, browserWithSessions(func(c *Message) []string {
		if c.Method != "A.flood" {
			return nil
		}
		out := append(lines(c.SessionID, 0, half), fmt.Sprintf(`{"method":"Page.frameNavigated","sessionId":%q}`, c.SessionID))
		return append(append(out, lines(c.SessionID, half, 2*half)...), ok(c))
	}))
	m := NewMux(b.conn)
	slow, quick := attach(t, m, ClientOptions{MaxNoise: 20 << 10}), attach(t, m, ClientOptions{})
	for _, c := range []struct {
		*Client
		misses bool
	}{{slow, true}, {quick, false}} {
		send(t, c.Client, `{"id":1,"method":"A.flood"}`)
		send(t, c.Client, `{"id":2,"method":"A.b"}`)
		// The answer to the keeper comes behind both: then everything is queued.
		if err := b.conn.Call(short(t), "", "A.b", nil, nil); err != nil {
			t.Fatal(err)
		}
		var seen, missing, gaps int
		var order []string
		for len(order) < 3 {
			frame := receive(t, c.Client)
			switch n := leftOutIn(t, frame); {
			case n > 0:
				missing, gaps = missing+n, gaps+1
			case strings.Contains(frame, line):
				if missing > 0 {
					t.Fatalf("%s comes behind what was left out, and had no room", frame)
				}
				if want := fmt.Sprintf(`"n":%d}`, seen); !strings.Contains(frame, want) {
					t.Fatalf("%s is not number %d", frame, seen)
				}
				seen++
			default:
				order = append(order, frame)
			}
		}
		if seen+missing != 2*half || (missing > 0) != c.misses || c.misses && (gaps != 1 || seen == 0) {
			t.Errorf("misses %t: %d seen, %d left out in %d", c.misses, seen, missing, gaps)
		}
		if got, want := strings.Join(order, " "), `{"method":"Page.frameNavigated"} {"id":1,"result":{}} {"id":2,"result":{}}`; got != want {
			t.Errorf("the rest is %s, want %s", got, want)
		}
		if c.Err() != nil {
			t.Errorf("it has ended: %v", c.Err())
		}
	}
}

// Whatever comes and goes: all that is not noise arrives, all that arrives is in its order, and what is missing is counted
// where it is missing.
func TestNothingIsMissingThatIsNotCounted(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 7))
		room := &alone{left: 8 << 20}
		q := newQueue(queueBounds{noise: load{bytes: 4 << 10}, kept: load{bytes: 64 << 20}, spare: 4 << 20}, room)
		var noises, kepts, noise, kept int // sent of each, and seen or counted
		pop := func() {
			m, g, err := q.pop(context.Background())
			switch {
			case err != nil:
				t.Fatal(err)
			case g != nil:
				noise += g.count
			case IsNoise(m.Method):
				if int(m.ID) != noise {
					t.Fatalf("seed %d: line %d comes when %d were seen or counted", seed, m.ID, noise)
				}
				noise++
			default:
				if int(m.ID) != kept {
					t.Fatalf("seed %d: number %d comes after %d", seed, m.ID, kept)
				}
				kept++
			}
		}
		for range 3000 {
			m := &Message{Kind: Event, Method: line, ID: int32(noises), Params: []byte(`{"a":"` + strings.Repeat("x", r.IntN(400)) + `"}`)}
			switch r.IntN(5) {
			case 0, 1:
				noises++
			case 2:
				m.Method, m.ID = "Page.frameNavigated", int32(kepts)
				kepts++
			default:
				if len(q.items) > 0 {
					pop()
				}
				continue
			}
			if !q.push(m) {
				t.Fatalf("seed %d: %s has no room", seed, m.Method)
			}
		}
		for len(q.items) > 0 {
			pop()
		}
		if noise != noises || kept != kepts {
			t.Errorf("seed %d: %d of %d lines are seen or counted, and %d of %d others", seed, noise, noises, kept, kepts)
		}
		q.close(ErrClosed, true)
		if room.left != 8<<20 {
			t.Errorf("seed %d: %d bytes were not given back", seed, 8<<20-room.left)
		}
	}
}

// Messages that cannot be left out end the client for which too many of them wait, and no other.
func TestAClientForWhichTooMuchIsKeptIsEnded(t *testing.T) {
	b := newFake(t, Options{}, browserWithSessions(func(c *Message) []string {
		var out []string
		for range 200 {
			out = append(out, fmt.Sprintf(`{"method":"Page.frameNavigated","sessionId":%q}`, c.SessionID))
		}
		return append(out, ok(c))
	}))
	m := NewMux(b.conn)
	slow, quick := attach(t, m, ClientOptions{MaxKept: 10 << 10}), attach(t, m, ClientOptions{})
	send(t, slow, `{"id":1,"method":"A.b"}`)
	<-slow.Done()
	if _, err := slow.Receive(short(t)); !errors.Is(err, ErrSlowClient) {
		t.Fatalf("got %v", err)
	}
	send(t, quick, `{"id":1,"method":"A.b"}`)
	for range 200 {
		expect(t, quick, `{"method":"Page.frameNavigated"}`)
	}
	expect(t, quick, `{"id":1,"result":{}}`)
}

// The keeper's own readers miss lines, too, before they miss what happens to a page.
func TestASubscriberMissesNoiseFirst(t *testing.T) {
	b := newFake(t, Options{}, func(c *Message) []string {
		return append(append(lines("", 0, subscriptionCount+100), `{"method":"Page.frameNavigated"}`), ok(c))
	})
	sub, err := b.conn.Subscribe("", line, "Page.frameNavigated")
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	if err := b.conn.Call(short(t), "", "A.b", nil, nil); err != nil {
		t.Fatal(err)
	}
	for range subscriptionCount {
		if _, err := sub.Next(short(t)); err != nil {
			t.Fatal(err)
		}
	}
	var lost *LostError
	if _, err := sub.Next(short(t)); !errors.As(err, &lost) || lost.Count != 100 || !lost.Noise {
		t.Fatalf("got %+v", lost)
	}
	if m, err := sub.Next(short(t)); err != nil || m.Method != "Page.frameNavigated" {
		t.Fatalf("behind the lines: %s, %v", m.Method, err)
	}
}

// One client can neither fill the table of sessions for the others nor end the browser with it.
func TestAClientThatAttachesWithoutEndEndsItself(t *testing.T) {
	b := newFake(t, Options{}, browserWithSessions(func(c *Message) []string {
		if c.Method != "A.attach" {
			return nil
		}
		var out []string
		for n := range maxSessionsOfClient + 1 {
			out = append(out, fmt.Sprintf(`{"method":"Target.attachedToTarget","sessionId":%q,"params":{"sessionId":"S%d"}}`, c.SessionID, n))
		}
		return append(out, ok(c))
	}))
	m := NewMux(b.conn)
	greedy, other := attach(t, m, ClientOptions{}), attach(t, m, ClientOptions{})
	send(t, greedy, `{"id":1,"method":"A.attach"}`)
	<-greedy.Done()
	if !errors.Is(greedy.Err(), ErrTooManySessions) {
		t.Errorf("it ended with %v", greedy.Err())
	}
	testenv.Eventually(t, 5*time.Second, func() bool { return b.conn.attachedSessions() == 1 }, "the other's session is left")
	send(t, other, `{"id":1,"method":"A.b"}`)
	expect(t, other, `{"id":1,"result":{}}`)
	// Sessions that are detached do not count.
	b.conn.mu.Lock()
	defer b.conn.mu.Unlock()
	if greedy.attached != 0 {
		t.Errorf("%d sessions are counted", greedy.attached)
	}
}
