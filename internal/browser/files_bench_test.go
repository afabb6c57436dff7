//go:build unix

package browser

import (
	"testing"

	"github.com/clawjail/clawjail/internal/cdp/cdptest"
)

// A file of 5 MB on its way in and out.
func BenchmarkFiles(b *testing.B) {
	for _, build := range []Build{Shell, Full} {
		browser := open(b, build, deadAddress(b))
		browser.UseFolder(cdptest.Dir(b) + "/files")
		data := make([]byte, 5<<20)
		b.Run(string(build)+"/put", func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				must[File](b, browser, PutFile{Name: "a.bin", Data: data})
			}
		})
		b.Run(string(build)+"/get", func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			must[File](b, browser, PutFile{Name: "a.bin", Data: data})
			for b.Loop() {
				must[FileContent](b, browser, GetFile{Name: "a.bin"})
			}
		})
	}
}

func BenchmarkRead(b *testing.B) {
	browser := open(b, Shell, newGateway(b, readSite()).URL)
	goTo(b, browser, "/form")
	for _, op := range []Operation{Query{Selector: "*"}, DOM{}, DOM{Format: "text"}, Eval{JS: "1"}, Screenshot{}, Screenshot{Type: JPEG}} {
		b.Run(op.Tool(), func(b *testing.B) {
			for b.Loop() {
				if _, err := browser.Do(b.Context(), op); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
