package signin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"github.com/go-webauthn/webauthn/protocol"
	"github.com/go-webauthn/webauthn/protocol/webauthncose"
	"github.com/go-webauthn/webauthn/webauthn"

	"github.com/clawjail/clawjail/internal/problem"
)

// This file alone knows the library of WebAuthn (https://www.w3.org/TR/webauthn-3/).

// party is the console as authenticators know it: a relying party. Its host is the ID that passkeys are bound to.
type party struct{ host, origin string }

// partyAt is the console at an origin. Browsers have passkeys at https with a name, and at http://localhost; an address
// has none.
func partyAt(origin string) (party, error) {
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" || u.Path != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return party{}, problem.New(problem.BadRequest, "open the console in a browser, at its own address", "the request does not say at which address the console is open")
	}
	host := strings.ToLower(u.Hostname())
	_, addrErr := netip.ParseAddr(host)
	name := addrErr != nil && protocol.ValidateRPID(host) == nil
	if name && (u.Scheme == "https" || u.Scheme == "http" && host == "localhost") {
		return party{host: host, origin: origin}, nil
	}
	port := u.Port()
	if port != "" {
		port = ":" + port
	}
	return party{}, problem.New(problem.BadRequest, "open the console as http://localhost"+port+", or at a name with https",
		"browsers have no passkeys for %s", plain(origin, 80))
}

// algorithms are the signatures that are taken: those that every authenticator has one of.
func algorithms() []protocol.CredentialParameter {
	var out []protocol.CredentialParameter
	for _, alg := range []webauthncose.COSEAlgorithmIdentifier{webauthncose.AlgES256, webauthncose.AlgEdDSA, webauthncose.AlgRS256} {
		out = append(out, protocol.CredentialParameter{Type: protocol.PublicKeyCredentialType, Algorithm: alg})
	}
	return out
}

func (p party) library() (*webauthn.WebAuthn, error) {
	limit := webauthn.TimeoutConfig{Timeout: challengeLife, TimeoutUVD: challengeLife}
	resident := true
	return webauthn.New(&webauthn.Config{
		RPID: p.host, RPDisplayName: "clawjail", RPOrigins: []string{p.origin},
		AttestationPreference: protocol.PreferNoAttestation,
		// Resident, so that signing in needs no name.
		AuthenticatorSelection: protocol.AuthenticatorSelection{RequireResidentKey: &resident, ResidentKey: protocol.ResidentKeyRequirementRequired,
			UserVerification: protocol.VerificationPreferred},
		Timeouts: webauthn.TimeoutsConfig{Login: limit, Registration: limit},
		// None is asked for, and none is read; managers of passwords send some unasked.
		ExtensionsUnsolicitedOutputPolicy: protocol.UnsolicitedOutputPolicyIgnore,
	})
}

// person is an owner as the library wants it.
type person struct {
	handle      []byte
	name        string
	credentials []webauthn.Credential
}

func (u person) WebAuthnID() []byte                         { return u.handle }
func (u person) WebAuthnName() string                       { return u.name }
func (u person) WebAuthnDisplayName() string                { return u.name }
func (u person) WebAuthnCredentials() []webauthn.Credential { return u.credentials }

// kept is what is kept of a credential, beside its id and its count.
type kept struct {
	PublicKey  []byte   `json:"public_key"` // in COSE
	Flags      byte     `json:"flags"`      // of the authenticator's data
	AAGUID     []byte   `json:"aaguid,omitempty"`
	Format     string   `json:"format,omitempty"`
	Transports []string `json:"transports,omitempty"`
}

