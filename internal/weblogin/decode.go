package weblogin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/cookies"
)

var errForm = errors.New("it is not in the form of a storage state")

// Decode reads what [Encode] wrote. It does not keep raw. The caller wipes what it returns.
func Decode(raw []byte) (out Login, err error) {
	if len(raw) > MaxBytes {
		return Login{}, fmt.Errorf("it has more than %d MiB", MaxBytes>>20)
	}
	if jsontext.Value(raw).Kind() == '[' {
		out.Cookies, err = cookies.Decode(raw)
		return out, err
	}
	err = cookies.Members(raw, func(name string, value jsontext.Value) (err error) {
		switch name {
		case "cookies":
			out.Cookies, err = cookies.Decode(value)
		case "origins":
			out.Origins, err = DecodeOrigins(value)
		}
		return err
	})
	if err != nil {
		out.Wipe()
		return Login{}, err
	}
	return out, nil
}

// Peek reads the cookies of what [Encode] wrote, and what it says of its storage, without reading the storage.
func Peek(raw []byte) (list []cookies.Cookie, storage []OriginInfo, err error) {
	if jsontext.Value(raw).Kind() == '[' {
		list, err = cookies.Decode(raw)
		return list, nil, err
	}
	d := jsontext.NewDecoder(bytes.NewBuffer(raw))
	var parts [2]jsontext.Value
	if token, err := d.ReadToken(); err != nil || token.Kind() != '{' {
		return nil, nil, errForm
	}
	for n, name := range []string{"cookies", "storage"} {
		token, err := d.ReadToken()
		if err != nil || token.Kind() != '"' || token.String() != name {
			return nil, nil, errForm
		}
		value, err := d.ReadValue()
		if err != nil {
			return nil, nil, errForm
		}
		parts[n] = value
		if n == 0 {
			if list, err = cookies.Decode(value); err != nil {
				return nil, nil, err
			}
		}
	}
	if err := json.Unmarshal(parts[1], &storage); err != nil {
		cookies.Wipe(list)
		return nil, nil, errForm
	}
	return list, storage, nil
}

// maxRead is how many origins a file may have, which are of several accounts.
const maxRead = 1000

// DecodeOrigins reads the "origins" of a storage state. Members that it does not know are passed over. No error has a
// name or a value. The caller wipes what it returns.
func DecodeOrigins(raw []byte) (out []Origin, err error) {
	err = each(raw, maxRead, "origins", func(n int, value jsontext.Value) error {
		o, err := decodeOrigin(value)
		out = append(out, o)
		if err != nil {
			return fmt.Errorf("origin %d: %w", n+1, err)
		}
		return nil
	})
	if err != nil {
		WipeOrigins(out)
		return nil, err
	}
	return out, nil
}

// longestLeft bounds what a browser says that is not kept, in bytes.
const longestLeft = 300

// DecodeOrigin reads one origin as our own script in a page says it.
func DecodeOrigin(raw []byte) (out Origin, err error) {
	out, err = decodeOrigin(raw)
	if err == nil {
		err = cookies.Members(raw, func(name string, value jsontext.Value) error {
			if name != "left" {
				return nil
			}
			return each(value, MaxLeft, "parts that are left out", func(_ int, value jsontext.Value) error {
				text, err := unquote(value)
				out.Left = append(out.Left, strings.ToValidUTF8(string(text[:min(len(text), longestLeft)]), ""))
				return err
			})
		})
	}
	if err != nil {
		WipeOrigins([]Origin{out})
		return Origin{}, err
	}
	return out, nil
}

func decodeOrigin(raw jsontext.Value) (out Origin, err error) {
	err = cookies.Members(raw, func(name string, value jsontext.Value) error {
		switch name {
		case "origin":
			text, err := unquote(value)
			out.Origin = string(text)
			return err
		case "localStorage":
			return each(value, MaxItems, "entries", func(n int, value jsontext.Value) error {
				item, err := decodeItem(value)
				out.Local = append(out.Local, item)
				if err != nil {
					return fmt.Errorf("entry %d of localStorage: %w", n+1, err)
				}
				return nil
			})
		case "indexedDB":
			return each(value, MaxDatabases, "databases", func(n int, value jsontext.Value) error {
				d, err := decodeDatabase(value)
				out.Databases = append(out.Databases, d)
				if err != nil {
					return fmt.Errorf("database %d of IndexedDB: %w", n+1, err)
				}
				return nil
			})
		}
		return nil
	})
	if err == nil && out.Origin == "" {
		err = fmt.Errorf("there is no field origin: %w", errForm)
	}
	return out, err
}

