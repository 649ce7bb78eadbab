package httplimit

import "net/http"

// maxFields is how many fields an answer has at most: three legacy ones, four of draft 6,
// one of draft 7, Retry-After, Cache-Control and Content-Type.
const maxFields = 11

// fields collects the header fields of an answer. Their values become parts of one
// text, and their slices of one array, so that all together cost two allocations. They
// belong to the one answer: a handler may change them. They are
// kept on the stack, where writing them needs no write barrier, all but the text.
type fields struct {
	text []byte
	n    int
	list [maxFields]field
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
	return f.list[f.n-1].end
}

// end ends the value of the field name. A field that has no value is none.
func (f *fields) end(name string) {
	if len(f.text) > f.begin() {
		f.list[f.n] = field{name: name, end: len(f.text)}
		f.n++
	}
}

// add adds the field name with a value that is known and not empty.
func (f *fields) add(name, value string) {
	f.list[f.n] = field{name, value, len(f.text)}
	f.n++
}

// set puts all into h, in place of what has the same names.
func (f *fields) set(h http.Header) {
	if f.n == 0 {
		return
	}
	text, start := string(f.text), 0
	values := make([]string, f.n)
	for i := range values {
		field := &f.list[i]
		if values[i] = field.value; values[i] == "" {
			values[i] = text[start:field.end]
		}
		start = field.end
		h[field.name] = values[i : i+1 : i+1] // full, so that appending to it copies it
	}
}
