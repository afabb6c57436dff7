package agent

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

func TestListShowsEveryAgentWithWhatIsKnownOfIt(t *testing.T) {
	l := newLand(t)
	_, err := l.sync("clawbots:\n  - name: bot\n    webhook: true\n")
	l.must(err)
	_, _, err = l.who.CreateAgent(l.ctx, l.admin, "default", "an-identity", time.Hour)
	l.must(err)
	all, err := l.List(l.ctx, l.admin, "")
	l.must(err)
	if len(all) != 2 || all[0].Name != "an-identity" || all[0].Declared != nil || all[0].Jail != nil || all[1].Jail == nil || !all[1].Declared.Webhook || all[1].ID == "" {
		t.Errorf("they are %+v", all)
	}
	acme := l.operator("acme", identity.RoleOperator)
	if all, err := l.List(l.ctx, acme, ""); err != nil || len(all) > 0 {
		t.Errorf("acme has %+v: %v", all, err)
	}
	// Without a host daemon agents are listed, and those are told from the others that somebody should watch.
	l.keeper.away = problem.New(problem.HostdUnreachable, "start it", "the host daemon does not answer")
	all, err = l.List(l.ctx, l.admin, "")
	l.wantCode("a host daemon that does not answer", err, problem.HostdUnreachable)
	if len(all) != 2 || all[0].Unwatched || !all[1].Unwatched || all[1].Jail != nil || all[1].Declared == nil {
		t.Errorf("without the host daemon they are %+v", all)
	}
	_, err = l.Get(l.ctx, l.admin, "", "bot")
	l.wantCode("one of them", err, problem.HostdUnreachable)
	l.keeper.away = nil
	_, err = l.Get(l.ctx, acme, "default", "bot")
	l.wantCode("another tenant's agent", err, problem.NotFound)
	_, err = l.Get(l.ctx, l.admin, "", "nope")
	l.wantCode("no agent", err, problem.NotFound)
}

func TestWhoMayNotIsToldSo(t *testing.T) {
	l := newLand(t)
	_, err := l.sync("clawbots:\n  - name: bot\n    webhook: true\n")
	l.must(err)
	viewer, stranger := l.operator("default", identity.RoleViewer), l.operator("acme", identity.RoleAdmin)
	a, err := l.db.Agent(l.ctx, "default", "bot")
	l.must(err)
	itself := identity.Principal{Kind: identity.KindAgent, ID: a.ID, Name: a.Name, Tenant: a.Tenant}
	l.keeper.done()
	for what, do := range map[string]func(by identity.Principal) error{
		"remove":  func(by identity.Principal) error { return l.RemoveAgent(l.ctx, by, "default", "bot", RemoveOptions{}) },
		"restart": func(by identity.Principal) error { return l.RestartAgent(l.ctx, by, "default", "bot") },
		"rotate":  func(by identity.Principal) error { return l.RotateToken(l.ctx, by, "default", "bot", 0) },
		"log": func(by identity.Principal) error {
			_, err := l.ReadLog(l.ctx, by, jail.LogRequest{Tenant: "default", Name: "bot"})
			return err
		},
		"type": func(by identity.Principal) error { _, err := l.Type(l.ctx, by, "default", "bot", "", nil); return err },
		"webhook": func(by identity.Principal) error {
			_, err := l.Webhook(l.ctx, by, "default", "bot", WebhookCall{})
			return err
		},
	} {
		l.wantCode(what+" by a viewer", do(viewer), problem.Forbidden)
		l.wantCode(what+" by a stranger", do(stranger), problem.NotFound)
		l.wantCode(what+" by the agent", do(itself), problem.Forbidden)
	}
	if done := l.keeper.done(); len(done) > 0 {
		t.Errorf("and yet: %v", done)
	}
}

