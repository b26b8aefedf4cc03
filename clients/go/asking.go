package agentrouting

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "example.com/agent-routing/go/v1"
)

const (
	// DefaultAskWait is how long Ask waits without a deadline: longer than a person does, shorter than
	// the service's turn_timeout.
	DefaultAskWait = 5 * time.Minute
	// How long one watch of Ask lasts before it looks again.
	askWatch = 20 * time.Second
	// Turns that Ask reads: a message passes through far fewer agents.
	askTurns = 100
)

// Asked is the answer to a message.
type Asked struct {
	// Route is what Route returned.
	Route *Turn
	// Turns is what the agents did, in order; empty for a command.
	Turns []*v1.Turn
}

// Text returns everything that the user should see, with an empty line between two agents' texts.
func (a *Asked) Text() string {
	if len(a.Turns) == 0 {
		return a.Route.GetReply().GetText()
	}
	var texts []string
	for _, turn := range a.Turns {
		if isConsult(turn, a.Turns) {
			continue
		}
		for _, text := range []string{turn.GetAgentText(), turn.GetHandoffMessage()} {
			if text != "" {
				texts = append(texts, text)
			}
		}
	}
	return strings.Join(texts, "\n\n")
}

// AgentID returns the agent that answered last; empty for a command.
func (a *Asked) AgentID() string {
	if len(a.Turns) == 0 {
		return ""
	}
	return a.Turns[len(a.Turns)-1].GetAgentId()
}

// NoAnswerYetError is Ask's error after its time. The turn goes on: ask again with RequestID.
// errors.Is(err, context.DeadlineExceeded) holds.
type NoAnswerYetError struct {
	// AgentID is the agent that the message went to.
	AgentID string
	// RequestID is the message's.
	RequestID string
	// Wait is how long Ask waited.
	Wait time.Duration
}

// Error says what to do.
func (e *NoAnswerYetError) Error() string {
	return fmt.Sprintf("no answer from agent %q in %s s; its turn goes on: ask again with request_id %s",
		e.AgentID, strconv.FormatFloat(e.Wait.Seconds(), 'g', 3, 64), e.RequestID)
}

// Unwrap returns context.DeadlineExceeded.
func (e *NoAnswerYetError) Unwrap() error { return context.DeadlineExceeded }

// Ask routes a message to agents with inboxes, waits for their answer, and returns it. The whole
// chain is waited for: after a handoff, the answer of the next agent too. A command is answered at
// once.
//
// session_id is required, so that a repeat finds the session. With the same request_id a repeat waits
// for the same turn. Ask waits until the deadline of ctx, or else DefaultAskWait; then its error is a
// *NoAnswerYetError, and the turn goes on. If the agent has no inbox and the store's format is
// older than 2, the error names it: Route the message then, and carry it. If the service cannot be reached, Ask fails: an inbox needs it.
func (c *Client) Ask(ctx context.Context, request *v1.RouteRequest, options ...CallOption) (*Asked, error) {
	if request.GetSessionId() == "" {
		return nil, errors.New("agentrouting: Ask needs a session_id, so that a repeat finds the session")
	}
	began := time.Now()
	until, isLimited := ctx.Deadline()
	if !isLimited {
		until = began.Add(DefaultAskWait)
	}
	// The calls end when the caller cancels; their time is not that of the answer.
	calls, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.Canceled) {
			cancel()
		}
	})()
	message := withRequestID(request)
	message.Deliver = v1.Delivery_DELIVERY_INBOX
	routed, err := c.Route(calls, message, options...)
	if errors.Is(err, StoreFormat) {
		// Agents with inboxes can be asked all the same.
		message.Deliver = v1.Delivery_DELIVERY_UNSPECIFIED
		routed, err = c.Route(calls, message, options...)
	}
	if err != nil {
		return nil, err
	}
	if routed.Degraded {
		return nil, routed.Err
	}
	if routed.GetDispatch() == nil && !routed.GetQueued() {
		return &Asked{Route: routed}, nil
	}
	// A message that waits (double_text: queue) is dispatched later, as its turn then says.
	if !routed.GetQueued() && routed.GetDispatch().GetDelivery() != v1.Delivery_DELIVERY_INBOX {
		return nil, fmt.Errorf("agentrouting: agent %q has no inbox; carry request %s to it, or set delivery: inbox for it in the registry",
			routed.AgentID(), routed.GetRequestId())
	}
	watched := &v1.WatchSessionRequest{SessionId: routed.GetSessionId(), UserId: request.GetUserId(), AfterRevision: proto.Int64(routed.GetRevision())}
	for {
		turns, isOpen, err := c.answersTo(calls, routed.GetRequestId(), watched)
		if err != nil {
			return nil, err
		}
		if !isOpen {
			return &Asked{Route: routed, Turns: turns}, nil
		}
		left := time.Until(until)
		if left <= 0 {
			return nil, &NoAnswerYetError{AgentID: routed.AgentID(), RequestID: routed.GetRequestId(), Wait: until.Sub(began)}
		}
		c.nextRevision(calls, watched, min(left, askWatch))
	}
}

// answersTo returns the turns that followed from a request, and whether one of them is open.
func (c *Client) answersTo(ctx context.Context, requestID string, asked *v1.WatchSessionRequest) ([]*v1.Turn, bool, error) {
	// First: a turn that is open now is in the history that is read next.
	state, err := c.Status(ctx, &v1.StatusRequest{SessionId: asked.GetSessionId(), UserId: asked.GetUserId()})
	if err != nil {
		return nil, false, err
	}
	page, err := c.ListTurns(ctx, &v1.ListTurnsRequest{
		SessionId: asked.GetSessionId(), UserId: asked.GetUserId(), Order: v1.TurnOrder_TURN_ORDER_NEWEST_FIRST, PageSize: askTurns,
	})
	if err != nil {
		return nil, false, err
	}
	known := map[string]bool{requestID: true}
	var turns []*v1.Turn
	for _, turn := range slices.Backward(page.GetTurns()) {
		if known[turn.GetRequestId()] || known[turn.GetParentRequestId()] {
			known[turn.GetRequestId()] = true
			turns = append(turns, turn)
		}
	}
	isOpen := len(turns) == 0 || slices.ContainsFunc(state.GetOpenRequests(), func(open *v1.Dispatch) bool {
		return known[open.GetRequestId()]
	})
	return turns, isOpen, nil
}

// nextRevision waits for the session's next change, for at most timeout. The caller's next call shows
// what is wrong with the service.
func (c *Client) nextRevision(ctx context.Context, watched *v1.WatchSessionRequest, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for change, err := range c.WatchSession(ctx, watched) {
		if err == nil {
			watched.AfterRevision = proto.Int64(change.GetRevision())
		}
		return
	}
}

// isConsult tells whether an answer was for the agent that asked, and not for the user.
func isConsult(turn *v1.Turn, turns []*v1.Turn) bool {
	const consulted = v1.RouteReason_ROUTE_REASON_CONSULTED
	return turn.GetReason() == consulted && slices.ContainsFunc(turns, func(after *v1.Turn) bool {
		return after.GetParentRequestId() == turn.GetRequestId() && after.GetReason() == consulted &&
			after.GetAgentId() == turn.GetFromAgentId()
	})
}
