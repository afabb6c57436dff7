//go:build unix

package cdp

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/chromedp/cdproto/browser"
	protocol "github.com/chromedp/cdproto/cdp"
)

func BenchmarkGetVersionDirect(b *testing.B) {
	conn, _ := openShell(b)
	ctx := b.Context()
	for b.Loop() {
		if _, err := Do(ctx, conn.Browser(), browser.GetVersion, protocol.Empty{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGetVersionThroughMux(b *testing.B) {
	conn, _ := openShell(b)
	m := NewMux(conn)
	c := attach(b, m, ClientOptions{})
	ctx := b.Context()
	id := 0
	for b.Loop() {
		id++
		if err := c.Send(ctx, fmt.Appendf(nil, `{"id":%d,"method":"Browser.getVersion"}`, id)); err != nil {
			b.Fatal(err)
		}
		if _, err := c.Receive(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAttachAndClose(b *testing.B) {
	conn, _ := openShell(b)
	m := NewMux(conn)
	for b.Loop() {
		c, err := m.Attach(b.Context(), ClientOptions{})
		if err != nil {
			b.Fatal(err)
		}
		if err := c.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCodecScreenshot is a reply of ten megabytes on its way from the browser to a client.
func BenchmarkCodecScreenshot(b *testing.B) {
	frame := append([]byte(`{"id":7,"result":{"data":"`), bytes.Repeat([]byte("iVBORw0K"), 10<<20/8)...)
	frame = append(frame, `"},"sessionId":"67BE25812F66765FE3F5A6E657E41FD8"}`...)
	b.SetBytes(int64(len(frame)))
	for b.Loop() {
		m, err := parse(frame, fromBrowser)
		if err != nil {
			b.Fatal(err)
		}
		m.encoded()
	}
}

func BenchmarkCodecCommand(b *testing.B) {
	frame := []byte(`{"id":7,"method":"Runtime.evaluate","params":{"expression":"document.title","returnByValue":true},"sessionId":"67BE25812F66765FE3F5A6E657E41FD8"}`)
	b.ReportAllocs()
	for b.Loop() {
		m, err := parse(frame, fromClient)
		if err != nil {
			b.Fatal(err)
		}
		m.encoded()
	}
}
