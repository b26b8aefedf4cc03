package agentrouting

import (
	"context"
	"iter"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	v1 "example.com/agent-routing/go/v1"
)

// ListApprovals returns one page of what waits for an approval in all sessions of the tenant, the oldest
// first. It needs the scope approve or admin.
func (c *Client) ListApprovals(ctx context.Context, request *v1.ListApprovalsRequest, options ...CallOption) (*v1.ListApprovalsResponse, error) {
	return invoke(ctx, c, "ListApprovals", request, c.stub.ListApprovals, options)
}

// AllApprovals iterates over everything that waits for an approval; pages are fetched when needed. It ends
// with the first error.
func (c *Client) AllApprovals(ctx context.Context, request *v1.ListApprovalsRequest, options ...CallOption) iter.Seq2[*v1.WaitingApproval, error] {
	return func(yield func(*v1.WaitingApproval, error) bool) {
		page := proto.Clone(request).(*v1.ListApprovalsRequest)
		for {
			answer, err := c.ListApprovals(ctx, page, options...)
			if !overPage(answer.GetApprovals(), err, yield) || answer.GetNextPageToken() == "" {
				return
			}
			page.PageToken = answer.GetNextPageToken()
		}
	}
}

// WatchApprovals iterates over what waits for an approval, and then over what begins, changes and ends:
// messages with waiting or ended. After a lost connection it connects again, and yields only what is
// different from what it yielded before. It ends as WatchSession does.
func (c *Client) WatchApprovals(ctx context.Context, request *v1.WatchApprovalsRequest, options ...CallOption) iter.Seq2[*v1.WatchApprovalsResponse, error] {
	chosen := callSettings{awayTimeout: DefaultAwayTimeout}
	for _, option := range options {
		option(&chosen)
	}
	return func(yield func(*v1.WatchApprovalsResponse, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		// Closing the client ends the watch.
		defer context.AfterFunc(c.closing, cancel)()
		watch := &approvalWatch{
			reconnecting: newReconnecting(c, "WatchApprovals", "", chosen.awayTimeout),
			request:      proto.Clone(request).(*v1.WatchApprovalsRequest),
			seen:         map[approvalKey]*v1.WaitingApproval{},
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

type approvalKey struct{ sessionID, requestID string }

// approvalWatch is one watch, with what the caller has seen of it.
type approvalWatch struct {
	*reconnecting
	request  *v1.WatchApprovalsRequest
	seen     map[approvalKey]*v1.WaitingApproval
	notAgain map[approvalKey]bool // seen before this connection, and not on it
}

// oneConnection yields what is new on one connection. It returns whether the caller left the loop, or why
// the connection ended.
func (w *approvalWatch) oneConnection(ctx context.Context, yield func(*v1.WatchApprovalsResponse, error) bool) (bool, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w.call.attempts++
	stub, release, err := w.client.streams.take()
	if err != nil {
		return false, err
	}
	defer release()
	stream, err := stub.WatchApprovals(w.client.outgoing(ctx), w.request)
	if err != nil {
		return false, err
	}
	w.notAgain = map[approvalKey]bool{}
	for key := range w.seen {
		w.notAgain[key] = true
	}
	for {
		response, err := stream.Recv()
		if err != nil {
			return false, err
		}
		w.alive()
		for _, news := range w.received(response) {
			if !yield(news, nil) {
				return true, nil
			}
		}
	}
}

// received records a message, and returns what is new in it for the caller.
func (w *approvalWatch) received(response *v1.WatchApprovalsResponse) []*v1.WatchApprovalsResponse {
	if waiting := response.GetWaiting(); waiting != nil {
		key := approvalKey{waiting.GetSessionId(), waiting.GetApproval().GetRequestId()}
		delete(w.notAgain, key)
		if proto.Equal(w.seen[key], waiting) {
			return nil
		}
		w.seen[key] = waiting
		return []*v1.WatchApprovalsResponse{response}
	}
	if ended := response.GetEnded(); ended != nil {
		key := approvalKey{ended.GetSessionId(), ended.GetRequestId()}
		if w.seen[key] == nil {
			return nil
		}
		delete(w.seen, key)
		return []*v1.WatchApprovalsResponse{response}
	}
	if !response.GetHeartbeat().GetIsComplete() {
		return nil
	}
	// What ended while there was no connection.
	var news []*v1.WatchApprovalsResponse
	for key := range w.notAgain {
		delete(w.seen, key)
		ended := &v1.EndedApproval{SessionId: key.sessionID, RequestId: key.requestID}
		news = append(news, &v1.WatchApprovalsResponse{Kind: &v1.WatchApprovalsResponse_Ended{Ended: ended}})
	}
	w.notAgain = nil
	slices.SortFunc(news, func(a, b *v1.WatchApprovalsResponse) int {
		return strings.Compare(a.GetEnded().GetSessionId(), b.GetEnded().GetSessionId())
	})
	return news
}
