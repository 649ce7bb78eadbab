package httplimit

import (
	"net/http"
	"strings"
)

// usualFields is how many fields an answer of this package has at most: three legacy ones, four
// of draft 6, one of draft 7, Retry-After, Cache-Control and Content-Type.
const usualFields = 11

// fields collects the header fields of an answer. Their values become parts of one
// text, and their slices of one array, both cut from a supply. They are kept on the
// stack, where writing them needs no write barrier, all but the text.
type fields struct {
	text []byte
	n    int
	left numeral     // how many requests
	wait numeral     // how many seconds
	only *policyText // of the policy, if there is one
	list [usualFields]field
	more []field // beyond the list
}

// numeral is where a number stands in a text already: copying it is cheaper than to
// format it again.
type numeral struct {
	n          int64
	start, end int // none if these are the same
}

// repeated appends n, which m may be.
func (f *fields) repeated(m *numeral, n int64) {
	if m.n == n && m.start < m.end {
		f.text = append(f.text, f.text[m.start:m.end]...)
		return
	}
	m.n, m.start = n, len(f.text)
	f.integer(n)
	m.end = len(f.text)
}

// field is a name in canonical form, and its value, or where that ends in the text,
// which begins where the last one ends.
type field struct {
	name  string
	value string // "" if it is in the text
	end   int
}

// begin is where the field begins whose value is being appended to text.
func (f *fields) begin() int {
	if f.n == 0 {
		return 0
	}
	return f.at(f.n - 1).end
}

// at is field i.
func (f *fields) at(i int) *field {
	if i < usualFields {
		return &f.list[i]
	}
	return &f.more[i-usualFields]
}

// end ends the value of the field name. A field without a value is removed: what another middleware has
// said in it is of another limit.
func (f *fields) end(name string) { f.add(name, "") }

// add adds the field name with a value that is known, or "" if that is in the text.
func (f *fields) add(name, value string) {
	if f.n++; f.n > usualFields {
		f.more = append(f.more, field{})
	}
	*f.at(f.n - 1) = field{name, value, len(f.text)}
}

// set puts all into h, in place of fields of the same names.
func (f *fields) set(h http.Header, from *supply) {
	if f.n == 0 {
		return
	}
	text, start := from.text(f.text), 0
	values := from.values(f.n)
	for i := range values {
		field := f.at(i)
		if values[i] = field.value; values[i] == "" {
			values[i] = text[start:field.end]
		}
		start = field.end
		if values[i] == "" {
			delete(h, field.name)
			continue
		}
		h[field.name] = values[i : i+1 : i+1] // full, so that appending to it copies it
	}
}

// The size of a supply is how much memory an answer can hold that outlives others, such
// as that of a connection taken over: 1 KiB of values, and texts of 2 KiB that these
// point to.
const (
	textSupply  = 2048 // bytes, of some 40 answers
	valueSupply = 64   // of some 12 answers
)

// supply has header values for several answers in one allocation. Nothing of it is given
// out twice: what an answer gets belongs to it, and a handler may change it.
type supply struct {
	texts strings.Builder
	slots []string
}

// text is b as a string.
func (s *supply) text(b []byte) string {
	if s.texts.Cap()-s.texts.Len() < len(b) {
		s.texts.Reset()
		s.texts.Grow(max(textSupply, len(b)))
	}
	start := s.texts.Len()
	s.texts.Write(b)
	return s.texts.String()[start:]
}

// values are n empty values.
func (s *supply) values(n int) []string {
	if len(s.slots) < n {
		s.slots = make([]string, valueSupply)
	}
	values := s.slots[:n]
	s.slots = s.slots[n:]
	return values
}
