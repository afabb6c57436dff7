package website

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"strings"
	"testing"
)

// visitorOf is a client with a jar that finds the site.
func visitorOf(t *testing.T, s *Site) *http.Client {
	t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(s.CA) {
		t.Fatal("the authority is not a certificate")
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool},
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			_, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			var d net.Dialer
			return d.DialContext(ctx, network, net.JoinHostPort("127.0.0.1", port))
		}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Jar: jar}
}

func get(t *testing.T, c *http.Client, address string) string {
	t.Helper()
	r, err := c.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestOnlyAWholeLoginIsOne(t *testing.T) {
	s, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c := visitorOf(t, s)
	if text := get(t, c, s.URL("/account")); !strings.Contains(text, "<title>"+TitleLogin) {
		t.Errorf("a stranger sees %q", text)
	}
	if text := get(t, c, s.URL("/welcome?user=alice")); !strings.Contains(text, "<title>"+TitleOf("alice")) {
		t.Errorf("after the login: %q", text)
	}
	if n := len(s.Values()); n != Cookies() {
		t.Errorf("%d values were given out, not %d", n, Cookies())
	}
	for _, missing := range loginCookies() {
		request, err := http.NewRequest(http.MethodGet, s.URL("/account"), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range s.visitors {
			for name, value := range v.cookies {
				if name != missing.Name {
					request.AddCookie(&http.Cookie{Name: name, Value: value})
				}
			}
		}
		if user := s.user(request); user != "" {
			t.Errorf("without %s the visitor is %s", missing.Name, user)
		}
	}
	s.LogOut()
	if text := get(t, c, s.URL("/account")); !strings.Contains(text, "<title>"+TitleLogin) {
		t.Errorf("after everybody was logged out: %q", text)
	}
}
