package link

// queue is bytes that are taken out in the order in which they came.
type queue struct {
	bytes []byte
	head  int // what is before it was taken out
}

func (q *queue) len() int { return len(q.bytes) - q.head }

func (q *queue) push(p []byte) {
	if q.head > len(q.bytes)/2 {
		q.bytes = q.bytes[:copy(q.bytes, q.bytes[q.head:])]
		q.head = 0
	}
	q.bytes = append(q.bytes, p...)
}

// from returns up to limit bytes from an offset on. They are good until the next push.
func (q *queue) from(offset, limit int) []byte {
	rest := q.bytes[q.head+offset:]
	return rest[:min(len(rest), limit)]
}

// smallQueue is how many bytes of room a queue keeps that is empty.
const smallQueue = 4 << 10

// drop takes bytes out at the beginning.
func (q *queue) drop(n int) {
	q.head += n
	if q.head < len(q.bytes) {
		return
	}
	q.bytes, q.head = q.bytes[:0], 0
	if cap(q.bytes) > smallQueue {
		q.bytes = nil
	}
}
