package httplimit

import (
	"net/http"
	"strings"
)

// inlineFields is the largest number of fields in a response of this package: three legacy ones, two of
// draft 10, Retry-After, Cache-Control and Content-Type.
const inlineFields = 8

// fields collects the header fields of a response. Their values become parts of one text, and their
// slices parts of one array, both cut from a supply. All of it except the text is on the stack,
// where writing needs no write barrier.
type fields struct {
	text []byte
	n    int
	left numeral     // number of requests left
	wait numeral     // number of seconds
	only *policyText // the texts of the policy, if there is exactly one
	list [inlineFields]field
	more []field // fields that do not fit into list
}

// numeral is the place of a number in a text, because copying it is cheaper than formatting it
// again.
type numeral struct {
	n          int64
	start, end int // equal if there is none
}

// repeated appends n, and copies it from m if that is the same number.
func (f *fields) repeated(m *numeral, n int64) {
	if m.n == n && m.start < m.end {
		f.text = append(f.text, f.text[m.start:m.end]...)
		return
	}
	m.n, m.start = n, len(f.text)
	f.integer(n)
	m.end = len(f.text)
}

// field is a name in canonical form with its value, or the end of that value in the text. The value
// begins where the previous one ends.
type field struct {
	name  string
	value string // "" if it is in the text
	end   int
}

// begin returns where the value that is being appended to text begins.
func (f *fields) begin() int {
	if f.n == 0 {
		return 0
	}
	return f.at(f.n - 1).end
}

// at returns field i.
func (f *fields) at(i int) *field {
	if i < inlineFields {
		return &f.list[i]
	}
	return &f.more[i-inlineFields]
}

// end ends the value of the field called name. A field without a value is removed, because if another
// middleware has set it, it describes another limit.
func (f *fields) end(name string) { f.add(name, "") }

// add adds the field name with a known value, or "" if the value is in the text.
func (f *fields) add(name, value string) {
	if f.n++; f.n > inlineFields {
		f.more = append(f.more, field{})
	}
	*f.at(f.n - 1) = field{name, value, len(f.text)}
}

// set puts all fields into h and replaces fields with the same names.
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

// A long-lived response, such as a connection that was taken over, can keep a supply alive. These
// sizes bound its memory to 1 KiB of values, and the 2 KiB of text that they point to.
const (
	textSupply  = 2048 // bytes, for about 40 responses
	valueSupply = 64   // for about 12 responses
)

// supply has header values for several responses in one allocation. Nothing in it is used twice:
// the values belong to the response, and a handler may change them.
type supply struct {
	texts strings.Builder
	slots []string
}

// text returns b as a string.
func (s *supply) text(b []byte) string {
	if s.texts.Cap()-s.texts.Len() < len(b) {
		s.texts.Reset()
		s.texts.Grow(max(textSupply, len(b)))
	}
	start := s.texts.Len()
	s.texts.Write(b)
	return s.texts.String()[start:]
}

// values returns n empty values.
func (s *supply) values(n int) []string {
	if len(s.slots) < n {
		s.slots = make([]string, valueSupply)
	}
	values := s.slots[:n]
	s.slots = s.slots[n:]
	return values
}
