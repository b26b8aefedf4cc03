package agentrouting_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	agentrouting "example.com/agent-routing/go"
	v1 "example.com/agent-routing/go/v1"
)

// routed routes messages at the same time; it counts those that were routed, decided by the client, and
// refused.
func routed(t *testing.T, client *agentrouting.Client, count int) (routed, degraded, failed int) {
	t.Helper()
	var calls sync.WaitGroup
	var mu sync.Mutex
	for range count {
		calls.Add(1)
		go func() {
			defer calls.Done()
			turn, err := client.Route(t.Context(), &v1.RouteRequest{UserId: "ana", Text: "hello"})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				failed++
			case turn.Degraded:
				degraded++
			default:
				routed++
			}
		}()
	}
	calls.Wait()
	return routed, degraded, failed
}

func TestACallBehindOthersIsNotDecidedByTheClient(t *testing.T) {
	var one sync.Mutex
	service := &scripted{route: func(context.Context, int) (*v1.RouteResponse, error) {
		one.Lock()
		defer one.Unlock()
		time.Sleep(20 * time.Millisecond)
		return nil, nil
	}}
	client := open(t, serve(t, service), agentrouting.WithTimeout(3*time.Second),
		agentrouting.WithFallback(agentrouting.Fallback{SupervisorID: "coordinator"}))
	routed, degraded, failed := routed(t, client, 300)
	if degraded > 0 || routed == 0 || failed == 0 {
		t.Error(routed, degraded, failed)
	}
	if state := client.Circuit().State; state != agentrouting.CircuitClosed {
		t.Error(state)
	}
}

func TestCallsBehindOthersInAnOutageAreDecidedAtOnce(t *testing.T) {
	service := &scripted{route: func(ctx context.Context, _ int) (*v1.RouteResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	client := open(t, serve(t, service), agentrouting.WithTimeout(time.Second),
		agentrouting.WithFallback(agentrouting.Fallback{SupervisorID: "coordinator"}))
	if routed, degraded, failed := routed(t, client, 200); degraded != 200 {
		t.Error(routed, degraded, failed)
	}
	if asked := len(service.asked()); asked > 110 {
		t.Error(asked)
	}
}

func TestWatchesLeaveOtherCallsAlone(t *testing.T) {
	var running sync.WaitGroup
	service := &scripted{watch: func(_ *v1.WatchSessionRequest, stream grpc.ServerStreamingServer[v1.WatchSessionResponse]) error {
		running.Done()
		<-stream.Context().Done()
		return nil
	}}
	client := open(t, serve(t, service, grpc.MaxConcurrentStreams(100)), agentrouting.WithTimeout(5*time.Second), agentrouting.WithoutFallback())
	ctx, cancel := context.WithCancel(t.Context())
	var watches sync.WaitGroup
	for range 150 {
		running.Add(1)
		watches.Add(1)
		go func() {
			defer watches.Done()
			for range client.WatchSession(ctx, &v1.WatchSessionRequest{SessionId: "chat-1"}) {
				t.Error("a change")
			}
		}()
	}
	running.Wait()
	if _, err := client.Route(t.Context(), &v1.RouteRequest{UserId: "ana", Text: "hello"}); err != nil {
		t.Error(err)
	}
	cancel()
	watches.Wait()
}
