package api

import (
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/grant"
)

// Jar is a list of cookies as JSON, in the shape that the DevTools Protocol gives them, values included. It prints as
// [redacted].
type Jar struct{ secret.Value }

// Origins is what pages have stored, as JSON in the shape of a storage state, values included. It prints as [redacted].
type Origins struct{ secret.Value }

// IsZero says that there is none, so that it is left out.
func (o Origins) IsZero() bool { return o.Len() == 0 }

// Encode writes a request as it goes to the control plane: what prints as [redacted] everywhere else is in it.
func Encode(request any) ([]byte, error) {
	out, err := json.Marshal(request, json.WithMarshalers(json.JoinMarshalers(
		json.MarshalToFunc(func(e *jsontext.Encoder, token grant.Token) error {
			return e.WriteToken(jsontext.String(token.Reveal()))
		}),
		json.MarshalToFunc(func(e *jsontext.Encoder, value secret.Value) error {
			return value.Use(func(b []byte) error {
				text, err := jsontext.AppendQuote(nil, b)
				if err != nil {
					return errNotText
				}
				return e.WriteValue(text)
			})
		}),
		json.MarshalToFunc(func(e *jsontext.Encoder, jar Jar) error {
			return jar.Use(func(b []byte) error { return e.WriteValue(b) })
		}),
		json.MarshalToFunc(func(e *jsontext.Encoder, origins Origins) error {
			return origins.Use(func(b []byte) error { return e.WriteValue(b) })
		}),
	)))
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}
	return out, nil
}

// Reasons why a secret in a body is not read. The decoder says where it stands, and never what it is.
var (
	errNotText  = errors.New("it is not a text in UTF-8")
	errRedacted = errors.New("it was redacted where it was written")
)

// secrets reads what Encode writes.
func secrets() *json.Unmarshalers {
	return json.JoinUnmarshalers(
		json.UnmarshalFromFunc(func(d *jsontext.Decoder, token *grant.Token) error {
			text, err := quoted(d)
			*token = grant.ParseToken(string(text))
			return err
		}),
		json.UnmarshalFromFunc(func(d *jsontext.Decoder, value *secret.Value) error {
			text, err := quoted(d)
			*value = secret.Own(text)
			return err
		}),
		json.UnmarshalFromFunc(func(d *jsontext.Decoder, jar *Jar) error {
			raw, err := rawList(d)
			*jar = Jar{raw}
			return err
		}),
		json.UnmarshalFromFunc(func(d *jsontext.Decoder, origins *Origins) error {
			raw, err := rawList(d)
			*origins = Origins{raw}
			return err
		}),
	)
}

func rawList(d *jsontext.Decoder) (secret.Value, error) {
	raw, err := d.ReadValue()
	if err == nil && raw.Kind() != '[' {
		err = errors.New("it is not a list")
	}
	return secret.New(raw), err
}

func quoted(d *jsontext.Decoder) ([]byte, error) {
	raw, err := d.ReadValue()
	if err != nil {
		return nil, err
	}
	if raw.Kind() != '"' {
		return nil, errNotText
	}
	text, err := jsontext.AppendUnquote(make([]byte, 0, len(raw)), raw)
	switch {
	case err != nil:
		return nil, errNotText
	case string(text) == secret.Redacted:
		return nil, errRedacted
	}
	return text, nil
}

// list is never null in JSON.
func list[T any](all []T) []T { return append([]T{}, all...) }
