package signin

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-webauthn/webauthn/protocol/webauthncbor"

	"github.com/clawjail/clawjail/internal/audit/audittest"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// authenticator is one in software: ES256, without attestation, with one resident credential.
type authenticator struct {
	t        testing.TB
	key      *ecdsa.PrivateKey
	id       []byte
	handle   []byte
	count    uint32
	counts   bool // it counts its uses
	verified bool // it knows its user
}

// browser is what a browser adds: at which origin it is.
type browser struct {
	origin, host string
}

var local = browser{"http://localhost:18780", "localhost"}

func (b browser) from() From {
	from := here
	from.Origin = b.origin
	return from
}

func newAuthenticator(t testing.TB, counts bool) *authenticator {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &authenticator{t: t, key: key, id: []byte(rand.Text()), counts: counts, verified: true}
}

func (a *authenticator) must(data []byte, err error) []byte {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
	return data
}

func encoded(data []byte) string { return base64.RawURLEncoding.EncodeToString(data) }

func (b browser) clientData(kind, challenge string) []byte {
	return fmt.Appendf(nil, `{"type":%q,"challenge":%q,"origin":%q,"crossOrigin":false}`, kind, challenge, b.origin)
}

// data is what the authenticator says and signs.
func (a *authenticator) data(host string, attested []byte) []byte {
	sum := sha256.Sum256([]byte(host))
	flags := byte(0x01) // somebody is there
	if a.verified {
		flags |= 0x04
	}
	if attested != nil {
		flags |= 0x40
	}
	if a.counts {
		a.count++
	}
	return append(binary.BigEndian.AppendUint32(append(sum[:], flags), a.count), attested...)
}

type creationOptions struct {
	PublicKey struct {
		Challenge string
		RP        struct{ ID string }
		User      struct{ ID, Name string }
		Exclude   []struct{ ID string } `json:"excludeCredentials"`
		Selection struct {
			ResidentKey      string
			UserVerification string
		} `json:"authenticatorSelection"`
		Attestation string
		Parameters  []struct{ Alg int } `json:"pubKeyCredParams"`
	}
}

// create answers navigator.credentials.create.
func (a *authenticator) create(b browser, options []byte) []byte {
	a.t.Helper()
	var o creationOptions
	if err := json.Unmarshal(options, &o); err != nil {
		a.t.Fatal(err)
	}
	handle, err := base64.RawURLEncoding.DecodeString(o.PublicKey.User.ID)
	a.handle = a.must(handle, err)
	point := a.must(a.key.PublicKey.Bytes())
	public := a.must(webauthncbor.Marshal(map[int]any{1: 2, 3: -7, -1: 1, -2: point[1:33], -3: point[33:]}))
	attested := binary.BigEndian.AppendUint16(make([]byte, 16), uint16(len(a.id)))
	attested = append(append(attested, a.id...), public...)
	object := a.must(webauthncbor.Marshal(map[string]any{"fmt": "none", "attStmt": map[string]any{}, "authData": a.data(b.host, attested)}))
	return a.must(json.Marshal(map[string]any{"id": encoded(a.id), "rawId": encoded(a.id), "type": "public-key", "clientExtensionResults": map[string]any{"credProps": map[string]any{"rk": true}},
		"response": map[string]any{"clientDataJSON": encoded(b.clientData("webauthn.create", o.PublicKey.Challenge)), "attestationObject": encoded(object),
			"transports": []string{"internal"}}}))
}

// get answers navigator.credentials.get.
func (a *authenticator) get(b browser, options []byte) []byte {
	a.t.Helper()
	var o struct {
		PublicKey struct {
			Challenge string
			RPID      string `json:"rpId"`
			Allow     []any  `json:"allowCredentials"`
		}
	}
	if err := json.Unmarshal(options, &o); err != nil {
		a.t.Fatal(err)
	}
	if o.PublicKey.RPID != b.host || len(o.PublicKey.Allow) != 0 {
		a.t.Errorf("asked with %s", options)
	}
	data, client := a.data(b.host, nil), b.clientData("webauthn.get", o.PublicKey.Challenge)
	sum := sha256.Sum256(client)
	digest := sha256.Sum256(append(bytes.Clone(data), sum[:]...))
	signature := a.must(ecdsa.SignASN1(rand.Reader, a.key, digest[:]))
	return a.must(json.Marshal(map[string]any{"id": encoded(a.id), "rawId": encoded(a.id), "type": "public-key", "clientExtensionResults": map[string]any{},
		"response": map[string]any{"clientDataJSON": encoded(client), "authenticatorData": encoded(data), "signature": encoded(signature), "userHandle": encoded(a.handle)}}))
}

