package identity

import (
	"fmt"
	"hash/crc32"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/clawjail/clawjail/internal/problem"
)

func TestKeysHaveTheirForm(t *testing.T) {
	seen := map[string]bool{}
	for _, prefix := range []string{PrefixAdmin, PrefixOperator, PrefixAgent} {
		for range 200 {
			k := newKey(prefix)
			text := k.Reveal()
			if !regexp.MustCompile(`^` + prefix + `[0-9A-Za-z]{49}$`).MatchString(text) {
				t.Fatalf("%d characters of an unexpected form", len(text))
			}
			if seen[text] {
				t.Fatal("two keys are the same")
			}
			seen[text] = true
			back, gotPrefix, err := parseKey(text)
			if err != nil || gotPrefix != prefix || back.Reveal() != text {
				t.Fatalf("got %q, %v", gotPrefix, err)
			}
			if hint := k.Hint(); hint != text[:len(prefix)+4] {
				t.Errorf("hint %q", hint)
			}
			if len(k.Hash()) != 32 {
				t.Error("the hash is not one")
			}
		}
	}
}

// 62^43 > 2^256 and 62^6 > 2^32, so every number fits.
func TestEveryKeyHasTheSameLength(t *testing.T) {
	largest := new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 256), big.NewInt(1))
	back := new(big.Int)
	for _, c := range base62(new(big.Int).Set(largest), bodyLength) {
		back.Mul(back, big.NewInt(62)).Add(back, big.NewInt(int64(strings.IndexRune(digits, c))))
	}
	if back.Cmp(largest) != 0 || base62(new(big.Int), 6) != "000000" {
		t.Errorf("the largest number becomes %x", back)
	}
	// The known answer of CRC-32 for "123456789" is 0xCBF43926.
	if crc32.ChecksumIEEE([]byte("123456789")) != 0xCBF43926 || checksum("123456789") != "3jZRME" {
		t.Errorf("checksum of 123456789 is %s", checksum("123456789"))
	}
}

func TestEveryTypingErrorIsSeen(t *testing.T) {
	text := newKey(PrefixAgent).Reveal()
	for i := range text {
		for _, c := range digits + "_-" {
			if byte(c) == text[i] {
				continue
			}
			wrong := text[:i] + string(c) + text[i+1:]
			if _, _, err := parseKey(wrong); err == nil {
				t.Fatalf("character %d may be wrong", i)
			}
		}
		if i > 0 && text[i] != text[i-1] {
			swapped := text[:i-1] + string(text[i]) + string(text[i-1]) + text[i+1:]
			if _, _, err := parseKey(swapped); err == nil {
				t.Fatalf("characters %d and %d may be swapped", i-1, i)
			}
		}
		if _, _, err := parseKey(text[:i]); err == nil {
			t.Fatalf("the first %d characters are a key", i)
		}
	}
	long, odd := text[:len(text)-checksumLength]+"0", text[:20]+"-"+text[21:len(text)-checksumLength]
	for name, wrong := range map[string]string{
		"one more character, with its checksum": long + checksum(long), "a strange character, with its checksum": odd + checksum(odd),
		"another prefix": strings.Replace(text, PrefixAgent, PrefixOperator, 1), "a space": text + " ", "a line end": text + "\n",
		"nothing": "", "a prefix": PrefixAgent, "no prefix": text[6:], "twice": text + text,
		"hex digits": PrefixAdmin + strings.Repeat("a", 64),
	} {
		if _, _, err := parseKey(wrong); err == nil {
			t.Errorf("%s is a key", name)
		}
	}
}

func FuzzKey(f *testing.F) {
	f.Add(newKey(PrefixAdmin).Reveal())
	f.Add(newKey(PrefixOperator).Reveal())
	f.Add(PrefixAdmin + strings.Repeat("a", 64))
	f.Add("cjagt_")
	f.Fuzz(func(t *testing.T, text string) {
		k, prefix, err := parseKey(text)
		if err != nil {
			if !k.IsZero() || prefix != "" || err.Error() != "not a key" {
				t.Errorf("%v, %q", err, prefix)
			}
			return
		}
		if k.Reveal() != text || !strings.HasPrefix(text, prefix) || !strings.HasPrefix(k.Hint(), prefix) || len(k.Hint()) != len(prefix)+4 {
			t.Errorf("%q becomes something else", text)
		}
	})
}

func TestAdminKeyFileIsMadeOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.key")
	var wg sync.WaitGroup
	keys := make([]AdminKey, 8)
	for n := range keys {
		wg.Go(func() {
			var err error
			if keys[n], err = LoadAdminKey(path); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	key, prefix, err := parseKey(strings.TrimSpace(string(text)))
	if err != nil || prefix != PrefixAdmin {
		t.Fatalf("%q, %v", prefix, err)
	}
	for _, k := range keys {
		if !k.matches(key) {
			t.Error("processes that start together have different keys")
		}
	}
	if (AdminKey{}).matches(key) || (AdminKey{}).matches(Key{}) || keys[0].matches(Key{}) || keys[0].matches(newKey(PrefixAdmin)) {
		t.Error("another key matches")
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

func TestAdminKeyFileThatIsNotRightIsRefused(t *testing.T) {
	good := newKey(PrefixAdmin).Reveal()
	for name, tt := range map[string]struct {
		content string
		mode    os.FileMode
		ok      bool
	}{
		"as it was made":         {good + "\n", 0o600, true},
		"without a line end":     {good, 0o600, true},
		"read-only":              {good, 0o400, true},
		"readable by the group":  {good, 0o640, false},
		"empty":                  {"", 0o600, false},
		"cut off":                {good[:30], 0o600, false},
		"chosen by a person":     {"cjadm_letmein", 0o600, false},
		"an operator's":          {newKey(PrefixOperator).Reveal(), 0o600, false},
		"two keys":               {good + "\n" + good, 0o600, false},
		"much more behind a key": {good + strings.Repeat("\n", 300), 0o600, false},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "admin.key")
			if err := os.WriteFile(path, []byte(tt.content), tt.mode); err != nil {
				t.Fatal(err)
			}
			k, err := LoadAdminKey(path)
			if tt.ok {
				if err != nil || k.IsZero() {
					t.Errorf("got %v", err)
				}
				return
			}
			if problem.CodeOf(err) != problem.BadConfig || !k.IsZero() {
				t.Errorf("got %v", err)
			}
			if after, err := os.ReadFile(path); err != nil || string(after) != tt.content {
				t.Error("the file was changed")
			}
			if len(tt.content) > 20 && strings.Contains(fmt.Sprint(err), tt.content[6:20]) {
				t.Error("the key is in the error")
			}
		})
	}
}
