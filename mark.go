package ratelimit

// Mark is a note that a wrapper leaves on its Results ([Result.WithMark]), so that it knows
// them again in its Refund ([Result.Unmark]). One Mark serves all Results with the same note.
type Mark struct {
	owner  any
	source Source
	note   any
	under  *Mark // what the Result had before
}

// NewMark returns the mark of owner, a pointer to a wrapper. [Result.Source] is then source, or
// as it was for SourceStore. note is for owner.
func NewMark(owner any, source Source, note any) *Mark {
	source = min(source, SourceLease) // the last one there is
	return &Mark{owner: owner, source: source, note: note}
}

// WithMark returns r with the mark m on it, above those that it has. It allocates only if r
// has one.
func (r Result) WithMark(m *Mark) Result {
	if r.mark != nil && m != nil {
		above := *m
		above.under = r.mark
		m = &above
	}
	if m != nil {
		r.mark = m
	}
	return r
}

// Unmark returns the note that owner left on r, and r without it, for the limiter inside. ok is
// false if there is none.
func (r Result) Unmark(owner any) (under Result, note any, ok bool) {
	for m := r.mark; m != nil; m = m.under {
		if m.owner != nil && m.owner == owner {
			r.mark = m.under
			return r, m.note, true
		}
	}
	return r, nil, false
}
