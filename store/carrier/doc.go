// Package carrier sends the calls of a store to its server: many calls in one round trip, and no more of them than the
// server answers in time. It is for authors of stores of a remote server. Package redisstore has one carrier for each
// Redis server. A [Carrier] knows neither the server nor the client's library: the store gives it functions
// ([Config]).
//
// # Who calls what
//
// A store makes a carrier for each server with [New]. For each call, it then does this:
//
//  1. [Carrier.Begin] takes the time: the call ends by its context's deadline or the store's timeout, whichever is nearer.
//  2. [Carrier.Admit] admits the call, or refuses it if it could not be served in time. It comes first, before the
//     store builds a command, so that a refusal costs little.
//  3. [Carrier.Do] waits until the call has its reply. Several calls go together: one of the carrier's goroutines calls
//     [Config.Send] with a [Trip] of them, and Send makes the round trip. While a connection is free and nobody waits, a
//     call goes on its caller's goroutine instead, by [Config.Alone].
//  4. After a [Failure], [Budget.Again] reports whether to call Do once more, and [Budget.Fail] returns the error for the
//     caller.
//  5. [Budget.Leave] ends the call.
//
// The carrier calls the functions of its Config. [Config.Means] returns what an error means, for example that the server
// has answered. The other functions are optional. They return how many connections the client has, find out why
// it makes none, and refund what was charged for a caller that has left.
//
// # How many calls go
//
// The carrier measures how long round trips take, and uses at most 16 connections. Near the server, two round trips are
// in progress at the same time, and more if the server is far away. It learns how many calls the server answers without
// a queue of its own, as TCP learns the size of its window, and sends no more than that. Further calls wait in the
// process. Calls that would wait for longer than a quarter of the timeout are refused.
//
// # Promises
//
// Each has a test in this package, on a simulated clock:
//
//   - Goodput does not collapse: past the server's capacity, as many calls are served as at its peak (TestGoodputStaysPastCapacity).
//   - A call returns by its deadline or the timeout, at most 8 ms later, whatever the server does
//     (TestNoCallIsLaterThanItsDeadline). A call that was sent ends with [store.ErrTimeout] then, or with
//     the error of its own context.
//   - A refused call was not sent, and its error is [store.ErrOverloaded]
//     (TestRefusedCallersGetErrOverloaded). If a round trip takes longer than the call has left, the error is
//     [store.ErrTimeout], or that of the call's own context. If the server has been silent for a second, or for
//     twice the timeout if that is longer, it is [store.ErrUnavailable]
//     (TestAServerThatDoesNotAnswerIsNotCalledOverloaded), unless nobody has asked it
//     (TestTheFirstBurstAfterARestIsNotCalledAnOutage).
//   - Calls that make room for others ([Budget].Ahead) are neither refused nor late past the server's capacity, even if
//     several of them follow each call (TestCallsForSeveralLimitsAreRefundedPastCapacity).
//   - Many callers share round trips (TestCallsShareTrips).
//   - A call is sent at most once, unless it is certain that it did not run. After any other class than
//     [store.ErrTimeout], nothing ran (TestNothingRunsTwice).
//   - Callers that leave cost the others nothing (TestACallerThatLeavesDoesNotCostOthers). What ran for them is refunded
//     (TestCallsMadeForACallerThatLeftAreRefundedOnce).
//   - If Send or Means panics, its callers panic too, and the carrier keeps working (TestAPanicOfSendReachesItsCallers,
//     TestAPanicOfMeansReachesTheCallersOfATrip).
//   - Soon after the last call, no goroutine is left (TestNoGoroutineIsLeft).
package carrier
