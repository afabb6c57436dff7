package vault

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/policy/redact"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// Destination is where a secret may go: an origin, such as https://api.example.com, or [InJail].
type Destination string

// InJail is the jail of an MCP server that an operator has declared with the secret.
const InJail Destination = "jail"

// maxDestinations bounds those of one secret.
const maxDestinations = 16

// Origin is where a request goes, in the one spelling of its host and port; empty when it has none.
func Origin(u *url.URL) Destination {
	scheme := strings.ToLower(u.Scheme)
	at, err := hostport.FromURL(&url.URL{Scheme: scheme, Host: u.Host})
	if err != nil {
		return ""
	}
	return Destination(scheme + "://" + at.HostHeader(scheme))
}

// ParseDestinations reads what an operator wrote.
func ParseDestinations(texts []string) (out []Destination, err error) {
	for _, text := range texts {
		to := Destination(text)
		if to != InJail {
			u, err := url.Parse(text)
			if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.User != nil || u.RawQuery != "" || u.ForceQuery ||
				u.Fragment != "" || u.Path != "" && u.Path != "/" || !printable(text, 300) {
				return nil, badOrigin()
			}
			if to = Origin(u); to == "" {
				return nil, badOrigin()
			}
		}
		if !slices.Contains(out, to) {
			out = append(out, to)
		}
	}
	if len(out) > maxDestinations {
		return nil, problem.New(problem.BadSecret, "store it under two names", "a secret is bound to %d origins at most", maxDestinations)
	}
	return out, nil
}

func badOrigin() error {
	return problem.New(problem.BadSecret, "write a scheme and a host, such as https://api.example.com, without a path; or jail, for MCP servers",
		"a secret can only be bound to an origin")
}

// longestSent is what servers take in one header, in bytes.
const longestSent = 16 << 10

// Sendable says why a secret cannot be sent to an origin, or found again in what comes back; the code is bad_secret. One that goes to
// jails alone may be any bytes.
func Sendable(value []byte) error {
	wrong := func(format string, args ...any) error {
		return problem.New(problem.BadSecret, "store it exactly as the service gave it, without line ends or blanks around it", format, args...)
	}
	switch {
	case slices.ContainsFunc(value, func(c byte) bool { return c < ' ' || c == 0x7f }):
		return wrong("the secret has a line end or another control character in it")
	case len(value) < redact.Shortest:
		return wrong("the secret is shorter than %d bytes, and could not be found in answers", redact.Shortest)
	case len(value) > longestSent:
		return wrong("the secret is longer than %d bytes", longestSent)
	case value[0] == ' ' || value[len(value)-1] == ' ':
		return wrong("the secret begins or ends with a blank")
	}
	return nil
}

// Named returns the destinations to which declared services send a secret. It decides for one that was stored without an origin: if
// that is exactly one destination, the secret is bound to it for good.
type Named func(ctx context.Context, n SecretName) ([]Destination, error)

// BindBy sets the service that knows which destinations operators have declared. Until then, secrets that are not bound are not given out.
func (v *Vault) BindBy(named Named) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.named = named
}

// only is the one destination that a secret is declared for; nothing when there are none, or several.
func (v *Vault) only(ctx context.Context, s store.Secret) ([]Destination, error) {
	v.mu.RLock()
	named := v.named
	v.mu.RUnlock()
	if named == nil {
		return nil, nil
	}
	to, err := named(ctx, SecretName{Tenant: s.Tenant, Agent: s.Agent, Service: s.Service})
	if err != nil {
		return nil, fmt.Errorf("find out where the secret %s is sent: %w", s.Service, err)
	}
	slices.Sort(to)
	if to = slices.Compact(to); len(to) != 1 {
		return nil, nil
	}
	return to, nil
}

