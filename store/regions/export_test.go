package regions

// Forget forgets all pauses, which go by this process's clock.
func (s *Store) Forget() {
	s.pauses.mu.Lock()
	for id, until := range s.pauses.until {
		if until != underWay {
			delete(s.pauses.until, id)
		}
	}
	s.pauses.mu.Unlock()
	for _, o := range s.others {
		o.until.Store(0)
	}
}

// Pauses is how many keys are remembered.
func (s *Store) Pauses() int {
	s.pauses.mu.Lock()
	defer s.pauses.mu.Unlock()
	return len(s.pauses.until)
}

// MaxPauses is the most.
const MaxPauses = maxPauses
