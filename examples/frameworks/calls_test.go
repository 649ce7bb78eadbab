package frameworks_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/retrypolicy"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// tooMany is a denial as an error, which says when to come back.
type tooMany struct{ after time.Duration }

func (m tooMany) Error() string { return "too many" }

// failsafe-go tries again when the limiter says so.
func Example_failsafe() {
	ctx := context.Background()
	limit := ratelimit.Limit{Rate: 20, Period: time.Second, Burst: 1}
	limiter := ratelimit.Must(ratelimit.NewTokenBucket(ratelimit.Must(memstore.New()), limit))
	retry := retrypolicy.NewBuilder[string]().HandleErrorTypes(tooMany{}).WithMaxRetries(3).
		WithDelayFunc(func(e failsafe.ExecutionAttempt[string]) time.Duration {
			var denied tooMany
			errors.As(e.LastError(), &denied)
			return denied.after
		}).Build()
	call := func() {
		answer, err := failsafe.With(retry).Get(func() (string, error) {
			r, err := limiter.Allow(ctx, "supplier")
			if err != nil {
				return "", err
			}
			if r.RetryAfter == ratelimit.Never {
				return "", ratelimit.ErrNever
			}
			if !r.Allowed {
				return "", tooMany{r.RetryAfter}
			}
			return "done", nil
		})
		fmt.Println(answer, err)
	}
	call()
	call() // denied first, and 50 ms later admitted
	// Output:
	// done <nil>
	// done <nil>
}

// limit is an interceptor of connect.
func limit(limiter ratelimit.Limiter) connect.UnaryInterceptorFunc {
	return func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			r, err := limiter.Allow(ctx, req.Header().Get("X-User")) // set by an earlier authentication check
			if err != nil {
				return nil, connect.NewError(connect.CodeUnavailable, errors.New("no decision"))
			}
			if r.Allowed {
				return next(ctx, req)
			}
			denied := connect.NewError(connect.CodeResourceExhausted, errors.New("too many calls"))
			if r.RetryAfter != ratelimit.Never {
				if d, err := connect.NewErrorDetail(&errdetails.RetryInfo{RetryDelay: durationpb.New(r.RetryAfter)}); err == nil {
					denied.AddDetail(d)
				}
			}
			return nil, denied
		}
	}
}

func TestAConnectClientIsToldWhenToComeBack(t *testing.T) {
	denies := ratelimittest.Static(ratelimit.Result{RetryAfter: 90 * time.Second}, nil)
	mux := http.NewServeMux()
	mux.Handle("/a.B/C", connect.NewUnaryHandler("/a.B/C",
		func(context.Context, *connect.Request[emptypb.Empty]) (*connect.Response[emptypb.Empty], error) {
			t.Error("it was called")
			return connect.NewResponse(new(emptypb.Empty)), nil
		}, connect.WithInterceptors(limit(denies))))
	server := httptest.NewServer(mux)
	defer server.Close()

	req := connect.NewRequest(new(emptypb.Empty))
	req.Header().Set("X-User", "ann")
	_, err := connect.NewClient[emptypb.Empty, emptypb.Empty](http.DefaultClient, server.URL+"/a.B/C").CallUnary(t.Context(), req)
	var told *connect.Error
	if !errors.As(err, &told) || told.Code() != connect.CodeResourceExhausted || len(told.Details()) != 1 {
		t.Fatalf("%v", err)
	}
	detail, err := told.Details()[0].Value()
	if err != nil {
		t.Fatal(err)
	}
	if info, ok := detail.(*errdetails.RetryInfo); !ok || info.GetRetryDelay().AsDuration() != 90*time.Second {
		t.Errorf("%v", detail)
	}
}

// limitedTool is a tool of an MCP server that users can call so often.
func limitedTool(limiter ratelimit.Limiter, user string, tool mcp.ToolHandler) mcp.ToolHandler {
	return func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		r, err := limiter.Allow(ctx, user)
		if err != nil || r.Allowed {
			return tool(ctx, req) // if there is no decision, call the tool anyway
		}
		text := "Too many calls. "
		if r.RetryAfter < ratelimit.Never {
			text += "Call this tool again in " + (r.RetryAfter + time.Second - 1).Truncate(time.Second).String() + "."
		}
		return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil
	}
}

func Example_mcp() {
	denies := ratelimittest.Static(ratelimit.Result{RetryAfter: 90 * time.Second}, nil)
	tool := limitedTool(denies, "ann", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return new(mcp.CallToolResult), nil
	})
	result, err := tool(context.Background(), nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.IsError, result.Content[0].(*mcp.TextContent).Text)
	// Output: true Too many calls. Call this tool again in 1m30s.
}
