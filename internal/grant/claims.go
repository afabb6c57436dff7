package grant

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"time"

	"aidanwoods.dev/go-paseto"
)

const (
	// audience is what grants are for.
	audience = "clawjail:session"
	// longestToken is more than 100 domains need.
	longestToken = 64 << 10
)

// claims is what a token says. It is a function of the row, so the two can be compared whole.
type claims struct {
	Issuer        string   `json:"iss"`
	Audience      string   `json:"aud"`
	Subject       string   `json:"sub"` // the tenant's accounts
	ID            string   `json:"jti"`
	IssuedAt      string   `json:"iat"`
	NotBefore     string   `json:"nbf"`
	ExpiresAt     string   `json:"exp"`
	Tenant        string   `json:"tenant"`
	Domains       []string `json:"domains"`
	EgressDomains []string `json:"egress_domains"`
	Access        string   `json:"access"`
	Origin        string   `json:"origin,omitempty"`
	Operator      string   `json:"operator"`
}

// moment is a time as PASETO wants it (RFC 3339), as exactly as the store keeps it.
func moment(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

func claimsOf(installation string, g Grant) claims {
	return claims{
		Issuer: "clawjail:" + installation, Audience: audience, Subject: "tenant:" + g.Tenant, ID: g.ID,
		IssuedAt: moment(g.IssuedAt), NotBefore: moment(g.NotBefore), ExpiresAt: moment(g.ExpiresAt),
		Tenant: g.Tenant, Domains: list(g.Domains), EgressDomains: list(g.EgressDomains), Access: g.Access, Origin: g.Origin, Operator: g.Operator,
	}
}

// list is never null in JSON.
func list(domains []string) []string { return append([]string{}, domains...) }

// equal compares every claim.
func (c claims) equal(d claims) bool { return reflect.DeepEqual(c, d) }

// expired says whether the token's own time is over.
func (c claims) expired(now time.Time) bool {
	exp, err := time.Parse(time.RFC3339, c.ExpiresAt)
	return err == nil && !now.Before(exp)
}

// footer names the key that signed.
type footer struct {
	KeyID string `json:"kid"`
}

// Reasons why a token is not one of ours, for the operator's log. None of them quotes the token: what was sent in its
// place may be somebody's password.
var (
	errForm      = errors.New("not a PASETO v4.public token with a key id")
	errKey       = errors.New("signed with a key that is not known, or not any more")
	errSignature = errors.New("the signature or what it signs is not valid")
)

// read verifies the signature of a grant's token and returns what it says. An error that is none of the three above means
// that the keys could not be read.
func (k *Keyring) read(token Token) (c claims, err error) {
	if _, err := k.open(token, &c); err != nil {
		return claims{}, err
	}
	return c, nil
}

// open verifies the signature of a token and decodes what it says, which has no fields but those of into. The id is the
// signing key's.
func (k *Keyring) open(token Token, into any) (id string, err error) {
	text := token.Reveal()
	if len(text) > longestToken {
		return "", errForm
	}
	parser := paseto.MakeParser(nil) // the row decides about time, and the caller about the rest
	raw, err := parser.UnsafeParseFooter(paseto.V4Public, text)
	if err != nil {
		return "", errForm
	}
	var f footer
	if err := strict(raw, &f); err != nil {
		return "", errForm
	}
	public, known, err := k.public(f.KeyID)
	if err != nil {
		return "", err
	}
	if !known {
		return "", errKey
	}
	parsed, err := parser.ParseV4Public(public, text, nil)
	if err != nil {
		return "", errSignature
	}
	if err := strict(parsed.ClaimsJSON(), into); err != nil {
		return "", errSignature
	}
	return f.KeyID, nil
}

// write makes and signs a token.
func (k *Keyring) write(c any) (Token, error) {
	secret, kid, err := k.signer()
	if err != nil {
		return Token{}, err
	}
	body, err := json.Marshal(c)
	if err != nil {
		return Token{}, err
	}
	foot, err := json.Marshal(footer{kid})
	if err != nil {
		return Token{}, err
	}
	unsigned, err := paseto.NewTokenFromClaimsJSON(body, foot)
	if err != nil {
		return Token{}, err
	}
	return ParseToken(unsigned.V4Sign(secret, nil)), nil
}

// strict decodes one JSON value that has no unknown keys.
func strict(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if d.More() {
		return errors.New("more than one value")
	}
	return nil
}
