package storetest

import (
	"math"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// What the two buckets have in common.

// tenYears is the longest Period.
const tenYears = 10 * 365 * 24 * time.Hour

// refillTooLong are limits whose buckets take more than 100 years to refill.
var refillTooLong = []ratelimit.Limit{
	{Rate: 1, Period: tenYears, Burst: 11},
	{Rate: 1, Period: tenYears / 10, Burst: math.MaxInt32},
	{Rate: 2, Period: tenYears / 10, Burst: 1 << 20},
}

// bucketBound is burst + rate·(x+1)/period.
func bucketBound(l limit, x int64) int64 { return l.burst + refilled(l, x+1) }

// bucketDue is burst + rate·us/period.
func bucketDue(l limit, us int64) int64 { return l.burst + refilled(l, us) }

// threePer100s drains an event in 33,333,333 1/3 µs. After 33,333,333 of them the
// smallest part that there is remains: a 100,000,000th of an event.
var threePer100s = ratelimit.Limit{Rate: 3, Period: 100 * second}

var theLastPart = story{"the smallest part of an event holds its place, and can be given back", threePer100s, func(k *tiers) {
	k.at(0).take(1)
	charged := k.at(33_333_333 * microsecond).take(1)
	k.refund(charged, 1)
	k.has(2)
	k.resetsAfter(microsecond)
	k.refund(charged, 1)
	k.has(3)
	k.resetsAfter(0)
}}

var theLastPartIsWhole = story{"the smallest part of an event is a whole one in another period", threePer100s, func(k *tiers) {
	k.at(0).take(1)
	k.at(33_333_333 * microsecond).take(1)
	k.to(ratelimit.Limit{Rate: 3, Period: 300 * second}).resetsAfter(200 * second)
}}

var refundOfWhatDrainedFaster = story{"what has drained under a faster limit is not given back", ratelimit.PerDay(10), func(k *tiers) {
	charged := k.at(0).take(10)
	k.to(tenPerMinute).at(60 * minute).take(10)
	k.refund(charged, 10)
	k.has(0)
}}
