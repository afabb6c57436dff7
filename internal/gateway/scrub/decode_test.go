package scrub

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv/property"
)

// zeros is a body of so many zeros, compressed with gzip again and again.
func zeros(size int64, times int) []byte {
	var out bytes.Buffer
	writer := io.WriteCloser(nopCloser{&out})
	var all []io.Closer
	for range times {
		writer = gzip.NewWriter(writer)
		all = append(all, writer)
	}
	_, _ = io.CopyN(writer, nulls{}, size)
	for i := len(all) - 1; i >= 0; i-- {
		_ = all[i].Close()
	}
	return out.Bytes()
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

type nulls struct{}

func (nulls) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TestBombsDoNotGoOff: what a small body may become is bounded by its own size and by the setting.
func TestBombsDoNotGoOff(t *testing.T) {
	once, twice := zeros(64<<20, 1), zeros(64<<20, 2)
	for name, try := range map[string]struct {
		body   []byte
		coding string
		max    int64
		limit  int
	}{
		"by ratio":        {once, "gzip", 0, freeRatio + len(once)*maxRatio},
		"by size":         {once, "gzip", 100_000, 100_000},
		"in two layers":   {twice, "gzip, gzip", 0, freeRatio + len(twice)*maxRatio*maxRatio},
		"two layers size": {twice, "gzip, gzip", 100_000, 100_000},
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{MaxDecoded: try.max}
			a := between(t, o, token, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Encoding", try.coding)
				_, _ = w.Write(try.body)
			}).get()
			if a.broken == nil || len(a.body) > try.limit || len(a.body) >= 64<<20 {
				t.Errorf("%d bytes became %d, at most %d, %v", len(try.body), len(a.body), try.limit, a.broken)
			}
		})
	}
}

func TestWhatGrowsAsTextDoesIsDecoded(t *testing.T) {
	var lines strings.Builder
	for i := range 40_000 {
		fmt.Fprintf(&lines, `{"id":%d,"name":"Hello-World","private":false}`+"\n", 1296269+i)
	}
	text := lines.String()
	a := between(t, redacting(), token, says("Content-Encoding", "gzip", gzipped(text))).get()
	if string(a.body) != text || a.broken != nil || a.header.Get("Content-Encoding") != "" {
		t.Errorf("%d of %d bytes, %v, %v", len(a.body), len(text), a.broken, a.header)
	}
}

func TestDamagedBodiesAreBrokenTransfers(t *testing.T) {
	good := gzipped("some text that is long enough")
	flipped := []byte(good)
	flipped[len(flipped)-6] ^= 1
	for name, try := range map[string][2]string{
		"cut":            {"gzip", good[:len(good)-9]},
		"one byte":       {"gzip", good[:1]},
		"checksum":       {"gzip", string(flipped)},
		"something more": {"gzip", good + "tail of something"},
		"no gzip at all": {"gzip", "plain text"},
		"more zlib":      {"deflate", zlibbed("text") + "x"},
		"more deflate":   {"deflate", deflated("text") + "x"},
		"no deflate":     {"deflate", "plain text"},
		"cut deflate":    {"deflate", deflated("some text")[:4]},
	} {
		t.Run(name, func(t *testing.T) {
			a := between(t, redacting(), token, says("Content-Encoding", try[0], try[1])).get()
			if a.broken == nil {
				t.Errorf("%d %q is complete", a.status, a.body)
			}
		})
	}
}

func TestAnEmptyBodyIsEmptyHoweverItIsCompressed(t *testing.T) {
	for _, coding := range []string{"gzip", "deflate", "gzip, deflate"} {
		a := between(t, redacting(), token, says("Content-Encoding", coding)).get()
		if a.broken != nil || len(a.body) > 0 || a.status != 200 {
			t.Errorf("%s: %d %q %v", coding, a.status, a.body, a.broken)
		}
	}
}

func TestCompressedAnswersAreRefusedWhenTheSettingSaysSo(t *testing.T) {
	for _, scrub := range []egress.Scrub{egress.ScrubRedact, egress.ScrubBlock} {
		o := Options{Scrub: scrub, Compressed: egress.CompressedRefuse}
		for coding, want := range map[string]string{"gzip": problem.ResponseBlocked, "identity": "", "IDENTITY, , identity": "", "": ""} {
			a := between(t, o, token, says("Content-Encoding", coding, "text")).get()
			if a.refusal != want || want == "" && string(a.body) != "text" {
				t.Errorf("%s, %q: %q %q", scrub, coding, a.refusal, a.body)
			}
		}
	}
}

func TestCodingsAreUndoneFromTheOutside(t *testing.T) {
	for coding, body := range map[string]string{
		"deflate, gzip": gzipped(deflated("text")), "gzip,deflate": zlibbed(gzipped("text")), "GZip , identity": gzipped("text"),
		"gzip, gzip, gzip": gzipped(gzipped(gzipped("text"))),
	} {
		a := between(t, redacting(), token, says("Content-Encoding", coding, body)).get()
		if string(a.body) != "text" || a.broken != nil {
			t.Errorf("%s: %d %q %v", coding, a.status, a.body, a.broken)
		}
	}
}

