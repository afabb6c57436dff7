package cli

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// Another user who listened on the port first was sent the token with the first command.
func TestTheTokenOfTheHostBrowserIsNotSentToAnotherUser(t *testing.T) {
	testenv.Need(t, testenv.Root)
	token := filepath.Join(t.TempDir(), "browser.token")
	if err := os.WriteFile(token, []byte("cjbr_"+strings.Repeat("0", 64)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"127.0.0.1:0", "0.0.0.0:0", "[::]:0", "[::ffff:127.0.0.1]:0"} {
		for _, uid := range []int{os.Geteuid(), 65534} {
			var l net.ListenConfig
			l.SetMultipathTCP(false) // the kernel lists one by its subflow, whose owner does not change
			listener, err := l.Listen(t.Context(), "tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			// Whose socket it is, the kernel lists by the owner of its file.
			f, err := listener.(*net.TCPListener).File()
			if err != nil {
				t.Fatal(err)
			}
			if err := f.Chown(uid, uid); err != nil {
				t.Fatal(err)
			}
			f.Close()
			keys := make(chan string, 1)
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { keys <- r.Header.Get("Authorization") }))
			server.Listener.Close()
			server.Listener = listener
			server.Start()
			_, port, _ := net.SplitHostPort(listener.Addr().String())
			b := &hostBrowser{control: &url.URL{Scheme: "http", Host: "127.0.0.1:" + port}, local: true, tokenPath: token}
			_, err = b.health(t.Context())
			server.Close()
			if got := len(keys); got != map[bool]int{true: 1, false: 0}[uid == os.Geteuid()] {
				t.Errorf("%s, of the user %d: %d requests with the token", address, uid, got)
			}
			if problem.CodeOf(err) != problem.Conflict || (uid != os.Geteuid()) != strings.Contains(err.Error(), "the token was not sent") {
				t.Errorf("%s, of the user %d: %v", address, uid, err)
			}
		}
	}
}

func TestTheEndOfALogIsShown(t *testing.T) {
	b := &hostBrowser{dir: t.TempDir()}
	earlier := "of an earlier server\n"
	if err := os.WriteFile(b.logPath(), []byte(earlier+strings.Repeat("noise\n", 2000)+"the reason\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := b.startOutput(int64(len(earlier))); !strings.HasSuffix(got, "noise\nthe reason") || len(got) > 4<<10 {
		t.Errorf("of a long log: %d bytes, %q", len(got), got[max(0, len(got)-40):])
	}
	if err := os.WriteFile(b.logPath(), []byte(earlier+"the reason\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := b.startOutput(int64(len(earlier))); got != "the reason" {
		t.Errorf("of a short one: %q", got)
	}
}
