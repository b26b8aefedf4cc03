package agentrouting

import (
	"context"
	"iter"

	"google.golang.org/protobuf/proto"

	v1 "example.com/agent-routing/go/v1"
)

// ListWaiting returns one page of what waits in the inbox of an agent of kind human, the longest waiting
// first. A page may be short while more follow.
func (c *Client) ListWaiting(ctx context.Context, request *v1.ListWaitingRequest, options ...CallOption) (*v1.ListWaitingResponse, error) {
	return invoke(ctx, c, "ListWaiting", request, c.stub.ListWaiting, options)
}

// AllWaiting iterates over everything that waits in the inbox of an agent of kind human; pages are
// fetched when needed. It ends with the first error.
func (c *Client) AllWaiting(ctx context.Context, request *v1.ListWaitingRequest, options ...CallOption) iter.Seq2[*v1.WaitingConversation, error] {
	return func(yield func(*v1.WaitingConversation, error) bool) {
		page := proto.Clone(request).(*v1.ListWaitingRequest)
		for {
			answer, err := c.ListWaiting(ctx, page, options...)
			if !overPage(answer.GetEntries(), err, yield) || answer.GetNextPageToken() == "" {
				return
			}
			page.PageToken = answer.GetNextPageToken()
		}
	}
}

// ClaimTurn claims a conversation for the person who calls. While another person has claimed it, the
// error is a ClaimedError, unless take_over is set. claimant is required without sign-in. A missing
// request_id is generated.
func (c *Client) ClaimTurn(ctx context.Context, request *v1.ClaimTurnRequest, options ...CallOption) (*v1.ClaimTurnResponse, error) {
	if request.GetRequestId() == "" {
		request = proto.Clone(request).(*v1.ClaimTurnRequest)
		request.RequestId = NewUUID7()
	}
	return invoke(ctx, c, "ClaimTurn", request, c.stub.ClaimTurn, options)
}

// ReleaseTurn gives a claim up; the conversation waits again. claimant is required without sign-in. A
// missing request_id is generated.
func (c *Client) ReleaseTurn(ctx context.Context, request *v1.ReleaseTurnRequest, options ...CallOption) (*v1.ReleaseTurnResponse, error) {
	if request.GetRequestId() == "" {
		request = proto.Clone(request).(*v1.ReleaseTurnRequest)
		request.RequestId = NewUUID7()
	}
	return invoke(ctx, c, "ReleaseTurn", request, c.stub.ReleaseTurn, options)
}

// Say says something to the user without ending the turn: request.Say, during the open request_id; a
// person without one names task_id. A missing message_id is generated, so that a repeat says nothing
// twice. The status of the answer is REQUEST_NOT_OPEN if the turn is over, or the conversation is with
// others.
func (c *Client) Say(ctx context.Context, request *v1.KeepTurnRequest, options ...CallOption) (*v1.KeepTurnResponse, error) {
	if request.GetMessageId() == "" {
		request = proto.Clone(request).(*v1.KeepTurnRequest)
		request.MessageId = NewUUID7()
	}
	return c.KeepTurn(ctx, request, options...)
}

// AddNote notes something about a conversation for other people; users never get it. author is required
// without sign-in. A missing request_id is generated.
func (c *Client) AddNote(ctx context.Context, request *v1.AddNoteRequest, options ...CallOption) (*v1.AddNoteResponse, error) {
	if request.GetRequestId() == "" {
		request = proto.Clone(request).(*v1.AddNoteRequest)
		request.RequestId = NewUUID7()
	}
	return invoke(ctx, c, "AddNote", request, c.stub.AddNote, options)
}

// ListNotes returns the latest notes about a conversation, at most 32, the oldest first.
func (c *Client) ListNotes(ctx context.Context, request *v1.ListNotesRequest, options ...CallOption) (*v1.ListNotesResponse, error) {
	return invoke(ctx, c, "ListNotes", request, c.stub.ListNotes, options)
}
