// Package observe shows what limiters decide. [Around] tells its observers what callers are told,
// and the option [ratelimit.WithObserver] what a single limit decides:
//
//		counters := observe.NewCounters("api")
//		watched, err := observe.Around(limiter, counters)
//
//	  - [Counters] always: how many are admitted and denied, by what, and how the store fails.
//	  - [TopKeys] to find the clients that are denied most.
//	  - [Logger] for lines in the log where something begins or ends.
//	  - [Near] to warn those who have used most of a limit.
//	  - [Exact] to see how far off an algorithm's estimate is on real traffic.
//
// [Handler] shows them as JSON. What they keep is bounded, whatever keys there are, and none of them has a goroutine or anything to close.
package observe
