package cookiefile

import (
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/weblogin"
)

// parseJSON reads a storage state of Playwright, {"cookies": […], "origins": […]}, and what the protocol answers,
// {"cookies": […]} or the list alone.
func parseJSON(raw []byte) (*found, error) {
	list := jsontext.Value(raw)
	out := &found{format: CDP}
	if list.Kind() == '{' {
		var ok bool
		var err error
		if list, ok, err = out.open(raw); err != nil {
			return nil, err
		} else if !ok && len(out.origins) > 0 {
			list = jsontext.Value("[]")
		} else if !ok {
			return nil, bad(formats, "the JSON has no list of cookies")
		}
	}
	elements, err := cookies.Elements(list)
	if err != nil {
		return nil, bad("export the cookies again", "the list of cookies is not valid: %s", err)
	}
	native, insecure := 0, 0
	for i, element := range elements {
		place := fmt.Sprintf("cookie %d", i+1)
		c, form, err := parseCookie(element)
		if form == extension {
			return nil, bad("let the extension export cookies.txt (Netscape) instead",
				"%s has the form of a browser extension, which says other things than a browser does", place)
		}
		if err != nil {
			out.broken = append(out.broken, broken(place, "%s", err))
			continue
		}
		if form == protocol {
			native++
		} else if c.SameSite == cookies.SameSiteNone && !c.Secure {
			// Only browsers for which it is what they do without SameSite keep such a cookie.
			c.SameSite = ""
			insecure++
		}
		out.cookies = append(out.cookies, c)
	}
	if native == 0 && (len(elements) > 0 || len(out.origins) > 0) {
		out.format = Playwright
	}
	out.note(insecure, "cookies have SameSite=None without Secure, which is taken for no SameSite at all")
	return out, nil
}

// open finds the list in an object, and what pages have stored beside it.
func (f *found) open(raw jsontext.Value) (list jsontext.Value, ok bool, err error) {
	var storage error
	err = cookies.Members(raw, func(name string, value jsontext.Value) error {
		switch {
		case name == "cookies":
			list, ok = value, true
		case name == "origins" && value.Kind() == '[':
			f.format = Playwright
			var err error
			if f.origins, err = weblogin.DecodeOrigins(value); err != nil {
				storage = bad("export the storage state again, of the one site", "what pages have stored cannot be read: %s", err)
			}
		}
		return nil
	})
	if storage != nil {
		return nil, false, storage
	}
	if err != nil {
		return nil, false, bad("export the cookies again", "the JSON is not valid: %s", err)
	}
	return list, ok, nil
}

// form is whose fields an entry has. Zero is those that Playwright writes, which the protocol has as well.
type form int

const (
	// protocol has a field that only the protocol has.
	protocol form = iota + 1
	// extension has a field of extensions such as EditThisCookie, whose expiry has another name.
	extension
)

// parseCookie reads one entry. The protocol's object is read as it is; Playwright's partition, a string and a flag of
// its own beside it, becomes the protocol's.
func parseCookie(raw jsontext.Value) (c cookies.Cookie, of form, err error) {
	object := make([]byte, 1, len(raw)+256)
	object[0] = '{'
	defer func() { clear(object) }()
	var site string
	var ancestor *bool
	session := false
	err = cookies.Members(raw, func(name string, value jsontext.Value) error {
		switch name {
		case "size", "priority", "sourceScheme", "sourcePort":
			of = max(of, protocol)
		case "session":
			session, of = true, max(of, protocol)
		case "expirationDate", "hostOnly", "storeId":
			of = extension
		case "partitionKey":
			if value.Kind() == '"' {
				unquoted, err := jsontext.AppendUnquote(nil, value)
				if err != nil {
					return fmt.Errorf("field partitionKey is damaged")
				}
				site = string(unquoted)
				return nil
			}
		case "_crHasCrossSiteAncestor":
			flag := value.Kind() == 't'
			ancestor = &flag
			return nil
		}
		if len(object) > 1 {
			object = append(object, ',')
		}
		// The error says that something was replaced; decoding the whole will refuse it.
		object, _ = jsontext.AppendQuote(object, name)
		object = append(append(object, ':'), value...)
		return nil
	})
	if err != nil {
		return cookies.Cookie{}, of, err
	}
	object = append(object, '}')
	if err := c.UnmarshalJSON(object); err != nil {
		return cookies.Cookie{}, of, err
	}
	if !session {
		c.Session = !c.Persistent()
	}
	if site != "" {
		c.PartitionKey = &cookies.PartitionKey{TopLevelSite: site, HasCrossSiteAncestor: foreign(c, site)}
		if ancestor != nil {
			c.PartitionKey.HasCrossSiteAncestor = *ancestor
		}
	}
	return c, of, nil
}

// foreign says whether a cookie belongs to another site than the page that it was set in, so that the frames in
// between cannot all have been of the page's site.
func foreign(c cookies.Cookie, site string) bool {
	domain, err := cookies.RegistrableDomain(c.Host())
	return err != nil || site != "https://"+domain && site != "http://"+domain
}
