package config

import (
	"strconv"
	"strings"
	"time"
)

// Console is the web console, which the API's listener serves.
type Console struct {
	// Enabled is off for no console at all.
	Enabled bool `yaml:"enabled"`
	// Accent is #RRGGBB: the colour of what is current, and of what is pressed.
	Accent string `yaml:"accent"`
	// Idle is how long a sign-in may go unused, and Life how long it may last.
	Idle time.Duration `yaml:"idle" min:"1m0s" max:"720h0m0s"`
	Life time.Duration `yaml:"life" min:"1m0s" max:"720h0m0s"`
}

func defaultConsole() Console {
	return Console{Enabled: true, Accent: "#C2410C", Idle: 2 * time.Hour, Life: 12 * time.Hour}
}

// RGB is Accent as a number, 0xRRGGBB.
func (c Console) RGB() (uint32, bool) { return parseRGB(c.Accent) }

// parseRGB reads #RRGGBB.
func parseRGB(text string) (uint32, bool) {
	digits, ok := strings.CutPrefix(text, "#")
	n, err := strconv.ParseUint(digits, 16, 24)
	return uint32(n), ok && err == nil && len(digits) == len("RRGGBB")
}

func (c Console) validate(v *validation) {
	if _, ok := c.RGB(); !ok {
		v.flaw("console.accent", "write something like #C2410C, in quotes", "%q is not a colour", c.Accent)
	}
	if c.Idle > c.Life {
		v.flaw("console.idle", "lower idle, or raise life", "%s is longer than life, %s", c.Idle, c.Life)
	}
}
