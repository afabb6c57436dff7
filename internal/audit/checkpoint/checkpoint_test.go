package checkpoint

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/testenv/property"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var at = time.Date(2030, 5, 1, 12, 0, 0, 123456000, time.UTC)

func newTestKey(t testing.TB) *Key {
	t.Helper()
	k, err := LoadKey(filepath.Join(t.TempDir(), "key"))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func line(t testing.TB, n Note) []byte {
	t.Helper()
	b, err := n.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestANoteIsWhatWasSigned(t *testing.T) {
	k := newTestKey(t)
	n := k.Note("n1", 42, [HashSize]byte{1, 2, 3}, at)
	got, err := Parse(line(t, n))
	if err != nil {
		t.Fatal(err)
	}
	if got.Node != "n1" || got.Seq != 42 || got.Hash != n.Hash || !got.Time.Equal(at) || got.Kid != k.ID() {
		t.Errorf("got %+v", got)
	}
	if err := k.Keys().VerifyNote(got); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Note){
		"node": func(n *Note) { n.Node = "n2" }, "seq": func(n *Note) { n.Seq++ }, "hash": func(n *Note) { n.Hash[31]++ },
		"time": func(n *Note) { n.Time = n.Time.Add(time.Microsecond) }, "signature": func(n *Note) { n.Sig = bytes.Repeat([]byte{1}, 64) },
		"no signature": func(n *Note) { n.Sig = nil },
	} {
		other := got
		change(&other)
		if err := k.Keys().VerifyNote(other); !errors.Is(err, ErrBadSignature) {
			t.Errorf("%s: %v", name, err)
		}
	}
	other := got
	other.Kid = "0123456789abcdef"
	if err := k.Keys().VerifyNote(other); !errors.Is(err, ErrUnknownKey) {
		t.Errorf("got %v", err)
	}
	if err := (Keys{}).VerifyNote(got); !errors.Is(err, ErrUnknownKey) {
		t.Errorf("without keys: %v", err)
	}
	if err := k.Keys().Verify(k.ID(), "another purpose", got.Sig, got.signed()); !errors.Is(err, ErrBadSignature) {
		t.Errorf("a signature is good for another purpose: %v", err)
	}
}

func TestTheFormatOfANoteIsKept(t *testing.T) {
	const kept = `{"v":1,"node":"n1","seq":7,"hash":"0100000000000000000000000000000000000000000000000000000000000000","time":"2030-05-01T12:00:00.123456Z","kid":"k","sig":"AQI="}`
	n := Note{Node: "n1", Seq: 7, Hash: [32]byte{1}, Time: at, Kid: "k", Sig: []byte{1, 2}}
	if got := string(line(t, n)); got != kept {
		t.Errorf("got %s", got)
	}
	for _, bad := range []string{
		"", "{}", kept + " ", " " + kept, kept[:len(kept)-1], strings.Replace(kept, `"v":1`, `"v":2`, 1), strings.Replace(kept, `"seq":7`, `"seq":0`, 1),
		strings.Replace(kept, `"n1"`, `""`, 1), strings.Replace(kept, `"01`, `"`, 1), strings.Replace(kept, `{"v":1,`, `{"v":1,"x":1,`, 1),
		strings.Replace(kept, "123456Z", "123Z", 1), strings.Replace(kept, `"n1"`, `"`+strings.Repeat("n", MaxNote)+`"`, 1),
	} {
		if _, err := Parse([]byte(bad)); err == nil {
			t.Errorf("%s is a note", bad)
		}
	}
}

func TestFieldsAreNotMixedUp(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		fields := rapid.SliceOf(rapid.SliceOfN(rapid.Byte(), 0, 3))
		a, b := fields.Draw(t, "a"), fields.Draw(t, "b")
		same := len(a) == len(b)
		for i := 0; same && i < len(a); i++ {
			same = bytes.Equal(a[i], b[i])
		}
		if bytes.Equal(Encode(nil, a...), Encode(nil, b...)) != same {
			t.Fatalf("%v and %v", a, b)
		}
	})
}

func TestTheKeyIsMadeOnceAndIsItsOwnersAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	ids := make([]string, 8)
	var wait sync.WaitGroup
	for i := range ids {
		wait.Go(func() {
			if k, err := LoadKey(path); err != nil {
				t.Error(err)
			} else {
				ids[i] = k.ID()
			}
		})
	}
	wait.Wait()
	k, err := LoadKey(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if id != k.ID() {
			t.Errorf("two keys were made: %s and %s", id, k.ID())
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	for name, lose := range map[string]func() error{
		"made":    func() error { return nil },
		"lost":    func() error { return os.Remove(path + ".pub") },
		"damaged": func() error { return os.Truncate(path+".pub", 20) },
	} {
		if err := lose(); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadKey(path); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if public, err := LoadKeys(path + ".pub"); err != nil || public[k.ID()] == nil {
			t.Errorf("%s: %v %v", name, public, err)
		}
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 2 {
		t.Errorf("files: %v", entries)
	}
}

func TestAKeyFileThatIsNotRightIsRefusedAndLeft(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good")
	if _, err := LoadKey(good); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		data []byte
		mode os.FileMode
	}{
		"read by others": {data, 0o644}, "cut off": {data[:len(data)/2], 0o600}, "empty": {nil, 0o600}, "text": {[]byte("hello"), 0o600},
	} {
		path := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
		if err := os.WriteFile(path, c.data, c.mode); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadKey(path); err == nil {
			t.Errorf("%s: it is a key", name)
		}
		if after, _ := os.ReadFile(path); !bytes.Equal(after, c.data) {
			t.Errorf("%s: the file is overwritten", name)
		}
	}
	if _, err := LoadKeys(good); err == nil {
		t.Error("a private key is read as a public one")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(line(f, newTestKey(f).Note("n1", 1, [HashSize]byte{}, at)))
	f.Add([]byte(`{"v":1,"node":"n1","seq":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		n, err := Parse(data)
		if err != nil {
			return
		}
		if again := line(t, n); !bytes.Equal(again, data) {
			t.Errorf("%q came back as %q", data, again)
		}
	})
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("a\n\nb"))
	f.Fuzz(func(t *testing.T, data []byte) {
		good := line(t, Note{Node: "n", Seq: 1, Time: at, Kid: "k"})
		last := 0
		for _, err := range Read(bytes.NewReader(append(append(data, '\n'), good...))) {
			last++
			if err == nil {
				last = 0 // whatever stands before it, the good line is read
			}
		}
		if last != 0 {
			t.Errorf("the last line is not read behind %q", data)
		}
	})
}
