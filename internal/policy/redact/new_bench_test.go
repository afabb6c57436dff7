package redact

import "testing"

// BenchmarkNew is what the first look at an answer costs that has one credential to lose.
func BenchmarkNew(b *testing.B) {
	for name, value := range credentials() {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				New([]byte(value))
			}
			b.ReportMetric(float64(len(New([]byte(value)).finder.patterns)), "forms")
		})
	}
}

// credentials are of the kinds that services give out, and one with all that encoders escape.
func credentials() map[string]string {
	return map[string]string{
		"token":    "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
		"base64":   "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY==",
		"password": `q"uo\te<d>/&'+=~ x`,
		"unicode":  "grüße-aus-köln",
		"shortest": "hunter22",
	}
}
