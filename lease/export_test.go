package lease

// Armed is whether a timer runs.
func (d *Limiter) Armed() bool { return d.armed.Load() }

// Sweep is what the timer does.
func (d *Limiter) Sweep() { d.sweep() }
