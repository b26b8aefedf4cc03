package agentrouting

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	v1 "example.com/agent-routing/go/v1"
)

// placesMax is how many calls, or long streams, share a connection: what every server allows, as
// HTTP/2 recommends. More would wait behind streams that do not end, or be refused.
const placesMax = 100

// queue bounds the calls of a client that are on their way; the others wait in it.
type queue struct {
	places chan struct{} // each call on its way takes one
	mu     sync.Mutex
	last   time.Time // when a call last began to wait
}

func newQueue() *queue { return &queue{places: make(chan struct{}, placesMax)} }

func (q *queue) enter() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.last = time.Now()
}

func (q *queue) usedSince(begin time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return !q.last.Before(begin)
}

// place waits until a call may be sent. The caller releases the place.
func (c *call) place(ctx context.Context, request any) (release func(), err error) {
	client := c.client
	release = func() { <-client.queue.places }
	select {
	case client.queue.places <- struct{}{}:
		return release, nil
	default:
	}
	client.queue.enter()
	select {
	case client.queue.places <- struct{}{}:
	case <-ctx.Done():
		return nil, c.tooLate(ctx)
	case <-client.closing.Done():
		return nil, ErrClosed
	}
	// The service may have gone meanwhile.
	if route, ok := request.(*v1.RouteRequest); ok && client.known != nil && client.known.mayDecide(route) &&
		client.circuit.report().State != CircuitClosed {
		release()
		return nil, client.away(route)
	}
	return release, nil
}

// away returns the error for a message that is not sent, because of an outage.
func (c *Client) away(request *v1.RouteRequest) *RoutingError {
	return &RoutingError{
		Code: codes.Unavailable, Method: "Route", RequestID: request.GetRequestId(), SessionID: request.GetSessionId(),
		Message: fmt.Sprintf("%q has not answered for a while; the client decided at once", c.target),
	}
}

// isAnswering tells whether the service has answered a call of this client within a call's time.
func (c *Client) isAnswering() bool { return c.circuit.answeredWithin(c.settings.timeout) }

// tooLate returns the error for a call whose deadline has passed. If it waited behind other calls,
// which the service answered, that is an overload and no outage.
func (c *call) tooLate(ctx context.Context) *RoutingError {
	late := c.deadlineError(ctx)
	isHeldUp := c.wasRefused || c.client.queue.usedSince(c.begun)
	if errors.Is(ctx.Err(), context.Canceled) || !isHeldUp || !c.client.isAnswering() {
		return late
	}
	late.Code, late.cause = codes.ResourceExhausted, nil
	late.Message = fmt.Sprintf("%q did not get to this call in its time, because of other calls; repeat it later with the same request_id", c.client.target)
	return late
}

// streamConns are the connections for watches, inboxes and message streams, which calls never wait
// behind. gRPC closes one that stays unused.
type streamConns struct {
	dial  func() (*grpc.ClientConn, error)
	mu    sync.Mutex
	conns []*grpc.ClientConn
	open  []int // the streams on each
}

// take returns a stub for a stream that stays open. The caller releases it when the stream has ended.
func (s *streamConns) take() (stub v1.RoutingServiceClient, release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	place := 0
	for place < len(s.open) && s.open[place] >= placesMax {
		place++
	}
	if place == len(s.open) {
		conn, err := s.dial()
		if err != nil {
			return nil, nil, fmt.Errorf("agentrouting: %w", err)
		}
		s.conns, s.open = append(s.conns, conn), append(s.open, 0)
	}
	s.open[place]++
	release = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.open[place]--
	}
	return v1.NewRoutingServiceClient(s.conns[place]), release, nil
}

func (s *streamConns) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	failures := make([]error, len(s.conns))
	for place, conn := range s.conns {
		failures[place] = conn.Close()
	}
	return errors.Join(failures...)
}
