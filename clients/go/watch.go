package agentrouting

import (
	"context"
	"iter"
	"time"

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
	chosen := callSettings{awayTimeout: DefaultAwayTimeout}
	for _, option := range options {
		option(&chosen)
	}
	return func(yield func(*v1.Change, error) bool) {
		for response, err := range c.watchMessages(ctx, request, chosen.awayTimeout) {
			if change := response.GetChange(); (change != nil || err != nil) && !yield(change, err) {
				return
			}
		}
	}
}

// watchMessages is WatchSession with everything that a watch brings, but for heartbeats.
func (c *Client) watchMessages(ctx context.Context, request *v1.WatchSessionRequest, awayTimeout time.Duration) iter.Seq2[*v1.WatchSessionResponse, error] {
	return func(yield func(*v1.WatchSessionResponse, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		// Closing the client ends the watch.
		defer context.AfterFunc(c.closing, cancel)()
		watch := &watch{
			reconnecting: newReconnecting(c, "WatchSession", request.GetSessionId(), awayTimeout),
			request:      proto.Clone(request).(*v1.WatchSessionRequest),
		}
		for {
			isOver, err := watch.oneConnection(ctx, yield)
			if isOver || ctx.Err() != nil {
				return
			}
			wait, failure := watch.waitAfter(ctx, err, "session_id", watch.request.GetSessionId(),
				"after_revision", watch.request.GetAfterRevision())
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

// watch is one watch of one session, with the revision up to which the caller has seen everything.
type watch struct {
	*reconnecting
	request *v1.WatchSessionRequest
}

// oneConnection yields the messages of one connection. It returns whether the caller left the loop,
// or why the connection ended.
func (w *watch) oneConnection(ctx context.Context, yield func(*v1.WatchSessionResponse, error) bool) (bool, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w.call.attempts++
	stub, release, err := w.client.streams.take()
	if err != nil {
		return false, err
	}
	defer release()
	stream, err := stub.WatchSession(w.client.outgoing(ctx), w.request)
	if err != nil {
		return false, err
	}
	for isFirst := true; ; isFirst = false {
		response, err := stream.Recv()
		if err != nil {
			return false, err
		}
		w.alive()
		if change := response.GetChange(); change != nil {
			w.request.AfterRevision = proto.Int64(change.GetRevision())
		}
		beat := response.GetHeartbeat()
		if beat == nil {
			if !yield(response, nil) {
				return true, nil
			}
			continue
		}
		// The first heartbeat carries the session's revision, not the stream's position. The caller starts
		// there only if it did not ask for earlier changes.
		if !isFirst || w.request.AfterRevision == nil {
			w.request.AfterRevision = proto.Int64(beat.GetRevision())
		}
	}
}