// add adds a passkey of a principal's.
func (w *fixture) add(a *authenticator, b browser, by identity.Principal, name string) Passkey {
	w.t.Helper()
	options, challenge, err := w.BeginPasskey(w.t.Context(), by, b.from())
	if err != nil {
		w.t.Fatal(err)
	}
	made, err := w.FinishPasskey(w.t.Context(), by, challenge, name, a.create(b, options), b.from())
	if err != nil {
		w.t.Fatalf("%v: %#v", err, err)
	}
	return made
}

// with signs in with a passkey.
func (w *fixture) with(a *authenticator, b browser) (cookie string, in SignIn, err error) {
	w.t.Helper()
	options, challenge, err := w.BeginSignIn(w.t.Context(), b.from())
	if err != nil {
		w.t.Fatal(err)
	}
	return w.WithPasskey(w.t.Context(), challenge, a.get(b, options), b.from())
}

// refusedPasskey requires that somebody was not signed in, and that this was recorded.
func (w *fixture) refusedPasskey(what string, in SignIn, err error) {
	w.t.Helper()
	if problem.CodeOf(err) != problem.Unauthorized || in != (SignIn{}) {
		w.t.Errorf("%s: %+v, %v", what, in, err)
	}
	if e := w.log.Last(w.t); e.Action != "console.sign_in" || e.Result != "refused" ||
		!audittest.Has(e, map[string]string{"method": "passkey", "remote": here.Remote.String()}) {
		w.t.Errorf("%s: recorded %+v", what, e)
	}
}

func TestAPasskeySignsItsOwnerIn(t *testing.T) {
	for name, counts := range map[string]bool{"that counts": true, "that does not count": false} {
		t.Run(name, func(t *testing.T) {
			w, end := newFixture(t)
			defer end()
			_, ann := w.operator("acme", identity.RoleViewer, identity.NeverExpires)
			a, theAdmins := newAuthenticator(t, counts), newAuthenticator(t, counts)
			made := w.add(a, local, ann, "my laptop")
			if made.Name != "my laptop" || made.Host != "localhost" || !strings.HasPrefix(made.ID, "pk_") || !made.UsedAt.IsZero() {
				t.Errorf("made %+v", made)
			}
			if e := w.log.Last(t); e.Action != "passkey.add" || e.Result != "ok" || e.Actor != ann.Actor() || e.Target != made.ID || !audittest.Has(e, map[string]string{"host": "localhost", "name": "my laptop"}) {
				t.Errorf("recorded %+v", e)
			}
			w.add(theAdmins, local, w.admin, "admin's")
			again, challenge, err := w.BeginPasskey(t.Context(), w.admin, local.from())
			if err != nil {
				t.Fatal(err)
			}
			same := *a // which keeps the owner that it has
			if _, err := w.FinishPasskey(t.Context(), w.admin, challenge, "again", same.create(local, again), local.from()); problem.CodeOf(err) != problem.Conflict {
				t.Errorf("one that is known: %v", err)
			}
			for range 3 {
				cookie, in, err := w.with(a, local)
				if err != nil || in.Method != "passkey" || in.Actor != ann.Actor() {
					t.Fatalf("%+v, %v", in, err)
				}
				w.in(cookie, ann)
			}
			cookie, _, err := w.with(theAdmins, local)
			if err != nil {
				t.Fatal(err)
			}
			w.in(cookie, w.admin)
			list, err := w.Passkeys(t.Context(), ann)
			if err != nil || len(list) != 1 || list[0].ID != made.ID || list[0].UsedAt.IsZero() {
				t.Errorf("listed %+v, %v", list, err)
			}
			// A passkey of another person is as one that does not exist.
			if err := w.RemovePasskey(t.Context(), w.admin, made.ID); problem.CodeOf(err) != problem.NotFound {
				t.Errorf("removed by another: %v", err)
			}
			w.log.Fail(errPlanted)
			if err := w.RemovePasskey(t.Context(), ann, made.ID); err != nil {
				t.Errorf("its end waits for its record: %v", err)
			}
			w.log.Fail(nil)
			_, in, err := w.with(a, local)
			w.refusedPasskey("one that was removed", in, err)
		})
	}
}

