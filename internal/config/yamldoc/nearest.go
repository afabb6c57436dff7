package yamldoc

// didYouMean is the hint for an unknown key.
func didYouMean(near string) string {
	if near == "" {
		return ""
	}
	return "did you mean " + near + "?"
}

// nearest is the known key that is nearest to an unknown one when one is near enough to be meant, which is up to three
// wrong letters, and no more than a third of the key.
func nearest(key string, known []string) string {
	best, distance := "", min(max(1, len(key)/3), 3)+1
	for _, word := range known {
		if d := edits(key, word); d < distance {
			best, distance = word, d
		}
	}
	return best
}

// edits counts the letters to insert, remove, replace or swap with their neighbour to make a into b. Keys longer
// than any real one are not compared: they are far from everything.
func edits(a, b string) int {
	const longest = 64
	if len(a) > longest || len(b) > longest {
		return max(len(a), len(b))
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
