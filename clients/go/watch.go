package agentrouting

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	v1 "example.com/agent-routing/go/v1"
)

// DefaultAwayTimeout is how long the service may be away before a watch ends: longer than a restart
// or an upgrade. No user is waiting.
const DefaultAwayTimeout = 60 * time.Second

// WatchSession iterates over a session's changes as they happen: each exactly once and in order,
// over any number of connections. It ends with ctx, with the loop, with a refusal, or when the
// service has been away for too long. The error is its last value; there is none if ctx ended it.
//
//	for change, err := range client.WatchSession(ctx, &agentroutingv1.WatchSessionRequest{SessionId: "chat-42"}) {
//
// Without after_revision the watch yields new changes only.
func (c *Client) WatchSession(ctx context.Context, request *v1.WatchSessionRequest, options ...CallOption) iter.Seq2[*v1.Change, error] {
	return func(yield func(*v1.Change, error) bool) {
		chosen := callSettings{awayTimeout: DefaultAwayTimeout}
		for _, option := range options {
			option(&chosen)
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		// Closing the client ends the watch.
		defer context.AfterFunc(c.closing, cancel)()
		watch := &watch{
			client: c, call: &call{client: c, method: "WatchSession", deadline: time.Now().AddDate(1, 0, 0)},
			request: proto.Clone(request).(*v1.WatchSessionRequest), awayTimeout: chosen.awayTimeout,
		}
		for {
			isOver, err := watch.oneConnection(ctx, yield)
			if isOver || ctx.Err() != nil {
				return
			}
			wait, failure := watch.waitAfter(ctx, err)
			if failure != nil {
				yield(nil, failure)
				return
			}
			if pause(ctx, c.closing, wait) != nil {
				return
			}
		}
	}
}

// watch is one watch of one session: the revision up to which the caller has seen everything, and
// since when the service is away.
type watch struct {
	client      *Client
	call        *call
	request     *v1.WatchSessionRequest
	awayTimeout time.Duration
	awaySince   time.Time
}

// oneConnection yields the changes of one connection. It returns whether the caller left the loop,
// or why the connection ended.
func (w *watch) oneConnection(ctx context.Context, yield func(*v1.Change, error) bool) (bool, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w.call.attempts++
	stream, err := w.client.stub.WatchSession(w.client.outgoing(ctx), w.request)
	if err != nil {
		return false, err
	}
	for isFirst := true; ; isFirst = false {
		response, err := stream.Recv()
		if err != nil {
			return false, err
		}
		w.awaySince, w.call.attempts = time.Time{}, 0
		if change := response.GetChange(); change != nil {
			w.request.AfterRevision = proto.Int64(change.GetRevision())
			if !yield(change, nil) {
				return true, nil
			}
		} else if beat := response.GetHeartbeat(); beat != nil {
			// The first heartbeat carries the session's revision, not the stream's position. The caller
			// starts there only if it did not ask for earlier changes.
			if !isFirst || w.request.AfterRevision == nil {
				w.request.AfterRevision = proto.Int64(beat.GetRevision())
			}
		}
	}
}

// waitAfter returns how long to wait before the next connection, or the error that ends the watch:
// a refusal, or a service that has been away for too long.
func (w *watch) waitAfter(ctx context.Context, err error) (time.Duration, *RoutingError) {
	now := time.Now()
	if w.awaySince.IsZero() {
		w.awaySince = now
	}
	w.call.attempts = max(1, w.call.attempts)
	var failure *RoutingError
	if errors.Is(err, io.EOF) {
		// For example by a proxy that limits how long a connection may last.
		failure = &RoutingError{Code: codes.Unavailable, Method: w.call.method, SessionID: w.call.sessionID, Attempts: w.call.attempts,
			Message: "the service ends each watch as it begins; is there a proxy in between?"}
	} else {
		failure = callError(ctx, err, w.call)
	}
	wait := w.client.settings.retry.backoff(w.call.attempts) + failure.RetryAfter
	mayComeBack := failure.Code == codes.Unavailable || failure.Reason == Overloaded ||
		failure.Reason == WatchTooSlow || failure.isRefusedUnread()
	if !mayComeBack || now.Sub(w.awaySince)+wait > w.awayTimeout {
		return 0, failure
	}
	w.client.settings.logger.Debug("watch_resumed", "session_id", w.request.GetSessionId(),
		"after_revision", w.request.GetAfterRevision(), "wait", wait, "code", failure.Code.String())
	return wait, nil
}
