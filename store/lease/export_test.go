package lease

// Armed reports whether a timer runs.
func (d *Store) Armed() bool { return d.armed.Load() }

// Sweep is what the timer does.
func (d *Store) Sweep() { d.sweep() }
