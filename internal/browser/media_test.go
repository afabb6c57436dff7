package browser

import (
	"context"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

func fetch(b *Browser, id string) (FileContent, error) {
	out, err := (GetMedia{ID: id}).Run(context.Background(), b)
	if err != nil {
		return FileContent{}, err
	}
	return out.(FileContent), nil
}

func TestPicturesAreKeptForTenMinutes(t *testing.T) {
	now := time.Unix(1000, 0)
	b := &Browser{media: media{clock: func() time.Time { return now }}}
	p := Picture{ContentType: "image/jpeg", Data: []byte("a picture")}
	b.media.keep(&p)
	if len(p.Media) < 20 || !p.ExpiresAt.Equal(now.Add(10*time.Minute)) || p.Bytes != 9 {
		t.Errorf("%+v", p)
	}
	now = now.Add(10*time.Minute - time.Second)
	if got, err := fetch(b, p.Media); err != nil || string(got.Data) != "a picture" || got.ContentType != "image/jpeg" || got.Name != "screenshot.jpg" {
		t.Errorf("%+v, %v", got, err)
	}
	now = now.Add(time.Second)
	if _, err := fetch(b, p.Media); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("after ten minutes: %v", err)
	}
	if len(b.media.kept) != 0 || b.media.weight != 0 {
		t.Error("what is over is still held")
	}
}

func TestPicturesAreBoundedInNumberAndBytes(t *testing.T) {
	var b Browser
	ids := make(map[string]bool)
	var last []string
	for range maxMedia + 5 {
		p := Picture{Data: []byte("x")}
		b.media.keep(&p)
		ids[p.Media], last = true, append(last, p.Media)
	}
	if len(ids) != maxMedia+5 || len(b.media.kept) != maxMedia {
		t.Errorf("%d ids, %d kept", len(ids), len(b.media.kept))
	}
	if _, err := fetch(&b, last[4]); err == nil {
		t.Error("the oldest was kept")
	}
	if _, err := fetch(&b, last[5]); err != nil {
		t.Errorf("the newest were not: %v", err)
	}
	large := make([]byte, maxMediaBytes/2)
	for range 4 {
		b.media.keep(&Picture{Data: large})
	}
	if len(b.media.kept) != 2 || b.media.weight > maxMediaBytes {
		t.Errorf("%d kept with %d bytes", len(b.media.kept), b.media.weight)
	}
	for _, id := range []string{"", "no", string(make([]byte, 101))} {
		if err := (GetMedia{ID: id}).Validate(); (err == nil) != (id == "no") {
			t.Errorf("%q: %v", id, err)
		}
	}
}