func TestWhatIsAskedOfAnAuthenticator(t *testing.T) {
	w, end := newFixture(t)
	defer end()
	first := newAuthenticator(t, true)
	w.add(first, local, w.admin, "first")
	options, _, err := w.BeginPasskey(t.Context(), w.admin, here)
	if err != nil {
		t.Fatal(err)
	}
	var o creationOptions
	if err := json.Unmarshal(options, &o); err != nil {
		t.Fatal(err)
	}
	k := o.PublicKey
	if k.RP.ID != "localhost" || k.Selection.ResidentKey != "required" || k.Selection.UserVerification != "preferred" || k.Attestation != "none" || len(k.Parameters) != 3 ||
		k.User.Name != "admin" || len(k.Exclude) != 1 || k.Exclude[0].ID != encoded(first.id) {
		t.Errorf("asked with %s", options)
	}
	if k.User.ID != encoded(first.handle) || len(first.handle) != handleSize {
		t.Error("one owner has two handles")
	}
	elsewhere, _, err := w.BeginPasskey(t.Context(), w.admin, From{Origin: "https://jail.example"})
	if err != nil || strings.Contains(string(elsewhere), encoded(first.id)) {
		t.Errorf("at another host it knows of those of this: %s, %v", elsewhere, err)
	}
}

func TestPasskeysAreOfPlacesThatBrowsersHaveThemFor(t *testing.T) {
	w, end := newFixture(t)
	defer end()
	for origin, good := range map[string]bool{
		"http://localhost": true, "http://localhost:18780": true, "https://jail.example": true, "https://jail.example:8443": true, "https://localhost": true,
		"http://127.0.0.1:18780": false, "https://127.0.0.1": false, "http://[::1]:18780": false, "https://[2001:db8::1]": false, "http://jail.example": false, "http://localhost.example": false,
		"": false, "null": false, "https://": false, "localhost": false, "https://jail.example/x": false, "https://a@jail.example": false, "ftp://localhost": false,
	} {
		from := here
		from.Origin = origin
		_, _, addErr := w.BeginPasskey(t.Context(), w.admin, from)
		_, _, inErr := w.BeginSignIn(t.Context(), from)
		for _, err := range []error{addErr, inErr} {
			if (err == nil) != good || err != nil && problem.CodeOf(err) != problem.BadRequest {
				t.Errorf("%q: %v", origin, err)
			}
		}
	}
	from := here
	from.Origin = "http://127.0.0.1:18780"
	_, _, err := w.BeginPasskey(t.Context(), w.admin, from)
	if p, ok := problem.As(err); !ok || !strings.Contains(p.Hint, "http://localhost:18780") {
		t.Errorf("the hint does not help: %v", err)
	}
}

// Each is what a thief, a page or a broken program could send.
func TestWhatIsNoPasskeyOfOurs(t *testing.T) {
	w, end := newFixture(t)
	defer end()
	ctx := t.Context()
	_, ann := w.operator("acme", identity.RoleViewer, identity.NeverExpires)
	a, stranger := newAuthenticator(t, true), newAuthenticator(t, true)
	w.add(a, local, ann, "hers")
	stranger.handle = a.handle

	try := func(what string, change func(a *authenticator, b *browser)) {
		t.Helper()
		copied, at := *a, local
		change(&copied, &at)
		options, challenge, err := w.BeginSignIn(ctx, here)
		if err != nil {
			t.Fatal(err)
		}
		_, in, err := w.WithPasskey(ctx, challenge, copied.get(at, options), here)
		w.refusedPasskey(what, in, err)
		time.Sleep(time.Millisecond)
	}
	_, in, err := w.with(stranger, local)
	w.refusedPasskey("one that nobody has added", in, err)
	try("another key", func(a *authenticator, _ *browser) { a.key = stranger.key })
	try("another's handle", func(a *authenticator, _ *browser) { a.handle = []byte("another") })
	try("no handle", func(a *authenticator, _ *browser) { a.handle = nil })
	try("a page elsewhere", func(_ *authenticator, b *browser) { b.origin = "http://localhost:1" })
	w.pass()
	try("a page of another host", func(_ *authenticator, b *browser) { b.origin = "https://evil.example" })

	options, challenge, err := w.BeginSignIn(ctx, here)
	if err != nil {
		t.Fatal(err)
	}
	answer := a.get(local, options)
	broken := bytes.Replace(answer, []byte(`"signature":"`), []byte(`"signature":"AA`), 1)
	for what, response := range map[string][]byte{"a changed signature": broken, "no JSON": []byte("{"), "nothing": nil, "another kind": []byte(`{"type":"password"}`)} {
		_, in, err := w.WithPasskey(ctx, challenge, response, here)
		w.refusedPasskey(what, in, err)
	}
	w.pass()
	// A passkey is of the host that it was added at, also where its key signs for another.
	_, in, err = w.with(a, browser{"https://jail.example", "jail.example"})
	w.refusedPasskey("at another host", in, err)
	// The attempt is good until somebody has signed it.
	options, challenge, err = w.BeginSignIn(ctx, here)
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = w.WithPasskey(ctx, challenge, nil, here)
	w.refusedPasskey("nothing, to a new attempt", SignIn{}, err)
	answer = a.get(local, options)
	if _, _, err := w.WithPasskey(ctx, challenge, answer, here); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.WithPasskey(ctx, challenge, answer, here); problem.CodeOf(err) != problem.BadRequest {
		t.Errorf("the same answer again: %v", err)
	}
	if rows, err := w.db.ListSignIns(ctx, store.SignInFilter{Limit: 99}); err != nil || len(rows) != 1 {
		t.Errorf("%d are signed in, %v", len(rows), err)
	}
}

