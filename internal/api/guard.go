package api

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// guard keeps web pages away. A page can make a browser on this machine send requests here, with a Host of its own
// choosing when it controls a name (DNS rebinding), but it cannot choose the headers that the browser adds.
func (a *API) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Cross-Origin-Resource-Policy", "same-origin")
		switch {
		case !a.ownHost(r):
			a.refuse(w, r, notThisHost(r))
		case !sameOrigin(r):
			a.refuse(w, r, problem.New(problem.Forbidden, "call the API from a program, not from a web page", "requests of other web pages are refused"))
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// throughProxies notes who has connected where that is not the client: a proxy, or a program of this host, which has all
// loopback addresses to choose from. Wrong keys count for them too.
func (a *API) throughProxies(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if from := remote(r); from.IsLoopback() || identity.ClientAddr(r, a.BehindProxy) != from.WithZone("") {
			r = r.WithContext(identity.Through(r.Context(), from))
		}
		next.ServeHTTP(w, r)
	})
}

// ownHost reports whether the Host header names this server. It asks that of requests that proxies hand on, too: a client
// at a proxy's address, such as a loopback one, may be another program, or a browser that a web page sends here.
func (a *API) ownHost(r *http.Request) bool {
	if identity.IsForwarded(r.Context()) {
		return true // the control plane that it came to has looked which host the client meant
	}
	host, port := r.Host, ""
	if h, p, err := net.SplitHostPort(r.Host); err == nil {
		host, port = h, p
	} else {
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	if port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return false
		}
	}
	if a.PublicName != "" && strings.EqualFold(host, a.PublicName) {
		return true
	}
	addr, err := netip.ParseAddr(host)
	if err == nil {
		// An address cannot be rebound: only one that the connection really came to is reached by it.
		return addr.IsLoopback() || addr == a.Listen.Addr() || addr.Unmap() == local(r)
	}
	return strings.EqualFold(host, "localhost") || a.OwnName != nil && a.OwnName(host)
}

// sameOrigin reports whether the request comes from a program or from a page of this server.
func sameOrigin(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); !slices.Contains([]string{"", "none", "same-origin"}, site) {
		return false
	}
	origins := r.Header.Values("Origin")
	if len(origins) == 0 {
		return true
	}
	u, err := url.Parse(origins[0])
	return len(origins) == 1 && err == nil && (u.Scheme == "http" || u.Scheme == "https") && strings.EqualFold(u.Host, r.Host)
}

func (a *API) trusted(addr netip.Addr) bool {
	return slices.ContainsFunc(a.BehindProxy, func(p netip.Prefix) bool { return p.Contains(addr) })
}

func remote(r *http.Request) netip.Addr {
	p, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{} // not of a TCP connection
	}
	return p.Addr().Unmap()
}

func local(r *http.Request) netip.Addr {
	a, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return a.AddrPort().Addr().Unmap()
}
