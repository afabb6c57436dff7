package control

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/browser"
)

// Picture is how a browser.Picture is answered: with the address where it can be fetched for a while.
type Picture struct {
	browser.Picture
	MediaURL string `json:"mediaUrl"`
}

// Types of content that is sent. unknownType is for files that a browser must not open.
const (
	jsonType    = "application/json"
	pdfType     = "application/pdf"
	unknownType = "application/octet-stream"
)

// Write answers a request with the result of its operation: as JSON, as a picture where the request is a GET or accepts
// pictures and says so, and as a file to save. media makes the address of a picture from its id. Nothing has been
// written when there is an error.
func Write(w http.ResponseWriter, req *http.Request, result any, media func(id string) string) error {
	switch r := result.(type) {
	case *browser.Picture:
		return Write(w, req, *r, media)
	case *browser.FileContent:
		return Write(w, req, *r, media)
	case browser.Picture:
		if wantsPicture(req) {
			if r.Media != "" {
				w.Header().Set("Content-Location", media(r.Media))
			}
			writeBytes(w, r.ContentType, r.Data)
			return nil
		}
		return writeJSON(w, Picture{Picture: r, MediaURL: media(r.Media)})
	case browser.FileContent:
		// The last part alone: the name is the page's, and where a client saves it is not the page's to say.
		name := path.Base(path.Clean("/" + strings.ReplaceAll(r.Name, `\`, "/")))
		disposition := mime.FormatMediaType("attachment", map[string]string{"filename": name})
		if disposition == "" || name == "/" {
			disposition = "attachment"
		}
		w.Header().Set("Content-Disposition", disposition)
		writeBytes(w, r.ContentType, r.Data)
		return nil
	}
	return writeJSON(w, result)
}

// wantsPicture says whether a request is to be answered with the picture itself.
func wantsPicture(req *http.Request) bool {
	if req.Method != http.MethodPost {
		return true
	}
	for _, kind := range strings.Split(req.Header.Get("Accept"), ",") {
		kind, _, _ = strings.Cut(kind, ";")
		kind = strings.ToLower(strings.TrimSpace(kind))
		if strings.HasPrefix(kind, "image/") || kind == pdfType {
			return true
		}
	}
	return false
}

// writeBytes writes what a page may have made. No browser that gets it runs it, or looks for what else it could be.
func writeBytes(w http.ResponseWriter, kind string, data []byte) {
	h := w.Header()
	h.Set("Content-Type", safeType(kind))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	h.Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(data) // a client that has gone cannot be told
}

// safeType is a content type that is no program of a browser's.
func safeType(kind string) string {
	kind, _, err := mime.ParseMediaType(kind)
	safe := []string{"image/png", "image/jpeg", "image/gif", "image/webp", pdfType, "application/zip", jsonType, "text/csv"}
	switch {
	case err == nil && slices.Contains(safe, kind):
		return kind
	case err == nil && kind == "text/plain":
		return "text/plain; charset=utf-8"
	}
	return unknownType
}

func writeJSON(w http.ResponseWriter, result any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // it says that it is JSON, and a snapshot would be twice as long
	if err := e.Encode(result); err != nil {
		return fmt.Errorf("encode the result %T: %w", result, err)
	}
	w.Header().Set("Content-Type", jsonType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(b.Bytes()) // a client that has gone cannot be told
	return nil
}
