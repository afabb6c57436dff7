package firefox

import (
	"errors"
	"net/url"
	"strconv"
	"strings"
)

// jar is a part of a profile's cookies.
type jar int

const (
	defaultJar jar = iota
	containerJar
	otherJar
)

// jarOf reads origin attributes, "^userContextId=2&partitionKey=%28https%2Cexample.com%29": the jar of a cookie and its
// partition key. Unknown attributes count as another jar: such a cookie is not in the default one.
func jarOf(attributes string) (in jar, partition string) {
	rest, ok := strings.CutPrefix(attributes, "^")
	if !ok {
		if attributes != "" {
			return otherJar, ""
		}
		return defaultJar, ""
	}
	for pair := range strings.SplitSeq(rest, "&") {
		key, value, _ := strings.Cut(pair, "=")
		switch key {
		case "userContextId":
			if in == defaultJar && value != "0" {
				in = containerJar
			}
		case "partitionKey":
			unescaped, err := url.QueryUnescape(value)
			if err != nil || unescaped == "" {
				in = otherJar
			}
			partition = unescaped
		default:
			in = otherJar
		}
	}
	return in, partition
}

var errPartition = errors.New("not a partition key")

// ParsePartition reads a partition key: "(https,example.com)", "(https,example.com,8443)", and either with ",f" at the
// end when a frame of another site stands between the page and the cookie's. The site has no port, as in Chromium.
func ParsePartition(key string) (site string, crossSiteAncestor bool, err error) {
	inner, ok := strings.CutPrefix(key, "(")
	if ok {
		inner, ok = strings.CutSuffix(inner, ")")
	}
	parts := strings.Split(inner, ",")
	if ok && len(parts) > 2 && parts[len(parts)-1] == "f" {
		crossSiteAncestor, parts = true, parts[:len(parts)-1]
	}
	if ok && len(parts) == 3 {
		if _, err := strconv.ParseUint(parts[2], 10, 16); err != nil {
			ok = false
		}
		parts = parts[:2]
	}
	if !ok || len(parts) != 2 || parts[0] != "https" && parts[0] != "http" || parts[1] == "" {
		return "", false, errPartition
	}
	return parts[0] + "://" + parts[1], crossSiteAncestor, nil
}
