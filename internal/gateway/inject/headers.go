package inject

import (
	"net/http"
	"net/textproto"
	"slices"
	"strings"
)

// spelling is what header names have in common that a server may take for the same: case means nothing, and programs
// behind CGI, WSGI and Rack cannot tell an underscore from a hyphen.
func spelling(name string) string { return strings.ReplaceAll(strings.ToLower(name), "_", "-") }

// drop removes a header in every spelling.
func drop(h http.Header, name string) {
	want := spelling(name)
	for key := range h {
		if spelling(key) == want {
			delete(h, key)
		}
	}
}

// DropCredentials removes every header in which clients send credentials: what a tool in a jail has of those is a
// placeholder, or the token of the jail itself. Cookies are credentials.
func DropCredentials(h http.Header) {
	for key := range h {
		if slices.Contains(credentialHeaders(), spelling(key)) {
			delete(h, key)
		}
	}
}

func credentialHeaders() []string {
	return []string{
		"authorization", "proxy-authorization", "cookie", "cookie2", "x-api-key", "api-key", "apikey", "x-apikey", "x-auth-token", "x-access-token",
		"x-goog-api-key", "private-token", "job-token", "x-gitlab-token", "x-amz-security-token", "x-authorization", "x-admin-key",
		"x-admin-api-key", "x-vault-token",
	}
}

// Hop removes the headers that are about one connection (RFC 9110 §7.6.1), with those that Connection names, and those
// by which proxies speak of each other: an upstream hears nothing of the jail's network.
func Hop(h http.Header) {
	for key, values := range h {
		if spelling(key) != "connection" {
			continue
		}
		for _, value := range values {
			for name := range strings.SplitSeq(value, ",") {
				if name = textproto.TrimString(name); name != "" {
					drop(h, name)
				}
			}
		}
	}
	for key := range h {
		plain := spelling(key)
		if slices.Contains(hopHeaders(), plain) || strings.HasPrefix(plain, "proxy-") || strings.HasPrefix(plain, "x-forwarded-") ||
			strings.HasPrefix(plain, "clawjail-") {
			delete(h, key)
		}
	}
}

func hopHeaders() []string {
	return []string{
		"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "http2-settings", "host", "content-length", "expect",
		"via", "forwarded", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "true-client-ip", "x-original-url", "x-rewrite-url",
		"x-http-method-override", "x-http-method", "x-method-override",
	}
}
