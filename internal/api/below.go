package api

import (
	"net/http"
	"strings"
)

// Below serves what is at the root below a path as well, for proxies that serve it there. A proxy may take the path away or
// leave it. Redirects to this server lead below the path. Without a path it changes nothing.
func Below(path string, next http.Handler) http.Handler {
	if path == "" {
		return next
	}
	stripped := http.StripPrefix(path, next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w = &belowAnswer{ResponseWriter: w, path: path}
		switch {
		case r.URL.Path == path:
			http.Redirect(w, r, "/", http.StatusPermanentRedirect)
		case strings.HasPrefix(r.URL.Path, path+"/"):
			stripped.ServeHTTP(w, r)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// belowAnswer puts the path before the addresses of this server that the header of an answer leads to.
type belowAnswer struct {
	http.ResponseWriter
	path string
}

// Unwrap is for http.ResponseController.
func (w *belowAnswer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *belowAnswer) WriteHeader(status int) {
	for _, name := range []string{"Location", "HX-Redirect"} {
		if to := w.Header().Get(name); strings.HasPrefix(to, "/") && !strings.HasPrefix(to, "//") {
			w.Header().Set(name, w.path+to)
		}
	}
	w.ResponseWriter.WriteHeader(status)
}
