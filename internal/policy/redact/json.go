package redact

// replaceJSON replaces spans of valid JSON. A span counts within one text or one number: what goes over the quotes of a
// text is no value but the order in which texts stand there.
func replaceJSON(raw []byte, spans []span) []byte {
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); {
		switch c := raw[i]; {
		case c == '"':
			end := textEnd(raw, i)
			out, spans = replaceText(out, raw[:end], i, spans)
			i = end
		case c == '-' || c >= '0' && c <= '9':
			end := i + 1
			for end < len(raw) && isNumber(raw[end]) {
				end++
			}
			spans = from(spans, i)
			if len(spans) > 0 && spans[0].start < end {
				out = append(append(append(out, '"'), Mark...), '"')
			} else {
				out = append(out, raw[i:end]...)
			}
			i = end
		default:
			out = append(out, c)
			i++
		}
	}
	return out
}

// replaceText appends the text that starts at start and ends with raw. Escapes are replaced whole or not at all.
func replaceText(out, raw []byte, start int, spans []span) ([]byte, []span) {
	out = append(out, '"')
	closing := len(raw) - 1
	marked := 0 // up to where a mark stands for what is there
	for i := start + 1; i < closing; {
		width := 1
		if raw[i] == '\\' {
			if width = 2; raw[i+1] == 'u' {
				width = 6
			}
		}
		spans = from(spans, i)
		switch {
		case len(spans) > 0 && spans[0].start < i+width && spans[0].start < closing:
			if marked != i {
				out = append(out, Mark...)
			}
			marked = i + width
		default:
			out = append(out, raw[i:i+width]...)
		}
		i += width
	}
	return append(out, '"'), spans
}

// from leaves out the spans that end at or before i.
func from(spans []span, i int) []span {
	for len(spans) > 0 && spans[0].end <= i {
		spans = spans[1:]
	}
	return spans
}

// textEnd is the index after the text that starts at i.
func textEnd(raw []byte, i int) int {
	for i++; raw[i] != '"'; i++ {
		if raw[i] == '\\' {
			i++
		}
	}
	return i + 1
}

func isNumber(c byte) bool {
	return c >= '0' && c <= '9' || c == '.' || c == 'e' || c == 'E' || c == '+' || c == '-'
}
