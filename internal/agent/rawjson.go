package agent

import "errors"

// rawJSON is JSON that is written as it is.
type rawJSON []byte

// MarshalJSON implements json.Marshaler.
func (r rawJSON) MarshalJSON() ([]byte, error) {
	if len(r) == 0 {
		return []byte("null"), nil
	}
	return r, nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *rawJSON) UnmarshalJSON(b []byte) error {
	if r == nil {
		return errors.New("decode into nothing")
	}
	*r = append((*r)[:0], b...)
	return nil
}
