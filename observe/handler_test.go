package observe_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/observe"
)

func get(h http.Handler, method string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, "/", nil))
	return w
}

func TestHandlerShowsWhatThereIs(t *testing.T) {
	counters, top, exact := observe.NewCounters("api"), newTopKeys(t, 0), newExact(t, ratelimit.PerDay(1), 100)
	limiter := observed(t, inMemory(t, "fixed_window", ratelimit.PerDay(1)), counters, top, exact)
	for i := range 150 {
		for range 2 {
			_, err := limiter.Allow(t.Context(), fmt.Sprint("user:", i))
			require.NoError(t, err)
		}
	}
	w := get(observe.Handler(observe.Page{
		Counters: []*observe.Counters{counters, nil},
		TopKeys:  map[string]*observe.TopKeys{"api": top, "none": nil},
		Exact:    map[string]*observe.Exact{"api": exact, "none": nil},
	}), http.MethodGet)
	require.Equal(t, http.StatusOK, w.Code)
	require.Equal(t, "application/json", w.Header().Get("Content-Type"))
	require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
	var got struct {
		Counters []observe.Snapshot           `json:"counters"`
		TopKeys  map[string]observe.Top       `json:"top_keys"`
		Exact    map[string]observe.Exactness `json:"exact"`
	}
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &got))
	require.Equal(t, []observe.Snapshot{counters.Snapshot()}, got.Counters)
	require.Len(t, got.TopKeys, 1)
	require.Len(t, got.TopKeys["api"].Keys, 100)
	require.Equal(t, map[string]observe.Exactness{"api": {Decisions: 300, Admitted: 150, Denied: 150}}, got.Exact)
}

func TestHandlerAnswersGetAndHeadOnly(t *testing.T) {
	h := observe.Handler(observe.Page{})
	require.JSONEq(t, `{"counters":[],"top_keys":{},"exact":{}}`, get(h, http.MethodGet).Body.String())
	require.Equal(t, http.StatusOK, get(h, http.MethodHead).Code)
	for _, method := range []string{http.MethodPost, http.MethodDelete, http.MethodOptions} {
		w := get(h, method)
		require.Equal(t, http.StatusMethodNotAllowed, w.Code)
		require.Equal(t, "GET, HEAD", w.Header().Get("Allow"))
	}
}

func TestWhatIsEmptyIsNotNullInJSON(t *testing.T) {
	text, err := json.Marshal([]any{observe.NewCounters("api").Snapshot(), newTopKeys(t, 0).Top(1)})
	require.NoError(t, err)
	require.NotContains(t, string(text), "null")
}
