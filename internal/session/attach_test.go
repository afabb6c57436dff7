package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/cdp/guard"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/policy/redact"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/store"
)

func attach(t *testing.T, svc *Service, id string) Devtools {
	t.Helper()
	client, err := svc.Attach(t.Context(), admin, id)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestADevtoolsClientIsGuardedCountedAndOnRecord(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		out := mustOpen(t, svc, OpenRequest{})
		b := w.all()[jail.Name(out.Jail)].browser
		client := attach(t, svc, out.ID)
		if len(b.guards) != 1 || b.guards[0].Mode != guard.Clean {
			t.Fatalf("the guards are %+v", b.guards)
		}
		if err := client.Send(t.Context(), []byte("x")); err != nil {
			t.Fatal(err)
		}
		b.guards[0].Refused("Tethering.bind", "it opens a port")
		if err := client.Close(); err != nil {
			t.Fatal(err)
		}
		trail := strings.Join(w.trail, "\n")
		for _, want := range []string{"session.attach", "Tethering.bind"} {
			if !strings.Contains(trail, want) {
				t.Errorf("not on record: %s in\n%s", want, trail)
			}
		}
		// Disconnecting is not closing.
		if got := mustGet(t, svc, out.ID); got.State != StateReady {
			t.Errorf("the session is %s", got.State)
		}
	})
}

func TestSessionsWithToolsHaveNoDevtoolsAndRunNoScript(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		out := mustOpen(t, svc, OpenRequest{Access: "tools"})
		_, err := svc.Attach(t.Context(), admin, out.ID)
		wantCode(t, err, problem.Forbidden)
		_, err = svc.IssueToken(t.Context(), admin, out.ID, identity.ScopeCDP, 0)
		wantCode(t, err, problem.Forbidden)
		_, err = svc.Drive(t.Context(), admin, out.ID, visiting{"about:blank", time.Second, browser.Evaluates})
		wantCode(t, err, problem.ActEvaluateDisabled)
		// With cdp all three are possible.
		out = mustOpen(t, svc, OpenRequest{Access: "cdp"})
		if err := attach(t, svc, out.ID).Close(); err != nil {
			t.Error(err)
		}
		if _, err := svc.Drive(t.Context(), admin, out.ID, visiting{"about:blank", time.Second, browser.Evaluates}); err != nil {
			t.Error(err)
		}
	})
}

func TestTheNumberOfDevtoolsClientsIsBounded(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, _ *fixture, svc *Service) {
		out := mustOpen(t, svc, OpenRequest{})
		var all []Devtools
		for range maxAttached {
			all = append(all, attach(t, svc, out.ID))
		}
		_, err := svc.Attach(t.Context(), admin, out.ID)
		wantCode(t, err, problem.RateLimited)
		if err := all[0].Close(); err != nil {
			t.Fatal(err)
		}
		all[0] = attach(t, svc, out.ID)
		for _, client := range all {
			if err := client.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// Messages that one tenant's clients do not read leave memory for those of another.
func TestMessagesOfOneTenantLeaveRoomForThoseOfOthers(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		w.tenants = 2
		const step = 1 << 20
		fill := func(tenant string, spare int64) (taken int64) {
			out := mustOpen(t, svc, OpenRequest{Tenant: tenant})
			room := w.all()[jail.Name(out.Jail)].browser.room
			for room.Take(step, spare) {
				taken += step
			}
			if room.Give(taken); !room.Take(taken, 0) {
				t.Error("what was given back is not there")
			}
			return taken
		}
		part := int64(maxOfMessages) * 80 / 100
		if n := fill("a", 64*step); n != (part-64*step)/step*step {
			t.Errorf("the first tenant takes %d bytes and leaves nothing of %d to spare", n, part)
		}
		if n := fill("a", 0); n < 63*step || n > 65*step {
			t.Errorf("what was spared is %d bytes", n)
		}
		if n := fill("b", 0); n != (maxOfMessages/step-part/step)*step {
			t.Errorf("the other tenant takes %d bytes", n)
		}
		if n := fill("a", 0); n != 0 {
			t.Errorf("the first tenant takes %d bytes more", n)
		}
		var held int64
		for _, amount := range svc.Held(quota.Holder{Tenant: "a"}) {
			if amount.Kind == quota.Messages() {
				held = amount.Held.Tenant
			}
		}
		if held < part-step {
			t.Errorf("%d bytes are shown as held", held)
		}
	})
}

