package browser

import (
	"context"
	"crypto/rand"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// maxMedia and maxMediaBytes bound the pictures that are kept of one browser; the oldest goes first.
	maxMedia      = 20
	maxMediaBytes = 64 << 20
	// mediaLife is how long a picture can be fetched again.
	mediaLife = 10 * time.Minute
)

// media keeps the last pictures of a browser in memory, under names that cannot be guessed. The zero value is empty.
type media struct {
	mu     sync.Mutex
	clock  func() time.Time // nil is the time
	kept   []medium         // the oldest first
	weight int
}

type medium struct {
	id, contentType string
	expires         time.Time
	data            []byte
}

func (m *media) now() time.Time {
	if m.clock != nil {
		return m.clock()
	}
	return time.Now()
}

// keep takes a picture in and fills in where it can be found.
func (m *media) keep(picture *Picture) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	kept := medium{id: rand.Text(), contentType: picture.ContentType, expires: now.Add(mediaLife), data: picture.Data}
	m.kept = append(m.kept, kept)
	m.weight += len(kept.data)
	for len(m.kept) > maxMedia || m.weight > maxMediaBytes || !now.Before(m.kept[0].expires) {
		m.drop()
	}
	picture.Media, picture.ExpiresAt, picture.Bytes = kept.id, kept.expires, len(kept.data)
}

// drop lets the oldest go. m.mu is held.
func (m *media) drop() {
	m.weight -= len(m.kept[0].data)
	m.kept[0] = medium{} // the slice must not hold it
	m.kept = m.kept[1:]
}

func (m *media) find(id string) (medium, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	for len(m.kept) > 0 && !now.Before(m.kept[0].expires) {
		m.drop()
	}
	for _, kept := range m.kept {
		if kept.id == id {
			return kept, true
		}
	}
	return medium{}, false
}

// Tool implements Operation.
func (GetMedia) Tool() string { return "media" }

// Target implements Operation. The id is what the picture is guarded by, so it is not told.
func (GetMedia) Target() string { return "" }

// Effect implements Operation.
func (GetMedia) Effect() Effect { return Looks }

// Validate implements Operation.
func (o GetMedia) Validate() error {
	if o.ID == "" || len(o.ID) > 100 {
		return problem.New(problem.BadRequest, "use the id that a screenshot answered with", "id is required")
	}
	return nil
}

// Limit implements Operation.
func (GetMedia) Limit() time.Duration { return 10 * time.Second }

// Result implements Operation.
func (GetMedia) Result() any { return new(FileContent) }

// Run implements Operation.
func (o GetMedia) Run(_ context.Context, b *Browser) (any, error) {
	found, ok := b.media.find(o.ID)
	if !ok {
		return nil, problem.New(problem.NotFound, "take another one: pictures are kept for ten minutes, the last twenty of them",
			"there is no such picture")
	}
	name := "screenshot.png"
	switch found.contentType {
	case "image/jpeg":
		name = "screenshot.jpg"
	case "application/pdf":
		name = "page.pdf"
	}
	return FileContent{Name: name, ContentType: found.contentType, Data: found.data}, nil
}