func TestRotateTokenGivesTheJailANewOneWithoutARestart(t *testing.T) {
	l := newLand(t)
	_, err := l.sync("clawbots:\n  - name: bot\n    ttl: 1h\n")
	l.must(err)
	old, before := l.keeper.token("bot"), l.addr("bot")
	l.must(l.RotateToken(l.ctx, l.admin, "", "bot", time.Minute))
	fresh := l.keeper.token("bot")
	if by, err := l.bearer(fresh); err != nil || fresh == old || by.ExpiresAt.After(l.clock().Add(time.Hour)) {
		t.Errorf("the new token is good until %s: %v", by.ExpiresAt, err)
	}
	if _, err := l.bearer(old); err != nil {
		t.Errorf("the old one is not good any more at once: %v", err)
	}
	l.forward(2 * time.Minute)
	if _, err := l.bearer(old); err == nil {
		t.Error("the old one is good for ever")
	}
	if l.addr("bot") != before {
		t.Error("it was restarted")
	}
	l.wantCode("no jail", l.RotateToken(l.ctx, l.admin, "", "nope", 0), problem.NotFound)
}

// Whatever is cut while a token is replaced, by a rotation or by a sync, the one that the jail has is good when the overlap is over.
func TestACutRotationLeavesTheJailATokenThatIsGood(t *testing.T) {
	for what, replace := range map[string]func(l *land) error{
		"rotation": func(l *land) error { return l.RotateToken(l.ctx, l.admin, "", "bot", identity.DefaultOverlap) },
		"sync":     func(l *land) error { _, err := l.sync("clawbots:\n  - name: bot\n    ttl: 200h\n"); return err },
	} {
		t.Run(what, func(t *testing.T) {
			l := newLand(t)
			_, err := l.sync("clawbots:\n  - name: bot\n    ttl: 100h\n")
			l.must(err)
			for cut, done := 0, false; !done; cut++ {
				first := l.keeper.token("bot")
				l.kill(cut)
				err := replace(l)
				l.begin()
				l.forward(identity.DefaultOverlap + time.Second)
				inJail := l.keeper.token("bot")
				if _, err := l.bearer(inJail); err != nil {
					t.Fatalf("cut at step %d, the jail has a token that is not good: %v", cut, err)
				}
				if done = err == nil; done {
					if _, err := l.bearer(first); err == nil || inJail == first || cut < 6 {
						t.Errorf("after %d steps nothing was replaced", cut)
					}
				} else if !errors.Is(err, errKilled) {
					t.Fatalf("it was not cut: %v", err)
				}
			}
		})
	}
}

func TestLogAndTypeAreAboutTheAgentThatWasNamed(t *testing.T) {
	l := newLand(t)
	_, err := l.sync("clawbots:\n  - name: bot\n")
	l.must(err)
	c, err := l.ReadLog(l.ctx, l.admin, jail.LogRequest{Name: "bot"})
	if err != nil || string(c.Data) != "default/bot" {
		t.Errorf("%q, %v", c.Data, err)
	}
	if n, err := l.Type(l.ctx, l.admin, "", "bot", "", []byte("hi")); err != nil || n != 2 || l.keeper.typed != "default/bot: hi" {
		t.Errorf("typed %d, %q: %v", n, l.keeper.typed, err)
	}
	_, err = l.Type(l.ctx, l.admin, "", "bot", "", make([]byte, maxTypedAtOnce+1))
	l.wantCode("too much", err, problem.TooLarge)
}

// inJail answers what is sent to an agent's port as the program of a jail does, with whatever it likes.
func (l *land) inJail(answer func(r *http.Request, to io.Writer)) {
	var serving sync.WaitGroup
	l.t.Cleanup(serving.Wait)
	l.keeper.dial = func(_ context.Context, name jail.Name, port uint16) (*os.File, error) {
		if k, _ := l.keeper.status("bot"); name != k.Jail || port != 8000 {
			return nil, errors.New("another jail, or port")
		}
		pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
		if err != nil {
			return nil, err
		}
		jailed := os.NewFile(uintptr(pair[1]), "jail")
		serving.Go(func() {
			defer jailed.Close() // the other end sees it
			if r, err := http.ReadRequest(bufio.NewReader(jailed)); err == nil {
				answer(r, jailed)
			}
		})
		return os.NewFile(uintptr(pair[0]), "host"), nil
	}
}