func TestATokenIsGoodForItsSessionItsScopeAndItsTime(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, _ *fixture, svc *Service) {
		out, other := mustOpen(t, svc, OpenRequest{}), mustOpen(t, svc, OpenRequest{})
		redeem := func(scope Scope) identity.Principal {
			t.Helper()
			made, err := svc.IssueToken(t.Context(), admin, out.ID, scope, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(made.Token, TokenPrefix) || len(made.Token) < 40 || made.Scope != scope || made.Session != out.ID {
				t.Errorf("the token is %+v", made)
			}
			p, err := svc.Redeem(t.Context(), made.Token)
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		view, control, cdp := redeem(identity.ScopeView), redeem(identity.ScopeControl), redeem(identity.ScopeCDP)
		look := visiting{"about:blank", time.Second, browser.Looks}
		steer := visiting{"about:blank", time.Second, browser.Steers}
		for _, test := range []struct {
			by   identity.Principal
			op   browser.Operation
			want string
		}{
			{view, look, ""}, {view, steer, problem.Forbidden}, {control, look, ""}, {control, steer, ""}, {cdp, steer, ""},
		} {
			_, err := svc.Drive(t.Context(), test.by, out.ID, test.op)
			wantCode(t, err, test.want)
			_, err = svc.Drive(t.Context(), test.by, other.ID, test.op)
			if test.want == "" {
				test.want = problem.NotFound
			}
			wantCode(t, err, test.want)
		}
		for _, by := range []identity.Principal{view, control, cdp} {
			_, err := svc.Open(t.Context(), by, OpenRequest{})
			wantCode(t, err, problem.Forbidden)
			_, err = svc.Close(t.Context(), by, out.ID)
			wantCode(t, err, problem.Forbidden)
			_, err = svc.IssueToken(t.Context(), by, out.ID, identity.ScopeView, 0)
			wantCode(t, err, problem.Forbidden)
			_, err = svc.List(t.Context(), by, "", true)
			wantCode(t, err, problem.Forbidden)
		}
		_, err := svc.Attach(t.Context(), control, out.ID)
		wantCode(t, err, problem.Forbidden)
		client, err := svc.Attach(t.Context(), cdp, out.ID)
		if err != nil {
			t.Fatal(err)
		}
		// When its time is up, so is that of who came with it.
		time.Sleep(61 * time.Second)
		synctest.Wait()
		select {
		case <-client.Done():
			wantCode(t, client.Err(), problem.Unauthorized)
		default:
			t.Error("the client goes on after its token")
			client.Close()
		}
	})
}

func TestTokensThatAreNotGoodAreRefused(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, _ *fixture, svc *Service) {
		out := mustOpen(t, svc, OpenRequest{})
		for _, life := range []time.Duration{-time.Second, time.Millisecond, MaxTokenLife + 1} {
			_, err := svc.IssueToken(t.Context(), admin, out.ID, identity.ScopeView, life)
			wantCode(t, err, problem.BadLimit)
		}
		_, err := svc.IssueToken(t.Context(), admin, out.ID, "everything", 0)
		wantCode(t, err, problem.BadRequest)
		// A token ends with the key of who makes it, and says so.
		brief := admin
		brief.ExpiresAt = time.Now().Add(30 * time.Second)
		for _, c := range []struct {
			by   identity.Principal
			life time.Duration
			ends time.Time
		}{{brief, time.Minute, brief.ExpiresAt}, {brief, time.Second, time.Now().Add(time.Second)}, {admin, time.Minute, time.Now().Add(time.Minute)}} {
			made, err := svc.IssueToken(t.Context(), c.by, out.ID, identity.ScopeView, c.life)
			if err != nil || !made.ExpiresAt.Equal(c.ends) {
				t.Errorf("it ends at %s instead of %s: %v", made.ExpiresAt, c.ends, err)
			}
		}
		_, err = svc.Redeem(t.Context(), TokenPrefix+"AAAA")
		wantCode(t, err, problem.Unauthorized)
		short, err := svc.IssueToken(t.Context(), admin, out.ID, identity.ScopeView, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		long, err := svc.IssueToken(t.Context(), admin, out.ID, identity.ScopeView, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		_, err = svc.Redeem(t.Context(), short.Token)
		wantCode(t, err, problem.Unauthorized)
		if _, err := svc.Redeem(t.Context(), long.Token); err != nil {
			t.Error(err)
		}
		if _, err := svc.Close(t.Context(), admin, out.ID); err != nil {
			t.Fatal(err)
		}
		_, err = svc.Redeem(t.Context(), long.Token)
		wantCode(t, err, problem.Unauthorized)
	})
}

