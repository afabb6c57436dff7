//go:build linux

package browsers

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/cdp/cdptest"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// bareChromium starts a Chromium without a jail that has alice's cookie, and returns an endpoint without a guard.
func bareChromium(t *testing.T, l *testkit.Lab) string {
	t.Helper()
	home := cdptest.Dir(t)
	// The proxy is one that nothing of the lab goes through: it is on loopback.
	o := browser.Options{Build: browser.Shell, Binary: testenv.Chromium(t), Proxy: "http://127.0.0.1:9", ProfileDir: home + "/profile", Home: home}
	line, err := browser.Command(o)
	if err != nil {
		t.Fatal(err)
	}
	for i, arg := range line {
		if strings.HasPrefix(arg, "--proxy-") {
			line[i] = "--no-proxy-server"
		}
	}
	env, err := browser.Environment(o)
	if err != nil {
		t.Fatal(err)
	}
	process := cdptest.Start(t, line, env)
	conn, err := cdp.New(process.Replies, process.Commands, cdp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	mux := cdp.NewMux(conn)
	t.Cleanup(func() {
		if err := errors.Join(mux.Close(), conn.Close()); err != nil {
			t.Log(err) // the browser may have been broken on purpose
		}
	})
	err = conn.Call(t.Context(), "", "Storage.setCookies", map[string]any{"cookies": []map[string]any{
		{"name": "lab_session", "value": l.Secret, "domain": "127.0.0.1", "path": "/", "httpOnly": true}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		socket, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			return
		}
		defer socket.CloseNow() // nobody needs to know how closing went
		socket.SetReadLimit(64 << 20)
		client, err := mux.Attach(r.Context(), cdp.ClientOptions{})
		if err != nil {
			return
		}
		defer client.Close() // likewise
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		go func() { // ends with the client
			defer cancel()
			for {
				frame, err := client.Receive(ctx)
				if err != nil || socket.Write(ctx, websocket.MessageText, frame) != nil {
					return
				}
			}
		}()
		for {
			_, frame, err := socket.Read(ctx)
			if err != nil || client.Send(ctx, frame) != nil {
				return
			}
		}
	}))
	t.Cleanup(server.Close)
	return "ws" + strings.TrimPrefix(server.URL, "http") + "/"
}
