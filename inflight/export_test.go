package inflight

// Lines is how many lines there are.
func Lines() int {
	lines.mu.Lock()
	defer lines.mu.Unlock()
	return max(len(lines.byID), len(lines.bySlots))
}
