//go:build unix

package browser

import (
	"strings"
	"testing"
	"time"
)

// quiet is how long a browser is watched: what Chromium does by itself it begins within three seconds.
const quiet = 6 * time.Second

func TestABrowserThatIsLeftAloneAsksForNothing(t *testing.T) {
	eachBuild(t, func(t *testing.T, build Build) {
		g := newGateway(t, tinySite(nil))
		b := openOwn(t, build, g.URL)
		// Not a wait for something to be done: this is the time in which nothing may happen.
		select {
		case <-time.After(quiet):
		case <-b.Done():
			t.Fatal("the browser is gone")
		}
		if seen := g.requests(); len(seen) != 0 {
			t.Errorf("requests of its own:\n%s", strings.Join(seen, "\n"))
		}
		// The watch was not blind: what the page asks for is seen.
		if _, err := b.Navigate(within(t, 20*time.Second), site+"/"); err != nil {
			t.Fatal(err)
		}
		if seen := g.requests(); len(seen) == 0 || seen[0] != "GET "+site+"/" {
			t.Errorf("the page's request is not among %q", seen)
		}
		if others := foreign(g.requests(), "site.test"); len(others) != 0 {
			t.Errorf("requests beside the page's:\n%s", strings.Join(others, "\n"))
		}
	})
}

// Loopback and link-local addresses go to the proxy like all others. Without --proxy-bypass-list=<-loopback> they
// would not.
func TestNoAddressGoesPastTheProxy(t *testing.T) {
	eachBuild(t, func(t *testing.T, build Build) {
		g := newGateway(t, tinySite(nil))
		b := openOwn(t, build, g.URL)
		direct := newGateway(t, tinySite(nil))
		for _, address := range []string{direct.URL + "/", "http://localhost:1/", "http://169.254.169.254/latest/", "http://[::1]:8/", "http://10.0.0.1/"} {
			// Port 1 and its like are refused by the browser itself; everything else gets the gateway's 403.
			_, err := b.Navigate(within(t, 20*time.Second), address)
			unsafe := err != nil && strings.Contains(err.Error(), "ERR_UNSAFE_PORT")
			if err != nil && !unsafe {
				t.Errorf("%s: %v", address, err)
			}
			seen := strings.Join(g.requests(), "\n")
			if !unsafe && !strings.Contains(seen, "GET "+address) {
				t.Errorf("%s is not among the proxy's requests:\n%s", address, seen)
			}
		}
		if seen := direct.requests(); len(seen) != 0 {
			t.Errorf("went past the proxy: %q", seen)
		}
	})
}
