package browser

import (
	"testing"

	"github.com/chromedp/cdproto/input"
)

// A page in the shell hands over the address of a file to be dragged, which the browser would open where nobody takes it.
func TestADragCarriesNoFile(t *testing.T) {
	for address, want := range map[string]int{
		"http://example.com/": 1, "https://example.com/\r\nhttp://example.org/": 1, "data:image/png;base64,AA==": 1,
		"file:///etc/passwd": 0, "https://example.com/\r\nfile:///etc/passwd": 0, "view-source:file:///etc/passwd": 0,
		"fi\nle:///etc/passwd": 0, "chrome://version": 0, "data:text/html,x": 0, "javascript:1": 0,
	} {
		for _, kind := range []string{"text/uri-list", "Text/URI-List"} {
			got := droppable(&input.DragData{Files: []string{"/etc/passwd"}, DragOperationsMask: 1,
				Items: []*input.DragDataItem{{MimeType: kind, Data: address, BaseURL: "file:///"}, {MimeType: "text/plain", Data: address}}})
			if len(got.Items) != want+1 || got.Files != nil || got.Items[0].BaseURL != "" || got.DragOperationsMask != 1 {
				t.Errorf("%q of the kind %s became %+v", address, kind, got)
			}
		}
	}
	if droppable(nil) != nil {
		t.Error("nothing became something")
	}
}
