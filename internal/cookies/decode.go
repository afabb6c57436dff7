package cookies

import (
	"bytes"
	"fmt"
	"math"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/base/secret"
)

// Decode reads what [Encode] wrote, or a browser answered: a JSON array of cookies. It does not keep raw.
func Decode(raw []byte) ([]Cookie, error) {
	elements, err := Elements(raw)
	if err != nil {
		return nil, err
	}
	list := make([]Cookie, len(elements))
	for i, element := range elements {
		if err := list[i].UnmarshalJSON(element); err != nil {
			Wipe(list)
			return nil, fmt.Errorf("cookie %d: %w", i+1, err)
		}
	}
	return list, nil
}

// Elements splits a JSON array without reading what is in it. The elements are parts of raw.
func Elements(raw []byte) ([]jsontext.Value, error) {
	if len(raw) > MaxBytes {
		return nil, fmt.Errorf("the list has more than %d MiB", MaxBytes>>20)
	}
	d := jsontext.NewDecoder(bytes.NewBuffer(raw))
	if token, err := d.ReadToken(); err != nil || token.Kind() != '[' {
		return nil, fmt.Errorf("a list was expected: %w", errForm)
	}
	var out []jsontext.Value
	for d.PeekKind() != ']' {
		if len(out) == MaxCookies {
			return nil, fmt.Errorf("the list has more than %d cookies", MaxCookies)
		}
		start := d.InputOffset()
		value, err := d.ReadValue()
		if err != nil {
			// The decoder's error may quote the input.
			return nil, fmt.Errorf("the JSON is damaged near byte %d: %w", start, errForm)
		}
		end := int(d.InputOffset())
		out = append(out, raw[end-len(value):end:end])
	}
	if _, err := d.ReadToken(); err != nil || len(bytes.TrimSpace(raw[d.InputOffset():])) > 0 {
		return nil, fmt.Errorf("something follows the list: %w", errForm)
	}
	return out, nil
}

// Members calls f for every member of a JSON object, in order. A name that stands twice is an error.
func Members(raw jsontext.Value, f func(name string, value jsontext.Value) error) error {
	d := jsontext.NewDecoder(bytes.NewBuffer(raw))
	if token, err := d.ReadToken(); err != nil || token.Kind() != '{' {
		return fmt.Errorf("an object was expected: %w", errForm)
	}
	for d.PeekKind() != '}' {
		token, err := d.ReadToken()
		if err != nil {
			return fmt.Errorf("the JSON of the object is damaged, or has a name twice: %w", errForm)
		}
		name := token.String()
		value, err := d.ReadValue()
		if err != nil {
			return fmt.Errorf("the JSON after %s is damaged: %w", Printable(name), errForm)
		}
		if err := f(name, value); err != nil {
			return err
		}
	}
	if _, err := d.ReadToken(); err != nil || len(bytes.TrimSpace(raw[d.InputOffset():])) > 0 {
		return fmt.Errorf("something follows the object: %w", errForm)
	}
	return nil
}

// UnmarshalJSON reads one cookie with its value, as a browser returns it.
func (c *Cookie) UnmarshalJSON(raw []byte) error {
	var out Cookie
	seen := map[string]bool{}
	err := Members(raw, func(name string, value jsontext.Value) error {
		seen[name] = true
		return out.set(name, value)
	})
	if err != nil {
		Wipe([]Cookie{out})
		return err
	}
	for _, name := range []string{"name", "value", "domain", "path", "expires"} {
		if !seen[name] {
			Wipe([]Cookie{out})
			return fmt.Errorf("there is no field %s: %w", name, errForm)
		}
	}
	*c = out
	return nil
}

// set reads one field.
func (c *Cookie) set(name string, raw jsontext.Value) error {
	switch name {
	case "name":
		return text(&c.Name, name, raw)
	case "value":
		if raw.Kind() != '"' {
			return formError(name, "a string")
		}
		value, err := jsontext.AppendUnquote(make([]byte, 0, len(raw)), raw)
		if err != nil {
			return formError(name, "a valid string")
		}
		c.Value = secret.Own(value)
		return nil
	case "domain":
		return text(&c.Domain, name, raw)
	case "path":
		return text(&c.Path, name, raw)
	case "expires":
		return c.setExpires(raw)
	case "size":
		return integer(&c.Size, name, raw)
	case "httpOnly":
		return flag(&c.HTTPOnly, name, raw)
	case "secure":
		return flag(&c.Secure, name, raw)
	case "session":
		return flag(&c.Session, name, raw)
	case "sameSite":
		return text(&c.SameSite, name, raw)
	case "priority":
		return text(&c.Priority, name, raw)
	case "sourceScheme":
		return text(&c.SourceScheme, name, raw)
	case "sourcePort":
		return integer(&c.SourcePort, name, raw)
	case "partitionKey":
		return c.setPartitionKey(raw)
	case "partitionKeyOpaque":
		return flag(&c.PartitionKeyOpaque, name, raw)
	}
	c.setExtra(name, raw)
	return nil
}

func (c *Cookie) setExpires(raw jsontext.Value) error {
	switch raw.Kind() {
	case 'n':
		// The protocol writes null for an infinite expiry.
		c.Expires = math.Inf(1)
		return nil
	case '0':
		f, err := strconv.ParseFloat(string(raw), 64)
		if err == nil {
			c.Expires = f
			return nil
		}
	}
	return formError("expires", "a number of seconds")
}

// setPartitionKey reads the object. Browsers older than the object have sent a string; Chromium does not take it back.
func (c *Cookie) setPartitionKey(raw jsontext.Value) error {
	var key PartitionKey
	seen := 0
	err := Members(raw, func(name string, value jsontext.Value) error {
		switch name {
		case "topLevelSite":
			seen++
			return text(&key.TopLevelSite, name, value)
		case "hasCrossSiteAncestor":
			seen++
			return flag(&key.HasCrossSiteAncestor, name, value)
		}
		return formError("partitionKey", "of topLevelSite and hasCrossSiteAncestor alone")
	})
	if err != nil || seen != 2 {
		return formError("partitionKey", "an object of topLevelSite and hasCrossSiteAncestor")
	}
	c.PartitionKey = &key
	return nil
}

func text(into *string, name string, raw jsontext.Value) error {
	if raw.Kind() != '"' {
		return formError(name, "a string")
	}
	value, err := jsontext.AppendUnquote(nil, raw)
	if err != nil {
		return formError(name, "a valid string")
	}
	*into = string(value)
	return nil
}

func flag(into *bool, name string, raw jsontext.Value) error {
	switch raw.Kind() {
	case 't', 'f':
		*into = raw.Kind() == 't'
		return nil
	}
	return formError(name, "true or false")
}

func integer(into *int64, name string, raw jsontext.Value) error {
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		return formError(name, "a whole number")
	}
	*into = n
	return nil
}
