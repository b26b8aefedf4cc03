package agentrouting

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "example.com/agent-routing/go/v1"
)

// streamInFlightMax is how many messages of one stream wait for answers at a time; others wait to
// be sent. The service takes as many from a stream, so more would only wait there.
const streamInFlightMax = 128

var errStreamEnded = status.Error(codes.Unavailable, "the service ended the stream before it answered")

// RouteStream sends messages of many sessions over one stream. Any number of goroutines may use it;
// up to 128 of their messages are on the way at once, the others wait. Answers come when they are
// ready; those of one session come in the order of its messages. After a lost connection the stream
// connects again, and sends what was not answered again, in the same order and under the same
// request ids: nothing happens twice.
type RouteStream struct {
	client *Client
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}
	places chan struct{} // each message on its way takes one
	wake   chan struct{} // a message waits to be sent

	mu         sync.Mutex
	waiting    []*streamed // in the order of their first attempt
	connection int         // number of connections so far: a message is sent once on each
	breaks     int
}

// streamed is a message that waits for its answer.
type streamed struct {
	call    *call
	message *v1.RouteStreamRequest
	sentOn  int
	answer  chan streamedAnswer // has room for one
}

type streamedAnswer struct {
	response *v1.RouteResponse
	err      *RoutingError
}

// Stream opens a stream of messages. Its first message opens the connection. Close it when it is no
// longer needed; closing the client ends it too.
func (c *Client) Stream() *RouteStream {
	stream := &RouteStream{
		client: c,
		done:   make(chan struct{}),
		places: make(chan struct{}, streamInFlightMax),
		wake:   make(chan struct{}, 1),
	}
	stream.ctx, stream.cancel = context.WithCancel(c.closing)
	go stream.run()
	return stream
}

// Close ends the stream; messages that wait for their answers fail with ErrClosed.
func (s *RouteStream) Close() error {
	s.cancel()
	<-s.done
	return nil
}

// Route routes a user's message as Client.Route does, and waits for its answer. Replayed is always
// false: a stream does not show repeats.
func (s *RouteStream) Route(ctx context.Context, request *v1.RouteRequest, options ...CallOption) (*Turn, error) {
	return s.Send(ctx, request, options...).Wait()
}

// Pending is a message that waits for its answer.
type Pending struct {
	done chan struct{}
	turn *Turn
	err  error
}

// Wait returns the answer, as Client.Route does.
func (p *Pending) Wait() (*Turn, error) {
	<-p.done
	return p.turn, p.err
}

// Done is closed once there is an answer.
func (p *Pending) Done() <-chan struct{} { return p.done }

// Send sends a message and does not wait for its answer; messages are sent in the order of the
// calls. It waits for a place if the maximum number of messages is on the way. ctx applies until
// the answer.
func (s *RouteStream) Send(ctx context.Context, request *v1.RouteRequest, options ...CallOption) *Pending {
	var chosen callSettings
	for _, option := range options {
		option(&chosen)
	}
	request = withRequestID(request)
	call := s.client.newCall(ctx, "RouteStream", request)
	ctx, cancel := context.WithDeadline(ctx, call.deadline)
	pending := &Pending{done: make(chan struct{})}
	// Several answers in one message take both sides less time.
	message := &streamed{call: call, message: &v1.RouteStreamRequest{Route: request, TakesMore: true}}
	failure := s.add(ctx, message)
	go func() {
		defer close(pending.done)
		defer cancel()
		response, err := s.answer(ctx, message, failure)
		chosen.fill(CallInfo{Attempts: call.attempts})
		pending.turn, pending.err = s.client.turn(request, response, false, err)
	}()
	return pending
}

// answer waits for a message's answer, over all its attempts.
func (s *RouteStream) answer(ctx context.Context, message *streamed, err error) (*v1.RouteResponse, error) {
	for {
		if err != nil {
			return nil, err
		}
		answer, failure := s.await(ctx, message)
		if failure == nil {
			s.client.throttle.succeeded()
			s.client.circuit.succeeded()
			if s.client.known != nil {
				s.client.known.learn(message.message.GetRoute(), answer)
			}
			return answer, nil
		}
		answered := asError(failure)
		if answered == nil || answered.status == nil || message.sentOn < 0 {
			return nil, failure
		}
		// A message that the service could not take is sent again, after others.
		wait, again := message.call.waitAfter(answered)
		if !again || pause(ctx, s.ctx, wait) != nil {
			return nil, failure
		}
		err = s.add(ctx, message)
	}
}

// add queues a message as soon as there is a place for it.
func (s *RouteStream) add(ctx context.Context, message *streamed) error {
	select {
	case <-s.ctx.Done():
		return ErrClosed
	default:
	}
	if len(s.places) == cap(s.places) {
		s.client.queue.enter()
	}
	select {
	case s.places <- struct{}{}:
	case <-ctx.Done():
		return message.call.tooLate(ctx)
	case <-s.ctx.Done():
		return ErrClosed
	}
	s.mu.Lock()
	message.call.attempts++
	message.sentOn = 0
	message.answer = make(chan streamedAnswer, 1)
	s.waiting = append(s.waiting, message)
	s.mu.Unlock()
	s.wakeUp()
	return nil
}

