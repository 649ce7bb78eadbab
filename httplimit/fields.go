package httplimit

import "net/http"

// maxFields is how many fields an answer has at most: three legacy ones, four of
// draft 6, one of draft 7, Retry-After, Cache-Control, and two of a body.
const maxFields = 12

// fields collects the header fields of an answer. Their values become parts of one
// text, and their slices of one array, so that all together cost two allocations. They
// belong to the one answer: a handler may change them.
type fields struct {
	text []byte
	n    int
	list [maxFields]field
}

// field is one of fields: a name in canonical form, and its value or where that stands
// in the text.
type field struct {
	name       string
	value      string
	start, end int
}

// add adds a field with a value that is known.
func (f *fields) add(name, value string) {
	f.list[f.n] = field{name: name, value: value}
	f.n++
}

// begin begins a field whose value will be appended to text. [fields.end] ends it.
func (f *fields) begin(name string) {
	f.list[f.n] = field{name: name, start: len(f.text)}
}

// end ends what begin began. A field that has no value is none.
func (f *fields) end() {
	if last := &f.list[f.n]; len(f.text) > last.start {
		last.end = len(f.text)
		f.n++
	}
}

// set puts all into h, in place of what has the same names.
func (f *fields) set(h http.Header) {
	if f.n == 0 {
		return
	}
	text := string(f.text)
	values := make([]string, f.n)
	for i := range values {
		if field := &f.list[i]; field.end > 0 {
			values[i] = text[field.start:field.end]
		} else {
			values[i] = field.value
		}
		h[f.list[i].name] = values[i : i+1 : i+1] // full, so that appending to it copies it
	}
}

// reset makes f empty. It keeps the room of its text.
func (f *fields) reset() {
	clear(f.list[:f.n])
	f.text, f.n = f.text[:0], 0
}