// BindDeclared binds every secret that is not bound yet and that operators have declared for exactly one destination. The
// others are as they were: their use says what is missing.
func (v *Vault) BindDeclared(ctx context.Context) error {
	all, err := v.store.ListSecrets(ctx, "")
	if err != nil {
		return fmt.Errorf("list secrets: %w", err)
	}
	var errs []error
	for _, s := range all {
		if len(v.boundTo(ctx, s)) > 0 {
			continue
		}
		only, err := v.only(ctx, s)
		if err == nil && len(only) > 0 {
			err = v.UseSecret(ctx, SecretName{s.Tenant, s.Agent, s.Service}, only[0], func(secret.Value) error { return nil })
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// goesTo is the one check of every way in which a secret is used: a secret goes only to what it is bound to. One that is
// not bound yet is bound by its first use, where nothing else is declared for it.
func (v *Vault) goesTo(ctx context.Context, s store.Secret, bound []Destination, to Destination, value []byte) error {
	if to == "" {
		return notBound(s, "nowhere")
	}
	if len(bound) == 0 {
		only, err := v.only(ctx, s)
		if err != nil {
			return err
		}
		if !slices.Contains(only, to) {
			return notBound(s, to)
		}
		return v.bind(ctx, s, only, value)
	}
	if !slices.Contains(bound, to) {
		return notBound(s, to)
	}
	return nil
}

func notBound(s store.Secret, to Destination) error {
	return problem.New(problem.SecretNotBound,
		"Do not retry. If it belongs there, an operator has to store it again: clawjail secret set "+s.Service+" --origin "+string(to)+".",
		"the secret %s is not bound to %s", s.Service, to)
}

// bind writes down what a secret is bound to; store.ErrExists when it was changed since s was read.
func (v *Vault) bind(ctx context.Context, s store.Secret, to []Destination, value []byte) error {
	return v.exclusively(ctx, func() error {
		keys, err := v.reload()
		if err != nil {
			return err
		}
		bound := s
		if bound.Ciphertext, err = sealBound(keys, s, to, value); err != nil {
			return err
		}
		return stored(v.store.PutSecret(ctx, s, bound), s.Tenant, "secret "+s.Service)
	})
}

// sealBound encrypts a value with what it is bound to in front of it.
func sealBound(keys *keyring, s store.Secret, to []Destination, value []byte) ([]byte, error) {
	plain := binary.BigEndian.AppendUint16(nil, uint16(len(to)))
	for _, one := range to {
		plain = binary.BigEndian.AppendUint16(plain, uint16(len(one)))
		plain = append(plain, one...)
	}
	all := make([]byte, 0, len(plain)+len(value)) // so that no copy of the value is left behind
	all = append(append(all, plain...), value...)
	defer clear(all)
	p := placeOfSecret(s)
	p.form = formBound
	return keys.seal(p, all)
}

var errBound = errors.New("what it is bound to cannot be read")

// unbind reads what sealBound wrote, and what earlier versions did, which bound nothing. value is a part of plain.
func unbind(p place, plain []byte) (to []Destination, value []byte, err error) {
	if p.form != formBound {
		return nil, plain, nil
	}
	if len(plain) < 2 {
		return nil, nil, damaged(p, errBound)
	}
	n := int(binary.BigEndian.Uint16(plain))
	plain = plain[2:]
	for range n {
		if len(plain) < 2 {
			return nil, nil, damaged(p, errBound)
		}
		size := int(binary.BigEndian.Uint16(plain))
		if plain = plain[2:]; len(plain) < size {
			return nil, nil, damaged(p, errBound)
		}
		if one := inOneSpelling(Destination(plain[:size])); !slices.Contains(to, one) {
			to = append(to, one)
		}
		plain = plain[size:]
	}
	return to, plain, nil
}

// inOneSpelling is a destination as [Origin] writes it. Earlier versions bound secrets to what an operator had written.
func inOneSpelling(to Destination) Destination {
	u, err := url.Parse(string(to))
	if err != nil {
		return to
	}
	return cmp.Or(Origin(u), to)
}