// TestTrailersBehindACompressedBodyAreScrubbed: they are there only when the source was read to its end.
func TestTrailersBehindACompressedBodyAreScrubbed(t *testing.T) {
	for coding, encode := range map[string]func(string) string{"gzip": gzipped, "deflate": zlibbed} {
		serve := func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum")
			w.Header().Set("Content-Encoding", coding)
			_, _ = io.WriteString(w, encode("text"))
			w.Header().Set("X-Sum", "echo "+token)
		}
		if a := between(t, redacting(), token, serve).get(); a.trailer.Get("X-Sum") != "echo [redacted]" || string(a.body) != "text" {
			t.Errorf("%s: %q %v", coding, a.body, a.trailer)
		}
		if a := between(t, blocking(), token, serve).get(); a.broken == nil {
			t.Errorf("%s: %q %v", coding, a.body, a.trailer)
		}
	}
}

// TestEveryBodyIsScrubbedAsAWhole: whatever it is compressed with and however it is cut, a body is what redact makes of
// its text.
func TestEveryBodyIsScrubbedAsAWhole(t *testing.T) {
	codings := map[string]func(string) string{"": same, "gzip": gzipped, "deflate": deflated, "deflate, gzip": func(s string) string { return gzipped(zlibbed(s)) }}
	property.Check(t, func(t *rapid.T) {
		text := ""
		for range rapid.IntRange(0, 5).Draw(t, "parts") {
			text += rapid.StringN(0, 30, -1).Draw(t, "text")
			text += rapid.SampledFrom([]string{token, token[:20], each("%02x")(token), base64After("u:", base64.StdEncoding)(token)}).Draw(t, "form")
		}
		coding := rapid.SampledFrom([]string{"", "gzip", "deflate", "deflate, gzip"}).Draw(t, "coding")
		body := io.Reader(strings.NewReader(codings[coding](text)))
		if rapid.Bool().Draw(t, "byte by byte") {
			body = iotest.OneByteReader(body)
		}
		v := secrets()
		resp := made(body, "Content-Encoding", coding)
		if err := Response(resp, v, redacting()); err != nil {
			t.Fatal(err)
		}
		out, err := io.ReadAll(resp.Body)
		if want := v.Text(text); err != nil || string(out) != want {
			t.Fatalf("%q, %v; not %q", out, err, want)
		}
	})
}

// FuzzCoded: bytes that are no body of their coding end in an error, and never become more than they may.
func FuzzCoded(f *testing.F) {
	for coding, body := range map[string]string{"gzip": gzipped("text " + token), "deflate": zlibbed("text"), "deflate, gzip": gzipped(deflated("text"))} {
		f.Add(coding, []byte(body))
		f.Add(coding, []byte(body[:len(body)-3]))
	}
	f.Add("gzip", zeros(1<<20, 1))
	f.Add("br,, \t", []byte("x"))
	f.Fuzz(func(t *testing.T, coding string, body []byte) {
		const limit = 1 << 16
		v := secrets()
		resp := made(bytes.NewReader(body), "Content-Encoding", coding)
		if err := Response(resp, v, Options{MaxDecoded: limit}); err != nil {
			if problem.CodeOf(err) != problem.ResponseBlocked {
				t.Fatal(err)
			}
			return
		}
		out, err := io.ReadAll(resp.Body)
		if strings.Contains(string(out), token) {
			t.Fatalf("%s passes", fmt.Sprintf("%q", body))
		}
		if resp.ContentLength != -1 || len(out) > limit && len(out) > len(body) {
			t.Fatalf("%d bytes became %d, %v", len(body), len(out), err)
		}
	})
}

// BenchmarkResponse is a megabyte of JSON from the answer to its reader, next to one that is not scrubbed.
func BenchmarkResponse(b *testing.B) {
	text := strings.Repeat(`{"id":1296269,"name":"Hello-World","private":false,"url":"https://api.example.com/repos/x"},`, 1<<20/92)
	packed := gzipped(text)
	for _, try := range []struct {
		name, coding, body string
		o                  Options
	}{{"off", "", text, off()}, {"redact", "", text, redacting()}, {"block", "", text, blocking()}, {"gzip", "gzip", packed, redacting()}} {
		b.Run(try.name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			buffer := make([]byte, 32<<10)
			for b.Loop() {
				resp := made(strings.NewReader(try.body), "Content-Encoding", try.coding)
				if err := Response(resp, secrets(), try.o); err != nil {
					b.Fatal(err)
				}
				if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{resp.Body}, buffer); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("small answer", func(b *testing.B) {
		b.ReportAllocs()
		buffer := make([]byte, 32<<10)
		for b.Loop() {
			resp := made(strings.NewReader(text[:500]), "Content-Type", "application/json", "Date", "now", "Server", "a server of some kind")
			if err := Response(resp, secrets(), redacting()); err != nil {
				b.Fatal(err)
			}
			if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{resp.Body}, buffer); err != nil {
				b.Fatal(err)
			}
		}
	})
}
