package clientaddr_test

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/ratelimit-go/ratelimit/clientaddr"
)

// Code in front of the limiter knows the address, and a limiter decides by it.
func Example() {
	ctx := clientaddr.NewContext(context.Background(), netip.MustParseAddr("::ffff:192.0.2.1"))
	fmt.Println(clientaddr.FromContext(ctx))

	_, known := clientaddr.FromContext(context.Background())
	fmt.Println(known)
	// Output:
	// 192.0.2.1 true
	// false
}
