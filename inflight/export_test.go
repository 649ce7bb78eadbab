package inflight

const (
	MostAsking = mostAsking
	MostOffers = mostOffers
)

// Lines is how many lines there are.
func Lines() int {
	lines.mu.Lock()
	defer lines.mu.Unlock()
	n := max(len(lines.byID), len(lines.bySlots))
	if lines.some.Load() != (n > 0) {
		return -1
	}
	return n
}
