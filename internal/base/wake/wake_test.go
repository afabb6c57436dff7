package wake

import (
	"errors"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestManySignalsAreOneUntilItIsReceived(t *testing.T) {
	s := New()
	for range 3 {
		s.Send()
		s.Send()
		<-s
		select {
		case <-s:
			t.Fatal("what was received once is received again")
		default:
		}
	}
}

func TestAWantOfDescriptorsEndsNoListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		said := 0
		say := func(error) { said++ }
		answers := []error{syscall.EMFILE, syscall.EMFILE, syscall.ECONNABORTED, nil}
		accept := func() (net.Conn, error) {
			err := answers[0]
			answers = answers[1:]
			return nil, err
		}
		began := time.Now()
		if _, err := Accept(accept, nil, say); err != nil || said != 1 || time.Since(began) != 3*acceptPause {
			t.Errorf("%v after %s, said %d times", err, time.Since(began), said)
		}
		answers = []error{net.ErrClosed}
		if _, err := Accept(accept, nil, say); !errors.Is(err, net.ErrClosed) || said != 1 {
			t.Errorf("a closed listener: %v", err)
		}
		stop := make(chan struct{})
		close(stop)
		answers = []error{syscall.EMFILE}
		if _, err := Accept(accept, stop, say); !errors.Is(err, net.ErrClosed) {
			t.Errorf("when it is to stop: %v", err)
		}
	})
}