func TestAWebhookReachesTheAgentThatTakesThem(t *testing.T) {
	l := newLand(t)
	_, err := l.sync("clawbots:\n  - name: bot\n    webhook: true\n  - name: deaf\n")
	l.must(err)
	var got string
	l.inJail(func(r *http.Request, to io.Writer) {
		body, _ := io.ReadAll(r.Body)
		got = r.Method + " " + r.URL.Path + " " + r.Header.Get("Content-Type") + " " + r.Header.Get("Authorization") + " " + string(body)
		_, _ = io.WriteString(to, "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok")
	})
	answer, err := l.Webhook(l.ctx, l.admin, "", "bot", WebhookCall{ContentType: "application/json", Body: []byte(`{"a":1}`)})
	if err != nil || answer.Status != http.StatusFound || answer.ContentType != "text/plain" || string(answer.Body) != "ok" {
		t.Errorf("the answer is %+v: %v", answer, err)
	}
	if want := `POST /webhook application/json  {"a":1}`; got != want {
		t.Errorf("the agent was sent %q, want %q", got, want)
	}
	_, err = l.Webhook(l.ctx, l.admin, "", "deaf", WebhookCall{})
	l.wantCode("an agent that takes none", err, problem.Conflict)
	_, err = l.Webhook(l.ctx, l.admin, "", "bot", WebhookCall{Body: make([]byte, maxWebhook+1)})
	l.wantCode("too much", err, problem.TooLarge)
	l.keeper.edit("bot", func(k *jail.KeptStatus) { k.Phase = jail.PhaseWaiting })
	_, err = l.Webhook(l.ctx, l.admin, "", "bot", WebhookCall{})
	l.wantCode("a jail that does not run", err, problem.Conflict)
}

func TestWhatAnAgentAnswersIsBounded(t *testing.T) {
	l := newLand(t)
	_, err := l.sync("clawbots:\n  - name: bot\n    webhook: true\n")
	l.must(err)
	const begin = "HTTP/1.1 200 OK\r\nConnection: close\r\n"
	for what, text := range map[string]string{
		"a long body":     begin + "\r\n" + strings.Repeat("x", maxWebhook+1),
		"a long header":   begin + "X: " + strings.Repeat("x", 1<<20) + "\r\n\r\n",
		"no HTTP":         "secret-of-the-jail\r\n\r\n",
		"nothing":         "",
		"a broken length": begin + "Content-Length: 10\r\n\r\nx",
	} {
		l.inJail(func(_ *http.Request, to io.Writer) { _, _ = io.WriteString(to, text) })
		_, err := l.Webhook(l.ctx, l.admin, "", "bot", WebhookCall{})
		l.wantCode(what, err, problem.UpstreamFailed)
		if err != nil && strings.Contains(err.Error(), "secret-of-the-jail") {
			t.Errorf("%s: the error repeats what the jail sent: %v", what, err)
		}
	}
	l.inJail(func(_ *http.Request, to io.Writer) {
		_, _ = io.WriteString(to, begin+"Content-Type: text/html; "+strings.Repeat("a", 300)+"=b\r\n\r\nx")
	})
	answer, err := l.Webhook(l.ctx, l.admin, "", "bot", WebhookCall{})
	if err != nil || answer.ContentType != "application/octet-stream" {
		t.Errorf("the type is %q: %v", answer.ContentType, err)
	}
}

func TestOptionsSayEverythingThatIsWrongAtOnce(t *testing.T) {
	_, err := New(Options{Default: "freebsd"})
	var many *problem.ValidationError
	if !errors.As(err, &many) || len(many.Flaws) < 13 {
		t.Errorf("%v", err)
	}
}