func (s *RouteStream) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// await waits for the answer to an added message.
func (s *RouteStream) await(ctx context.Context, message *streamed) (*v1.RouteResponse, error) {
	select {
	case answer := <-message.answer:
		if answer.err != nil {
			return nil, answer.err
		}
		return answer.response, nil
	case <-ctx.Done():
		s.drop(message)
		return nil, message.call.tooLate(ctx)
	case <-s.done:
		return nil, ErrClosed
	}
}

// drop removes a message and frees its place. It returns whether the message was still waiting.
func (s *RouteStream) drop(message *streamed) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dropLocked(message)
}

func (s *RouteStream) dropLocked(message *streamed) bool {
	place := slices.Index(s.waiting, message)
	if place < 0 {
		return false
	}
	s.waiting = slices.Delete(s.waiting, place, place+1)
	<-s.places
	return true
}

// run keeps a connection while messages wait.
func (s *RouteStream) run() {
	defer close(s.done)
	for s.ctx.Err() == nil {
		if s.next(true) == nil {
			select {
			case <-s.wake:
			case <-s.ctx.Done():
			}
			continue
		}
		err := s.oneConnection()
		if s.ctx.Err() == nil {
			_ = pause(s.ctx, s.ctx, s.broken(err))
		}
	}
}

// next returns the first message that was not sent on this connection, or nil. isPeek: do not mark
// it as sent.
func (s *RouteStream) next(isPeek bool) *streamed {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, message := range s.waiting {
		if isPeek || message.sentOn != s.connection {
			if !isPeek {
				message.sentOn = s.connection
			}
			return message
		}
	}
	return nil
}

// oneConnection sends waiting messages and passes on answers, until the connection ends.
func (s *RouteStream) oneConnection() error {
	ctx, cancel := context.WithCancel(s.ctx)
	s.mu.Lock()
	s.connection++
	s.mu.Unlock()
	stub, release, err := s.client.streams.take()
	if err != nil {
		cancel()
		return err
	}
	defer release()
	stream, err := stub.RouteStream(s.client.outgoing(ctx))
	if err != nil {
		cancel()
		return err
	}
	var writing sync.WaitGroup
	writing.Add(1)
	// The end of reading also ends writing.
	defer writing.Wait()
	defer cancel()
	go func() {
		defer writing.Done()
		for ctx.Err() == nil {
			message := s.next(false)
			if message == nil {
				select {
				case <-s.wake:
				case <-ctx.Done():
				}
				continue
			}
			if stream.Send(message.message) != nil {
				// The reading side gets the reason.
				return
			}
		}
	}()
	for {
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		s.received(response)
		for _, more := range response.GetMore() {
			s.received(more)
		}
	}
}

// received passes an answer to the caller that waits for it.
func (s *RouteStream) received(response *v1.RouteStreamResponse) {
	s.mu.Lock()
	s.breaks = 0
	var found *streamed
	for _, message := range s.waiting {
		if message.call.requestID == response.GetRequestId() {
			found = message
			break
		}
	}
	s.mu.Unlock()
	if found == nil || !s.drop(found) {
		return
	}
	if route := response.GetRoute(); route != nil {
		found.answer <- streamedAnswer{response: route}
		return
	}
	refused := status.New(codes.Unknown, "the answer is of a kind that this client does not know; update it")
	if response.GetError() != nil {
		refused = status.FromProto(response.GetError())
	}
	found.answer <- streamedAnswer{err: callError(s.ctx, refused.Err(), found.call)}
}

// broken decides about the messages whose connection ended before their answers, and returns how
// long to wait before the next one. A message without attempts or time left, or whose stream was
// refused, gets the error.
func (s *RouteStream) broken(err error) time.Duration {
	if errors.Is(err, io.EOF) {
		err = errStreamEnded
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.breaks++
	retry := s.client.settings.retry
	wait := retry.backoff(s.breaks)
	isCalm := len(s.waiting) == 0 || s.client.throttle.mayRetry()
	for _, message := range slices.Clone(s.waiting) {
		failure := callError(s.ctx, err, message.call)
		wait = max(wait, failure.RetryAfter)
		again := isCalm && failure.wasUnanswered() && message.call.attempts < retry.AttemptsMax &&
			time.Now().Add(wait).Before(message.call.deadline)
		if again {
			message.call.attempts++
		} else if s.dropLocked(message) {
			// It has no attempts left: it is not sent again.
			message.sentOn = -1
			message.answer <- streamedAnswer{err: failure}
		}
	}
	return wait
}