// pass lets the limiter forget.
func (w *fixture) pass() {
	w.t.Helper()
	w.close()
	old := w.challenges
	w.open(idle, life)
	w.challenges = old
}

func TestAnAttemptIsForOnePurposeOnePersonAndOnePlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, end := newFixture(t)
		defer end()
		ctx := t.Context()
		_, ann := w.operator("acme", identity.RoleViewer, identity.NeverExpires)
		_, bob := w.operator("acme", identity.RoleViewer, identity.NeverExpires)
		a := newAuthenticator(t, true)
		options, challenge, err := w.BeginPasskey(ctx, ann, here)
		if err != nil {
			t.Fatal(err)
		}
		response := a.create(local, options)
		elsewhere := here
		elsewhere.Origin = "https://jail.example"
		_, signing, err := w.BeginSignIn(ctx, here)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := base64.RawURLEncoding.DecodeString(challenge)
		if err != nil {
			t.Fatal(err)
		}
		raw[5]++ // longer
		for what, try := range map[string]func() error{
			"another person":   func() error { _, err := w.FinishPasskey(ctx, bob, challenge, "x", response, here); return err },
			"another place":    func() error { _, err := w.FinishPasskey(ctx, ann, challenge, "x", response, elsewhere); return err },
			"another purpose":  func() error { _, err := w.FinishPasskey(ctx, ann, signing, "x", response, here); return err },
			"to sign in":       func() error { _, _, err := w.WithPasskey(ctx, challenge, response, here); return err },
			"a longer attempt": func() error { _, err := w.FinishPasskey(ctx, ann, encoded(raw), "x", response, here); return err },
			"no attempt":       func() error { _, err := w.FinishPasskey(ctx, ann, "", "x", response, here); return err },
			"an attempt of ours": func() error {
				_, err := w.FinishPasskey(ctx, ann, encoded(make([]byte, challengeSize)), "x", response, here)
				return err
			},
		} {
			if err := try(); problem.CodeOf(err) != problem.BadRequest {
				t.Errorf("%s: %v", what, err)
			}
		}
		for _, name := range []string{"", " x", "a\nb", strings.Repeat("x", longestPasskeyName+1)} {
			if _, err := w.FinishPasskey(ctx, ann, challenge, name, response, here); problem.CodeOf(err) != problem.BadName {
				t.Errorf("the name %q: %v", name, err)
			}
		}
		w.log.Fail(errPlanted)
		_, late, err := w.BeginPasskey(ctx, ann, here)
		if err != nil {
			t.Fatal(err)
		}
		w.log.Fail(nil)
		time.Sleep(challengeLife - time.Second)
		if _, err := w.FinishPasskey(ctx, ann, challenge, "mine", response, here); err != nil {
			t.Errorf("in its last second: %v", err)
		}
		if _, err := w.FinishPasskey(ctx, ann, challenge, "mine", response, here); problem.CodeOf(err) != problem.BadRequest {
			t.Errorf("a second time: %v", err)
		}
		time.Sleep(time.Second)
		if _, err := w.FinishPasskey(ctx, ann, late, "late", response, here); problem.CodeOf(err) != problem.BadRequest {
			t.Errorf("after its end: %v", err)
		}
		time.Sleep(2 * challengeLife)
		if _, err := w.Purge(ctx); err != nil || len(w.challenges.used) != 0 {
			t.Errorf("%d are remembered, %v", len(w.challenges.used), err)
		}
	})
}