// creation is what a browser is asked for a new passkey with. Those of the same owner that are known are left alone.
func (p party) creation(challenge, handle []byte, name string, known [][]byte) ([]byte, error) {
	library, err := p.library()
	if err != nil {
		return nil, err
	}
	var exclude []protocol.CredentialDescriptor
	for _, id := range known {
		exclude = append(exclude, protocol.CredentialDescriptor{Type: protocol.PublicKeyCredentialType, CredentialID: id})
	}
	options, _, err := library.BeginRegistration(person{handle: handle, name: name}, webauthn.WithExclusions(exclude), webauthn.WithCredentialParameters(algorithms()),
		func(o *protocol.PublicKeyCredentialCreationOptions) error { o.Challenge = challenge; return nil })
	if err != nil {
		return nil, err
	}
	return json.Marshal(options)
}

// created checks what a browser has made.
func (p party) created(challenge, handle, response []byte) (id, record []byte, count uint32, err error) {
	library, err := p.library()
	if err != nil {
		return nil, nil, 0, err
	}
	parsed, err := protocol.ParseCredentialCreationResponseBytes(response)
	if err != nil {
		return nil, nil, 0, noPasskey(err)
	}
	made, err := library.CreateCredential(person{handle: handle}, webauthn.SessionData{
		Challenge: protocol.URLEncodedBase64(challenge).String(), RelyingPartyID: p.host, UserID: handle,
		UserVerification: protocol.VerificationPreferred, CredParams: algorithms(),
	}, parsed)
	if err != nil {
		return nil, nil, 0, noPasskey(err)
	}
	out := kept{PublicKey: made.PublicKey, Flags: byte(made.Flags.ProtocolValue()), AAGUID: made.Authenticator.AAGUID, Format: made.AttestationFormat}
	for _, t := range made.Transport {
		out.Transports = append(out.Transports, string(t))
	}
	record, err = json.Marshal(out)
	return made.ID, record, made.Authenticator.SignCount, err
}

// request is what a browser is asked for any passkey of this host with.
func (p party) request(challenge []byte) ([]byte, error) {
	library, err := p.library()
	if err != nil {
		return nil, err
	}
	options, _, err := library.BeginDiscoverableLogin(webauthn.WithChallenge(challenge))
	if err != nil {
		return nil, err
	}
	return json.Marshal(options)
}

// asserted checks what a browser has signed. find finds what is kept of a credential, and its owner's handle.
func (p party) asserted(challenge, response []byte, find func(id []byte) (record, handle []byte, err error)) (count uint32, err error) {
	library, err := p.library()
	if err != nil {
		return 0, err
	}
	parsed, err := protocol.ParseCredentialRequestResponseBytes(response)
	if err != nil {
		return 0, noPasskey(err)
	}
	var failure error // of finding, which is not the browser's
	_, _, err = library.ValidatePasskeyLogin(func(id, handle []byte) (webauthn.User, error) {
		record, owner, err := find(id)
		if err != nil {
			failure = err
			return nil, err
		}
		var k kept
		if failure = json.Unmarshal(record, &k); failure != nil {
			return nil, failure
		}
		if !bytes.Equal(handle, owner) {
			return nil, errors.New("the handle is another's")
		}
		return person{handle: owner, credentials: []webauthn.Credential{{
			ID: id, PublicKey: k.PublicKey, AttestationFormat: k.Format, Flags: webauthn.NewCredentialFlags(protocol.AuthenticatorFlags(k.Flags)),
			Authenticator: webauthn.Authenticator{AAGUID: k.AAGUID},
		}}}, nil
	}, webauthn.SessionData{Challenge: protocol.URLEncodedBase64(challenge).String(), RelyingPartyID: p.host, UserVerification: protocol.VerificationPreferred}, parsed)
	switch {
	case failure != nil:
		return 0, failure
	case err != nil:
		return 0, noPasskey(err)
	}
	return parsed.Response.AuthenticatorData.Counter, nil
}

// noPasskey is what the library has found to be wrong. Its words are for the log.
func noPasskey(err error) error {
	detail := err
	if e := new(protocol.Error); errors.As(err, &e) {
		detail = fmt.Errorf("%s: %s", e.Details, e.DevInfo)
	}
	return problem.Wrap(detail, problem.BadRequest, "start again", "the browser sent no valid answer of a passkey")
}
