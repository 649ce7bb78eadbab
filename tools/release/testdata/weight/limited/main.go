package main

import (
	"fmt"
	"log"
	"net/http"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

func main() {
	store := ratelimit.Must(memstore.New()) // or redisstore.New(client), to share it
	limit := ratelimit.Must(httplimit.LimitByIP(store, "hello", ratelimit.PerMinute(5)))
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })
	log.Fatal(http.ListenAndServe("localhost:8080", limit(http.DefaultServeMux)))
}
