// Package smallbrowser answers as a browser does that has one empty page, for tests with more browsers than there is room for. It is complete enough for a
// session to be opened, asked for its tabs, and closed.
package smallbrowser

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
)

const page = `{"targetId":"AAAA","type":"page","title":"","url":"about:blank","attached":false,"canAccessOpener":false,"browserContextId":"BBBB"}`

// Answer answers what comes by a pipe of DevTools, until the pipe ends or the browser is closed.
func Answer(in io.Reader, out io.Writer) error {
	messages := bufio.NewReader(in)
	for {
		text, err := messages.ReadBytes(0)
		if err != nil {
			return err
		}
		var m struct {
			ID        int64
			Method    string
			SessionID string `json:"sessionId"`
		}
		if err := json.Unmarshal(bytes.TrimSuffix(text, []byte{0}), &m); err != nil {
			return err
		}
		result := "{}"
		switch m.Method {
		case "Browser.getVersion":
			result = `{"protocolVersion":"1.3","product":"HeadlessChrome/150.0.0.0","revision":"","userAgent":"small","jsVersion":""}`
		case "Target.setDiscoverTargets":
			if _, err := io.WriteString(out, `{"method":"Target.targetCreated","params":{"targetInfo":`+page+"}}\x00"); err != nil {
				return err
			}
		case "Target.getTargets":
			result = `{"targetInfos":[` + page + `]}`
		}
		of := ""
		if m.SessionID != "" {
			of = fmt.Sprintf(`,"sessionId":%q`, m.SessionID)
		}
		if _, err := fmt.Fprintf(out, `{"id":%d,"result":%s%s}`+"\x00", m.ID, result, of); err != nil || m.Method == "Browser.close" {
			return err
		}
	}
}