func TestTheNumberOfTokensIsBoundedByThoseThatAreGood(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, _ *fixture, svc *Service) {
		out := mustOpen(t, svc, OpenRequest{Idle: "1h", TTL: "1h"})
		for range maxTokens {
			if _, err := svc.IssueToken(t.Context(), admin, out.ID, identity.ScopeView, time.Minute); err != nil {
				t.Fatal(err)
			}
		}
		_, err := svc.IssueToken(t.Context(), admin, out.ID, identity.ScopeView, time.Minute)
		wantCode(t, err, problem.RateLimited)
		time.Sleep(time.Minute)
		if _, err := svc.IssueToken(t.Context(), admin, out.ID, identity.ScopeView, time.Minute); err != nil {
			t.Error(err)
		}
		if len(svc.tokens) != 1 {
			t.Errorf("%d are kept", len(svc.tokens))
		}
	})
}

func TestARecordingForAuditHasEveryStep(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, _ *fixture, svc *Service) {
		out := mustOpen(t, svc, OpenRequest{Record: RecordAudit})
		if _, err := visit(svc, t.Context(), admin, out.ID, "https://example.com/", 0); err != nil {
			t.Fatal(err)
		}
		client := attach(t, svc, out.ID)
		svc.sessions[out.ID].attachedOnly().noteSeen("Input.dispatchKeyEvent")
		time.Sleep(filmEvery + time.Millisecond)
		synctest.Wait()
		// Also what it does in its last moment.
		svc.sessions[out.ID].attachedOnly().noteSeen("Page.navigate")
		svc.sessions[out.ID].attachedOnly().noteSeen("Page.reload")
		if err := client.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := svc.Close(t.Context(), admin, out.ID); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		var page strings.Builder
		if err := svc.WriteRecording(t.Context(), admin, out.ID, &page); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"navigate", "https://example.com/", "cdp", "1 commands", "2 commands", "data:image/png;base64,"} {
			if !strings.Contains(page.String(), want) {
				t.Errorf("the recording lacks %q", want)
			}
		}
		// Others are told what they are told of a session that never was.
		stranger := identity.Principal{Kind: identity.KindOperator, ID: "o1", Tenant: "rival", Role: identity.RoleAdmin}
		for _, id := range []string{out.ID, "s_aaaaaaaaaaaaaaaa"} {
			wantCode(t, svc.WriteRecording(t.Context(), stranger, id, &page), problem.NotFound)
		}
	})
}

// attachedOnly is the one client that a session has.
func (s *session) attachedOnly() *attachment {
	for a := range s.attached {
		return a
	}
	return nil
}

// A site that shows a cookie on a page does not give it to who steers the browser.
func TestValuesOfInjectedCookiesAreTakenOutOfAnswers(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		planted := cookie("sid", ".example.com")
		value := string(planted.Value.Append(nil))
		a.set(t, store.DefaultTenant, "example.com", 1, planted)
		out := a.mustOpenOperator(t)
		a.browserOf(out).redirect = map[string]string{"https://example.com/": "https://example.com/?echo=" + value}
		got, err := visit(a.s, t.Context(), admin, out.ID, "https://example.com/", 0)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(got.URL, value) || got.Status != 200 || !strings.HasPrefix(got.URL, "https://example.com/?echo=") {
			t.Errorf("the answer is %+v", got)
		}
		// Without the values it would have gone through, so it was the scrub that stopped it.
		a.s.sessions[out.ID].values = nil
		if got, err = visit(a.s, t.Context(), admin, out.ID, "https://example.com/", 0); err != nil || !strings.Contains(got.URL, value) {
			t.Errorf("the answer is %+v, %v", got, err)
		}
	})
}

