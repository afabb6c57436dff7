package cookies

import "strings"

// DeviceBound says that a cookie is known to be bound to a key in the machine that it comes from (Device Bound Session
// Credentials): somewhere else it works for minutes, until it has to be renewed. It goes by the names that are known
// to be in use; a session that was made on this host is not bound.
func DeviceBound(c Cookie) bool {
	switch c.Name {
	case "__Secure-1PSIDTS", "__Secure-3PSIDTS", "SIDTS":
	default:
		return false
	}
	domain, err := domainOf(c)
	if err != nil {
		return false
	}
	label, _, _ := strings.Cut(domain, ".")
	return label == "google" || label == "youtube"
}
