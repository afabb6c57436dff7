package wake

import "testing"

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
