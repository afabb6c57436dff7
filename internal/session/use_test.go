package session

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

func pngOptions() browser.ScreenshotOptions { return browser.ScreenshotOptions{Format: browser.PNG} }

func TestOneNavigationAtATime(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world, s *Service) {
		out := mustOpen(t, s, Request{})
		b := w.all()[jail.Name(out.Jail)].browser
		first := make(chan error)
		go func() {
			_, err := s.Navigate(t.Context(), admin, out.ID, "slow", 0)
			first <- err
		}()
		synctest.Wait()
		_, err := s.Navigate(t.Context(), admin, out.ID, "about:blank", time.Second)
		wantCode(t, err, problem.Timeout)
		b.navigate <- nil
		if err := <-first; err != nil {
			t.Error(err)
		}
		if _, err := s.Navigate(t.Context(), admin, out.ID, "about:blank", 0); err != nil {
			t.Error(err)
		}
	})
}

func TestNavigationEndsWithItsTimeout(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, _ *world, s *Service) {
		out := mustOpen(t, s, Request{})
		began := time.Now()
		_, err := s.Navigate(t.Context(), admin, out.ID, "slow", 0)
		wantCode(t, err, problem.Timeout)
		if took := time.Since(began); took != DefaultTimeout {
			t.Errorf("it took %s", took)
		}
		for _, timeout := range []time.Duration{-1, MaxTimeout + 1} {
			_, err := s.Navigate(t.Context(), admin, out.ID, "about:blank", timeout)
			wantCode(t, err, problem.BadRequest)
		}
		_, err = s.Navigate(t.Context(), admin, "s_unknown", "about:blank", 0)
		wantCode(t, err, problem.NotFound)
	})
}

func TestNavigationIsCutWhenTheSessionIsClosed(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, _ *world, s *Service) {
		out := mustOpen(t, s, Request{})
		answers := make(chan error)
		for range 2 { // one at work, one that waits for it
			go func() {
				_, err := s.Navigate(t.Context(), admin, out.ID, "slow", 0)
				answers <- err
			}()
		}
		synctest.Wait()
		if _, err := s.Close(t.Context(), admin, out.ID); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			wantCode(t, <-answers, problem.SessionClosed)
		}
	})
}

func TestTransientRecordingKeepsTheLastScreenshotsUntilTheEnd(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, _ *world, s *Service) {
		out := mustOpen(t, s, Request{})
		for range shotsMost + 3 {
			if _, err := s.Screenshot(t.Context(), admin, out.ID, pngOptions(), 0); err != nil {
				t.Fatal(err)
			}
		}
		got := mustGet(t, s, out.ID)
		if len(got.Screenshots) != shotsMost || got.Screenshots[0].Number != 4 {
			t.Errorf("%d are kept, the first is %+v", len(got.Screenshots), got.Screenshots[0])
		}
		data, format, err := s.Recorded(t.Context(), admin, out.ID, shotsMost+3)
		if err != nil || string(data) != "a picture in png" || format != "png" {
			t.Errorf("the last one is %q, %s, %v", data, format, err)
		}
		_, _, err = s.Recorded(t.Context(), admin, out.ID, 3)
		wantCode(t, err, problem.NotFound)
		files, _ := filepath.Glob(filepath.Join(s.Recordings, "*", "*"))
		if len(files) != shotsMost {
			t.Errorf("%d files are on the disk", len(files))
		}
		if _, err := s.Close(t.Context(), admin, out.ID); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if left, _ := os.ReadDir(s.Recordings); len(left) != 0 {
			t.Errorf("afterwards there is %v", left)
		}
		if got := mustGet(t, s, out.ID); len(got.Screenshots) != 0 {
			t.Error("it still lists screenshots")
		}
	})
}

func TestWithoutRecordingNothingIsOnTheDisk(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, _ *world, s *Service) {
		out := mustOpen(t, s, Request{Record: RecordOff})
		if _, err := s.Screenshot(t.Context(), admin, out.ID, pngOptions(), 0); err != nil {
			t.Fatal(err)
		}
		if left, _ := os.ReadDir(s.Recordings); len(left) != 0 || len(mustGet(t, s, out.ID).Screenshots) != 0 {
			t.Errorf("there is %v", left)
		}
	})
}

func TestRecordingsOfAnEarlierProcessAreRemovedAndNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		o := w.options()
		old, foreign := filepath.Join(o.Recordings, "s_abcdefgh23456789"), filepath.Join(o.Recordings, "notes.txt")
		if err := os.MkdirAll(filepath.Join(old, "below"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(foreign, []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(old); !os.IsNotExist(err) {
			t.Errorf("the old recording is there: %v", err)
		}
		if _, err := os.Stat(foreign); err != nil {
			t.Errorf("the foreign file: %v", err)
		}
		if err := s.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
}
