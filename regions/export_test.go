package regions

// Forget forgets all pauses, which go by this process's clock.
func (l *Limiter) Forget() {
	l.pauses.mu.Lock()
	for id, until := range l.pauses.until {
		if until != underWay {
			delete(l.pauses.until, id)
		}
	}
	l.pauses.mu.Unlock()
	for _, o := range l.others {
		o.until.Store(0)
	}
}

// Pauses is how many keys are remembered.
func (l *Limiter) Pauses() int {
	l.pauses.mu.Lock()
	defer l.pauses.mu.Unlock()
	return len(l.pauses.until)
}

// MaxPauses is the most.
const MaxPauses = maxPauses
