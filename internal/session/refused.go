package session

import (
	"net/url"
	"time"

	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/problem"
)

// refused puts the gateway's own refusal in the place of the browser's error: of a tunnel that was refused, the browser says only
// that it could not be made, whatever the reason was.
func (svc *Service) refused(s *session, began time.Time, err error) error {
	p, ok := problem.As(err)
	if !ok || p.Code != problem.NavigationFailed {
		return err
	}
	address, _ := p.Details["url"].(string)
	u, parseErr := url.Parse(address)
	if parseErr != nil {
		return err
	}
	to, parseErr := hostport.FromURL(u)
	if parseErr != nil {
		return err
	}
	svc.mu.Lock()
	addr := s.addr
	svc.mu.Unlock()
	why := svc.Gateway.Refused(addr, to, began)
	if why == nil {
		return err
	}
	out := problem.Wrap(err, why.Code, why.Hint, "the page could not be loaded: %s", why.Message)
	out.Err = nil // it says nothing more
	for name, value := range p.Details {
		out = out.With(name, value)
	}
	return out.With("blocked", true)
}
