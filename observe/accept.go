package observe

import (
	"mime"
	"strconv"
	"strings"
)

// prefersHTML reports whether the fields of Accept (RFC 9110, section 12.5.1) prefer text/html to
// application/json. The most specific range that matches a type determines its quality.
func prefersHTML(accept []string) bool {
	var html, json quality
	for _, text := range strings.Split(strings.Join(accept, ","), ",") {
		mediaRange, parameters, err := mime.ParseMediaType(text)
		if err != nil {
			continue
		}
		q := 1.0
		if text, ok := parameters["q"]; ok {
			if q, err = strconv.ParseFloat(text, 64); err != nil || !(q >= 0 && q <= 1) {
				continue
			}
		}
		html.match(mediaRange, "text", "html", q)
		json.match(mediaRange, "application", "json", q)
	}
	return html.q > json.q
}

// quality is the quality of a type, from the most specific range so far.
type quality struct {
	q     float64 // 0 to 1
	exact int     // 1 for */*, 2 for kind/*, 3 for the type itself
}

func (v *quality) match(mediaRange, kind, subtype string, q float64) {
	exact := 0
	switch mediaRange {
	case kind + "/" + subtype:
		exact = 3
	case kind + "/*":
		exact = 2
	case "*/*":
		exact = 1
	}
	if exact > v.exact {
		*v = quality{q, exact}
	}
}
