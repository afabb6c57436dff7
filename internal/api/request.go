package api

import (
	"time"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
)

// OpenRequest is the body that opens a session. Everything may be left out.
type OpenRequest struct {
	CredentialMode string `json:"credential_mode,omitempty" enum:"clean" doc:"clean: the browser has no logins"`
	Record         string `json:"record,omitempty" enum:"off,transient" doc:"transient, the default, keeps the last 50 screenshots until the session ends"`
	Browser        string `json:"browser,omitempty" enum:"shell,full" doc:"shell, the default, is small and fast; full is the whole Chromium"`
	Template       string `json:"template,omitempty" pattern:"^[a-z0-9]{1,20}$"`
	Label          string `json:"label,omitempty" maxLength:"80" doc:"any text, to recognise the session by"`
	TTL            string `json:"ttl,omitempty" doc:"how long the session may live, such as 30m"`
	Idle           string `json:"idle,omitempty" doc:"how long nobody may use it, such as 10m"`

	Limits *LimitsRequest `json:"limits,omitempty" doc:"limits of its jail, instead of the configured ones"`
}

// LimitsRequest is the part of a body that replaces limits.
type LimitsRequest struct {
	Memory string   `json:"memory,omitempty" doc:"of all its processes and what they write, such as 768MiB"`
	CPU    *float64 `json:"cpu,omitempty" doc:"in cores, such as 1.5"`
	Tasks  *int     `json:"tasks,omitempty" doc:"processes and threads"`
	Disk   string   `json:"disk,omitempty" doc:"of each of its writable file systems, such as 256MiB"`
	SHM    string   `json:"shared_memory,omitempty" doc:"of its /dev/shm, such as 256MiB"`
	Files  *int     `json:"files,omitempty" doc:"open files of one process"`
}

// NavigateRequest is the body that loads a page.
type NavigateRequest struct {
	URL     string `json:"url" doc:"http or https, or about:blank"`
	Timeout string `json:"timeout,omitempty" doc:"such as 30s, which is the default; at most 5m"`
}

// request reads the texts. Whether their values are allowed is the service's to say.
func (o OpenRequest) request() (session.Request, error) {
	flaws := problem.Many{Code: problem.BadRequest, Hint: "the fields and their values are in /openapi.json"}
	duration := func(field, text string) *time.Duration {
		if text == "" {
			return nil
		}
		d, err := time.ParseDuration(text)
		if err != nil {
			flaws.AddFlaw(problem.Flaw{Field: field, Message: quote(text) + " is not a duration", Hint: "write a number with s, m or h, such as 30m"})
		}
		return &d
	}
	size := func(field, text string) *config.Bytes {
		if text == "" {
			return nil
		}
		n, err := config.ParseBytes(text)
		if err != nil {
			flaws.Code = problem.BadLimit
			flaws.AddFlaw(problem.Flaw{Field: field, Message: quote(text) + " is not a size", Hint: "write a whole number with KiB, MiB or GiB, such as 512MiB"})
		}
		return &n
	}
	out := session.Request{
		CredentialMode: o.CredentialMode, Record: o.Record, Browser: o.Browser, Template: o.Template, Label: o.Label,
		TTL: duration("ttl", o.TTL), Idle: duration("idle", o.Idle),
	}
	if l := o.Limits; l != nil {
		out.Limits = session.LimitOverrides{
			Memory: size("limits.memory", l.Memory), Disk: size("limits.disk", l.Disk),
			SharedMemory: size("limits.shared_memory", l.SHM), CPU: l.CPU, Tasks: l.Tasks, Files: l.Files,
		}
	}
	return out, flaws.Err()
}