// Of 64 who send the same answer at the same moment, one is signed in.
func TestAnAnswerIsGoodOnce(t *testing.T) {
	for name, counts := range map[string]bool{"of one that counts": true, "of one that does not": false} {
		t.Run(name, func(t *testing.T) {
			w, end := newFixture(t)
			defer end()
			a := newAuthenticator(t, counts)
			w.add(a, local, w.admin, "mine")
			options, challenge, err := w.BeginSignIn(t.Context(), here)
			if err != nil {
				t.Fatal(err)
			}
			answer := a.get(local, options)
			var won atomic.Int64
			var all sync.WaitGroup
			gate := make(chan struct{})
			for range 64 {
				all.Go(func() {
					<-gate
					if _, _, err := w.WithPasskey(t.Context(), challenge, answer, here); err == nil {
						won.Add(1)
					} else if problem.CodeOf(err) != problem.BadRequest {
						t.Error(err)
					}
				})
			}
			close(gate)
			all.Wait()
			if won.Load() != 1 {
				t.Errorf("%d are signed in", won.Load())
			}
		})
	}
}

func TestACopiedPasskeyIsSeen(t *testing.T) {
	w, end := newFixture(t)
	defer end()
	a := newAuthenticator(t, true)
	w.add(a, local, w.admin, "mine")
	thief := *a
	if _, _, err := w.with(a, local); err != nil {
		t.Fatal(err)
	}
	_, in, err := w.with(&thief, local)
	if problem.CodeOf(err) != problem.Unauthorized || in != (SignIn{}) {
		t.Errorf("a copy signs in: %+v, %v", in, err)
	}
	if e := w.log.Last(t); e.Action != "console.sign_in" || e.Result != "failed" {
		t.Errorf("recorded %+v", e)
	}
}

func TestAPasskeyEndsWithItsOwner(t *testing.T) {
	w, end := newFixture(t)
	defer end()
	ctx := t.Context()
	_, ann := w.operator("acme", identity.RoleViewer, identity.NeverExpires)
	hers, theAdmins := newAuthenticator(t, true), newAuthenticator(t, true)
	w.add(hers, local, ann, "hers")
	w.add(theAdmins, local, w.admin, "the admin's")
	if _, _, err := w.identity.RotateOperator(ctx, w.admin, ann.ID, time.Hour); err != nil {
		t.Fatal(err)
	}
	_, in, err := w.with(hers, local)
	w.refusedPasskey("of an operator with another key", in, err)
	w.close()
	w.open(idle, life)
	if _, _, err := w.with(theAdmins, local); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	if err := os.Remove(w.keys); err != nil {
		t.Fatal(err)
	}
	w.close()
	w.open(idle, life)
	_, in, err = w.with(theAdmins, local)
	w.refusedPasskey("of who had another admin key", in, err)
	if list, err := w.Passkeys(ctx, w.admin); err != nil || len(list) != 0 {
		t.Errorf("listed %+v, %v", list, err)
	}
}

func TestAnOwnerHasNotTooManyPasskeys(t *testing.T) {
	w, end := newFixture(t)
	defer end()
	for n := range maxPasskeys {
		row := store.Passkey{ID: fmt.Sprint(n), Owner: w.owner(w.admin), Name: "x", Host: "localhost", Credential: fmt.Append(nil, n), Handle: []byte("h"), Record: []byte("{}"), CreatedAt: time.Now()}
		if err := w.db.CreatePasskey(t.Context(), row); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := w.BeginPasskey(t.Context(), w.admin, here); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("got %v", err)
	}
}

func TestAPasskeyThatCannotBeRecordedIsNotAdded(t *testing.T) {
	w, end := newFixture(t)
	defer end()
	a := newAuthenticator(t, true)
	options, challenge, err := w.BeginPasskey(t.Context(), w.admin, here)
	if err != nil {
		t.Fatal(err)
	}
	w.log.Fail(errPlanted)
	if _, err := w.FinishPasskey(t.Context(), w.admin, challenge, "x", a.create(local, options), here); err == nil {
		t.Error("it is added")
	}
	w.log.Fail(nil)
	if list, err := w.Passkeys(t.Context(), w.admin); err != nil || len(list) != 0 {
		t.Errorf("listed %+v, %v", list, err)
	}
}

// FuzzChallenge: what comes back from a browser is one that was begun here, or nothing.
func FuzzChallenge(f *testing.F) {
	c := newChallenges("abcde")
	now := time.Unix(1e9, 0)
	good := encoded(c.issue(toSignIn, "", "o", nil, now))
	f.Add(good)
	f.Add("")
	f.Add(good[:50])
	f.Fuzz(func(t *testing.T, text string) {
		if _, _, err := c.verify(toSignIn, "", "o", text, now); (err == nil) != (text == good) {
			t.Errorf("%q: %v", text, err)
		}
	})
}
