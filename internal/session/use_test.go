package session

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session/recording"
)

func TestNavigationEndsWithItsTimeout(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, _ *fixture, svc *Service) {
		out := mustOpen(t, svc, OpenRequest{})
		began := time.Now()
		_, err := visit(svc, t.Context(), admin, out.ID, "slow", 0)
		wantCode(t, err, problem.Timeout)
		if took := time.Since(began); took != visitLimit {
			t.Errorf("it took %s", took)
		}
		_, err = visit(svc, t.Context(), admin, "s_unknown", "about:blank", 0)
		wantCode(t, err, problem.NotFound)
	})
}

func TestNavigationIsCutWhenTheSessionIsClosed(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, _ *fixture, svc *Service) {
		out := mustOpen(t, svc, OpenRequest{})
		answers := make(chan error)
		for range 2 { // one at work, one that waits for it
			go func() {
				_, err := visit(svc, t.Context(), admin, out.ID, "slow", 0)
				answers <- err
			}()
		}
		synctest.Wait()
		if _, err := svc.Close(t.Context(), admin, out.ID); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			wantCode(t, <-answers, problem.SessionClosed)
		}
	})
}

func TestTransientRecordingKeepsTheLastScreenshotsUntilTheEnd(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, _ *fixture, svc *Service) {
		out := mustOpen(t, svc, OpenRequest{})
		for range recording.PicturesMost + 3 {
			if _, err := photograph(svc, t.Context(), admin, out.ID); err != nil {
				t.Fatal(err)
			}
		}
		got := mustGet(t, svc, out.ID)
		if len(got.Screenshots) != recording.PicturesMost || got.Screenshots[0].Number != 4 {
			t.Errorf("%d are kept, the first is %+v", len(got.Screenshots), got.Screenshots[0])
		}
		data, format, err := svc.Recorded(t.Context(), admin, out.ID, recording.PicturesMost+3)
		if err != nil || string(data) != "a picture in png" || format != "png" {
			t.Errorf("the last one is %q, %s, %v", data, format, err)
		}
		_, _, err = svc.Recorded(t.Context(), admin, out.ID, 3)
		wantCode(t, err, problem.NotFound)
		files, _ := filepath.Glob(filepath.Join(svc.Recordings, "*", "*", "*.png"))
		if len(files) != recording.PicturesMost {
			t.Errorf("%d files are on the disk", len(files))
		}
		if _, err := svc.Close(t.Context(), admin, out.ID); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if left, _ := os.ReadDir(svc.Recordings); len(left) != 0 {
			t.Errorf("afterwards there is %v", left)
		}
		if got := mustGet(t, svc, out.ID); len(got.Screenshots) != 0 {
			t.Error("it still lists screenshots")
		}
	})
}

func TestWithoutRecordingNothingIsOnTheDisk(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, _ *fixture, svc *Service) {
		out := mustOpen(t, svc, OpenRequest{Record: RecordOff})
		if _, err := photograph(svc, t.Context(), admin, out.ID); err != nil {
			t.Fatal(err)
		}
		if left, _ := os.ReadDir(svc.Recordings); len(left) != 0 || len(mustGet(t, svc, out.ID).Screenshots) != 0 {
			t.Errorf("there is %v", left)
		}
	})
}

// Why a page's process ended is said where the kernel knows it.
func TestMemoryIsTheReasonOfACrashWhereTheKernelSaysSo(t *testing.T) {
	for _, hit := range [][]jail.LimitName{nil, {jail.LimitMemory}, {jail.LimitTenantMemory}} {
		inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
			w.hit = hit
			out := mustOpen(t, svc, OpenRequest{})
			w.failOnce("navigate", problem.New(problem.PageCrashed, "", "the process of the page ended"))
			_, err := visit(svc, t.Context(), admin, out.ID, "about:blank", 0)
			wantCode(t, err, problem.PageCrashed)
			tenants := slices.Contains(hit, jail.LimitTenantMemory)
			if strings.Contains(err.Error(), "memory") != (hit != nil) || strings.Contains(err.Error(), "of its tenant") != tenants {
				t.Errorf("it says %v", err)
			}
			if _, err := visit(svc, t.Context(), admin, out.ID, "about:blank", 0); err != nil {
				t.Errorf("the next one: %v", err)
			}
		})
	}
}
