package api

import (
	"encoding/json"
	"io"
	"net/http"
	"sync"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/quota"
)

const (
	// maxMeter is how many bytes of bodies and answers are in memory for all, and meterAgent for one agent. The largest
	// answer is a picture of 64 MiB.
	maxMeter   = 512 << 20
	meterAgent = 96 << 20
	// meterStrangers is how many are of requests that have shown no key yet: they take no room of those that have.
	meterStrangers = 64 << 20
	// meterStep is what a request takes at once. Its first step is free: there are only so many requests.
	meterStep = 64 << 10
)

// meters counts what requests and their answers hold in memory, by whom. A body counts from when it is read until the request
// has ended, an answer while its reader takes it.
type meters struct{ known, unknown *quota.Gate }

func newMeters(o Options) *meters {
	return &meters{
		known:   quota.NewGate(quota.GateOptions{Kind: quota.Bodies(), Whole: maxMeter, Agent: meterAgent, Quotas: o.Quotas, Tenants: o.Tenants}),
		unknown: quota.NewGate(quota.GateOptions{Kind: quota.Bodies(), Whole: meterStrangers}),
	}
}

// meter is what one request holds.
type meter struct {
	all *meters

	mu      sync.Mutex
	gate    *quota.Gate // of strangers until it is known whose the request is
	of      quota.Holder
	read    int64
	taken   int64
	refused error
}

// metered counts what requests hold, and knows the connection of each as one of somebody's once it has shown a key.
func (a *API) metered(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m := &meter{all: a.meters, gate: a.meters.unknown}
		defer m.end()
		from := clientConnOf(r.Context())
		out := &meteredAnswer{ResponseWriter: w, api: a, request: r, meter: m}
		if r.Body != nil && r.Body != http.NoBody {
			r.Body = &meteredBody{r.Body, m}
		}
		next.ServeHTTP(out, r.WithContext(identity.WithArrival(r.Context(), func(of quota.Holder) {
			m.is(of)
			if identity.IsForwarded(r.Context()) {
				if text, err := json.Marshal(of); err == nil {
					w.Header().Set(holderHeader, string(text))
				}
			}
			if from != nil && !from.known(of) {
				w.Header().Set("Connection", "close") // it has more connections than it may keep
			}
		})))
		out.finish()
	})
}

// is says whose the request is. Memory that it holds already is counted as theirs.
func (m *meter) is(of quota.Holder) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gate.Give(m.of, m.taken)
	m.gate, m.of = m.all.known, of
	m.gate.Add(m.of, m.taken)
}

// body counts n bytes more that were read.
func (m *meter) body(n int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.read += int64(n); m.refused != nil || m.read <= m.taken+meterStep {
		return m.refused
	}
	if err := m.gate.Take(m.of, meterStep); err != nil {
		m.refused = err
		return err
	}
	m.taken += meterStep
	return nil
}

func (m *meter) refusal() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.refused
}

// answer counts a piece of an answer, until done is called.
func (m *meter) answer(n int) (done func(), err error) {
	if n <= meterStep {
		return func() {}, nil
	}
	m.mu.Lock()
	gate, of := m.gate, m.of
	m.mu.Unlock()
	if err := gate.Take(of, int64(n)); err != nil {
		return nil, err
	}
	return func() { gate.Give(of, int64(n)) }, nil
}

func (m *meter) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gate.Give(m.of, m.taken)
	m.taken = 0
}

type meteredBody struct {
	io.ReadCloser
	meter *meter
}

// Read implements io.Reader.
func (b *meteredBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p[:min(len(p), meterStep)])
	if refused := b.meter.body(n); refused != nil {
		return 0, refused
	}
	return n, err
}

// meteredAnswer sends an answer when there is room for its first piece, and says otherwise that there is none.
type meteredAnswer struct {
	http.ResponseWriter
	api     *API
	request *http.Request
	meter   *meter
	status  int
	sent    bool
	dropped bool // there was no room, which was said instead
}

// Unwrap is for http.ResponseController.
func (w *meteredAnswer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter. A status is sent with what comes behind it.
func (w *meteredAnswer) WriteHeader(status int) {
	switch {
	case w.sent, status < http.StatusOK:
		w.sent = w.sent || status == http.StatusSwitchingProtocols
		w.ResponseWriter.WriteHeader(status)
	case w.status == 0:
		w.status = status
	}
}

// Write implements http.ResponseWriter.
func (w *meteredAnswer) Write(b []byte) (int, error) {
	done, err := w.meter.answer(len(b))
	if err == nil {
		defer done()
	}
	w.begin(err)
	switch {
	case w.dropped:
		return len(b), nil
	case err != nil:
		return 0, err
	}
	return w.ResponseWriter.Write(b)
}

// begin sends the status, or that there is no room.
func (w *meteredAnswer) begin(full error) {
	if w.sent {
		return
	}
	w.sent = true
	if full == nil {
		full = w.meter.refusal()
	}
	if full == nil {
		if w.status != 0 {
			w.ResponseWriter.WriteHeader(w.status)
		}
		return
	}
	w.dropped = true
	for _, name := range []string{"Content-Length", "Content-Type", "Content-Disposition", "ETag"} {
		w.Header().Del(name)
	}
	w.api.write(w.ResponseWriter, w.request, document(full))
}

// FlushError is for http.ResponseController.
func (w *meteredAnswer) FlushError() error {
	w.begin(nil)
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Flush implements http.Flusher.
func (w *meteredAnswer) Flush() { _ = w.FlushError() } // a writer that cannot flush sends at the end

// finish sends a status without a body.
func (w *meteredAnswer) finish() {
	if w.status != 0 || w.meter.refusal() != nil {
		w.begin(nil)
	}
}