func decodeItem(raw jsontext.Value) (out Item, err error) {
	seen := 0
	err = cookies.Members(raw, func(name string, value jsontext.Value) error {
		text, err := unquote(value)
		if err != nil {
			return err
		}
		switch name {
		case "name":
			out.Name, seen = string(text), seen|1
		case "value":
			out.Value, seen = secret.Own(text), seen|2
		}
		return nil
	})
	if err == nil && seen != 3 {
		err = fmt.Errorf("it has not both of name and value: %w", errForm)
	}
	return out, err
}

// decodeDatabase reads what a database is called and counts its records. Its values are for the browser to read.
func decodeDatabase(raw jsontext.Value) (out Database, err error) {
	seen := 0
	err = cookies.Members(raw, func(name string, value jsontext.Value) error {
		switch name {
		case "name":
			text, err := unquote(value)
			out.Name, seen = string(text), seen|1
			return err
		case "version":
			out.Version, err = strconv.ParseInt(string(value), 10, 64)
			if seen |= 2; err != nil {
				return fmt.Errorf("its version is not a whole number: %w", errForm)
			}
		case "stores":
			seen |= 4
			return each(value, MaxStores, "stores", func(_ int, store jsontext.Value) error { return out.count(store) })
		}
		return nil
	})
	if err == nil && seen != 7 {
		err = fmt.Errorf("it has not all of name, version and stores: %w", errForm)
	}
	out.JSON = secret.New(raw)
	return out, err
}

// count looks through one store.
func (d *Database) count(store jsontext.Value) error {
	seen := 0
	err := cookies.Members(store, func(name string, value jsontext.Value) error {
		switch name {
		case "name":
			_, err := unquote(value)
			seen |= 1
			return err
		case "indexes":
			seen |= 2
			return each(value, MaxStores, "indexes", func(int, jsontext.Value) error { return nil })
		case "records":
			seen |= 4
			return each(value, MaxRecords, "records", func(_ int, record jsontext.Value) error {
				if d.Records++; record.Kind() != '{' {
					return fmt.Errorf("a record is no object: %w", errForm)
				}
				return nil
			})
		}
		return nil
	})
	if err == nil && seen != 7 {
		err = fmt.Errorf("a store has not all of name, indexes and records: %w", errForm)
	}
	return err
}

func unquote(raw jsontext.Value) ([]byte, error) {
	if raw.Kind() != '"' {
		return nil, fmt.Errorf("a text was expected: %w", errForm)
	}
	text, err := jsontext.AppendUnquote(make([]byte, 0, len(raw)), raw)
	if err != nil {
		return nil, fmt.Errorf("a text is not valid: %w", errForm)
	}
	return text, nil
}

// each calls f for every element of a JSON list, in order.
func each(raw jsontext.Value, limit int, what string, f func(n int, value jsontext.Value) error) error {
	d := jsontext.NewDecoder(bytes.NewBuffer(raw))
	if token, err := d.ReadToken(); err != nil || token.Kind() != '[' {
		return fmt.Errorf("a list was expected: %w", errForm)
	}
	n := 0
	for ; d.PeekKind() != ']'; n++ {
		if n == limit {
			return fmt.Errorf("there are more than %d %s", limit, what)
		}
		value, err := d.ReadValue()
		if err != nil {
			// The decoder's error may quote the input.
			return fmt.Errorf("the JSON is damaged: %w", errForm)
		}
		if err := f(n, value); err != nil {
			return err
		}
	}
	if _, err := d.ReadToken(); err != nil || len(bytes.TrimSpace(raw[d.InputOffset():])) > 0 {
		return fmt.Errorf("something follows the list: %w", errForm)
	}
	return nil
}
