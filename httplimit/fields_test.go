package httplimit

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheFieldsOfAnAnswerAreItsOwnAndStay(t *testing.T) {
	const answers = 5 * valueSupply // more than one supply has
	var from supply
	long := strings.Repeat("l", 2*textSupply)
	headers := make([]http.Header, answers)
	for i := range headers {
		f := fields{}
		f.number("A", int64(i))
		f.add("B", "constant")
		if i%7 == 0 {
			f.string(long)
			f.end("Long")
		}
		f.number("C", int64(-i))
		headers[i] = make(http.Header)
		f.set(headers[i], &from)
		if i%2 == 0 { // as a handler may
			headers[i]["B"][0] = "changed"
			headers[i]["C"] = append(headers[i]["C"], "appended")
		}
	}
	for i, got := range headers {
		want := http.Header{"A": {strconv.Itoa(i)}, "B": {"constant"}, "C": {strconv.Itoa(-i)}}
		if i%7 == 0 {
			want["Long"] = []string{long}
		}
		if i%2 == 0 {
			want["B"][0], want["C"] = "changed", append(want["C"], "appended")
		}
		require.Equal(t, want, got)
	}
}

func TestAnAnswerMayHaveMoreFieldsThanUsual(t *testing.T) {
	f, want := fields{}, http.Header{}
	for i := range 3 * inlineFields {
		name := "Field-" + strconv.Itoa(i)
		f.number(name, int64(i))
		want[name] = []string{strconv.Itoa(i)}
	}
	got := http.Header{}
	f.set(got, new(supply))
	require.Equal(t, want, got)
}