// Scripts that were run otherwise than by Runtime.evaluate left no picture in a recording for audit.
func TestEveryCommandThatMayChangeThePageIsFilmed(t *testing.T) {
	for method, want := range map[string]bool{
		"Runtime.evaluate": false, "Runtime.runScript": false, "Runtime.callFunctionOn": false, "Debugger.evaluateOnCallFrame": false,
		"Page.setDocumentContent": false, "Page.addScriptToEvaluateOnNewDocument": false, "Page.handleJavaScriptDialog": false,
		"DOM.setOuterHTML": false, "DOM.setAttributeValue": false, "WebMCP.invokeTool": false, "Input.insertText": false,
		"Fetch.fulfillRequest": false, "Storage.setCookies": false, "Target.createTarget": false, "Something.new": false,
		"Page.getFrameTree": true, "Page.captureScreenshot": true, "DOM.describeNode": true, "Runtime.enable": true, "IO.read": true,
	} {
		if looks(method) != want {
			t.Errorf("%s: it only looks: %v", method, !want)
		}
	}
}

// A page that is quoted in an error, such as that of a script which threw, gave away what the answer would not have.
func TestValuesOfInjectedCookiesAreTakenOutOfErrors(t *testing.T) {
	const value = "a-long-value-of-a-cookie"
	values := redact.New([]byte(value))
	quoting := problem.New(problem.ActOperationFailed, "see "+value, "the script threw: Error: sid=%s", value).With("url", "https://example.com/?"+value)
	quoting.Err = errors.New(value)
	for _, given := range []error{fmt.Errorf("act: %w", quoting), fmt.Errorf("act: %w", errors.New(value)),
		problem.New(problem.NavigationFailed, "", "it failed").With("url", value)} {
		got := scrubbedError(values, given)
		p, _ := problem.As(got)
		if text := fmt.Sprintf("%v %+v", got, p); strings.Contains(text, value) || problem.CodeOf(got) != problem.CodeOf(given) {
			t.Errorf("%v became %s", given, text)
		}
	}
	plain := fmt.Errorf("act: %w", problem.New(problem.StaleRef, "take a new snapshot", "e1 is not there"))
	if scrubbedError(values, plain) != plain || scrubbedError(nil, quoting) != error(quoting) {
		t.Error("an error without a value, or without values to look for, was changed")
	}
}

// Attached clients are told why their session ends, also before the end is complete.
func TestAClientIsToldWhatEndedItsSession(t *testing.T) {
	for name, test := range map[string]struct {
		end  func(t *testing.T, w *fixture, svc *Service, out Session)
		code string
		says string
	}{
		"its time is up": {func(_ *testing.T, w *fixture, svc *Service, _ Session) { time.Sleep(2 * time.Minute) }, problem.SessionClosed, "its time of 2m0s was up"},
		"closed": {func(t *testing.T, _ *fixture, svc *Service, out Session) {
			if _, err := svc.Close(t.Context(), admin, out.ID); err != nil {
				t.Error(err)
			}
		}, problem.SessionClosed, "closed by admin"},
		"its browser died": {func(_ *testing.T, w *fixture, _ *Service, out Session) {
			w.die(out.Jail, jail.Exit{Code: 1, Cause: jail.CauseExited})
		}, problem.BrowserExited, "ended by itself"},
		"memory": {func(_ *testing.T, w *fixture, _ *Service, out Session) {
			w.die(out.Jail, jail.Exit{Cause: jail.CauseMemory})
		}, problem.LimitMemory, "out of memory"},
		"cookies lost": {func(t *testing.T, w *fixture, _ *Service, out Session) {
			j := w.all()[jail.Name(out.Jail)]
			j.browser.lost.Store(true)
			if w.knownAs(j.addr).Vet(t.Context()) == nil {
				t.Error("it is let through")
			}
		}, problem.CookiesLost, "the cookies with it"},
		"clawjail is stopped": {func(_ *testing.T, _ *fixture, svc *Service, _ Session) { go svc.Shutdown(context.Background()) }, problem.SessionClosed, "was stopped"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
				out := mustOpen(t, svc, OpenRequest{TTL: "2m", Idle: "1m"})
				client, err := svc.Attach(t.Context(), admin, out.ID)
				if err != nil {
					t.Fatal(err)
				}
				told := make(chan error, 1)
				go func() {
					<-client.Done()
					told <- client.Err()
				}()
				release := w.holding("forget") // the pipe is closed before
				go test.end(t, w, svc, out)
				<-client.Done()
				time.Sleep(time.Second)
				release()
				err = <-told
				wantCode(t, err, test.code)
				if !strings.Contains(err.Error(), test.says) {
					t.Errorf("it says %v", err)
				}
			})
		})
	}
}
