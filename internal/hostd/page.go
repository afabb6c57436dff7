package hostd

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json"
)

// pageBytes bounds what one answer has of a list: however much others have declared, every answer fits into a frame. One entry
// is always sent, and fits.
const pageBytes = maxAnswer / 4

// page is a part of a list, of up to limit bytes as JSON, in the order of keys that no two entries share. next is the key of its last
// entry, to go on behind; empty when there is no more.
func page[T any](all []T, key func(T) string, behind string, limit int) (part []T, next string, err error) {
	slices.SortFunc(all, func(a, b T) int { return cmp.Compare(key(a), key(b)) })
	start, size := 0, 0
	for i, one := range all {
		if key(one) <= behind {
			start = i + 1
			continue
		}
		data, err := json.Marshal(one, durations())
		if err != nil {
			return nil, "", fmt.Errorf("encode a list: %w", err)
		}
		if size += len(data); i > start && size > limit {
			return all[start:i], key(all[i-1]), nil
		}
	}
	return all[start:], "", nil
}

// pages asks for the parts of a list until there is no more.
func pages[T any](ask func(behind string) (part []T, next string, err error)) (all []T, err error) {
	for behind := ""; ; {
		part, next, err := ask(behind)
		if err != nil {
			return nil, err
		}
		all = append(all, part...)
		if next == "" {
			return all, nil
		}
		if next <= behind {
			return nil, fmt.Errorf("list: the part behind %q ends at %q", behind, next)
		}
		behind = next
	}
}
