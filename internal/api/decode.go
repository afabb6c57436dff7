package api

import (
	"fmt"
	"io"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-json-experiment/json"

	"github.com/clawjail/clawjail/internal/base/strict"
	"github.com/clawjail/clawjail/internal/browser/control"
)

type jsonBody struct {
	RawBody []byte `contentType:"application/json"`
}

// decode reads a body as every body is read; see [strict.Object]. Secrets are read here, and printed nowhere.
func decode[T any](body []byte) (T, error) {
	var out, none T
	if err := strict.Object(body, &out, control.Fields, json.WithUnmarshalers(secrets())); err != nil {
		return none, err
	}
	return out, nil
}

// jsonFormat is how answers are written, and how the bodies of described operations are read. Those of other requests huma
// does not read.
func jsonFormat() huma.Format {
	return huma.Format{
		Marshal: huma.DefaultJSONFormat.Marshal,
		Unmarshal: func(data []byte, into any) error {
			if body, ok := into.(interface{ Read(into func(any) error) }); ok {
				defer clear(data) // it may have a secret, and its memory is used again
				body.Read(func(into any) error {
					return strict.Object(data, into, control.Fields, json.WithUnmarshalers(secrets()))
				})
				return nil
			}
			return fmt.Errorf("bodies are decoded by their handler: %w", io.ErrUnexpectedEOF)
		},
	}
}
