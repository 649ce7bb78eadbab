// Package observe shows the decisions of limiters. [Around] notifies observers of the decisions
// that callers get, and the option [ratelimit.WithObserver] notifies them of the decisions of a
// single limit:
//
//	counters := observe.NewCounters("api")
//	watched, err := observe.Around(limiter, counters)
//
// The observers are:
//
//   - [Counters], which you always want: they count admissions and denials by their source, and
//     errors of the store.
//   - [TopKeys], to find the clients that are denied most.
//   - [Logger], to log when something begins or ends.
//   - [Near], to warn users who have used most of a limit.
//   - [Exact], to measure the error of an algorithm's estimate on real traffic.
//
// [Handler] serves Counters, TopKeys and Exact, as a page or as JSON. The memory of the observers is
// bounded, whatever keys there are. None of them starts a goroutine or needs to be closed.
package observe
