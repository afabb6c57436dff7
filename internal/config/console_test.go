package config

import (
	"testing"
	"time"
)

func TestTheBoundsOfASignInAreThoseThatAreDocumented(t *testing.T) {
	for name, tt := range map[string]struct {
		idle, life time.Duration
		good       bool
	}{
		"the shortest":          {time.Minute, time.Minute, true},
		"the longest":           {30 * 24 * time.Hour, 30 * 24 * time.Hour, true},
		"idle too short":        {time.Minute - 1, time.Hour, false},
		"life too long":         {time.Hour, 30*24*time.Hour + 1, false},
		"idle longer than life": {time.Hour + 1, time.Hour, false},
		"no idle":               {0, time.Hour, false},
		"no life":               {time.Hour, 0, false},
	} {
		c := linuxRoot().Default()
		c.Console.Idle, c.Console.Life = tt.idle, tt.life
		if err := c.Validate(); (err == nil) != tt.good {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnAccentIsAColour(t *testing.T) {
	for text, want := range map[string]bool{"#c2410C": true, "#000000": true, "": false, "C2410C": false, "#C2410": false, "#C2410CC": false, "#GGGGGG": false, "red": false, "#+2410C": false,
		"#fff;}a{": false} {
		c := linuxRoot().Default()
		c.Console.Accent = text
		if got := c.Validate() == nil; got != want {
			t.Errorf("%q is a colour: %v", text, got)
		}
	}
}
