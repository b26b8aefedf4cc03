package agentrouting

import (
	"context"
	"errors"
	"fmt"
	"iter"
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
		if text := shownOf(turn); text != "" && !isConsult(turn, a.Turns) {
			texts = append(texts, text)
		}
	}
	return strings.Join(texts, "\n\n")
}

// Notice returns what to show after the text: that the task was parked until its approval; or "".
func (a *Asked) Notice() string {
	if len(a.Turns) == 0 {
		return ""
	}
	return a.Turns[len(a.Turns)-1].GetNotice()
}

// AgentID returns the agent that answered last; empty for a command.
func (a *Asked) AgentID() string {
	if len(a.Turns) == 0 {
		return ""
	}
	return a.Turns[len(a.Turns)-1].GetAgentId()
}

// Outcome returns how the last agent ended its turn; TURN_OUTCOME_UNSPECIFIED for a command.
//
// TURN_OUTCOME_ABANDONED: there is no answer, and none will come. A newer message may have taken the
// turn's place, its time may have run out, or its workers may have died: ask as a new request.
// TURN_OUTCOME_FAILURE and TURN_OUTCOME_APPROVAL_NEEDED usually have no text either.
func (a *Asked) Outcome() v1.TurnOutcome {
	for _, turn := range slices.Backward(a.Turns) {
		switch outcome := turn.GetOutcome(); outcome {
		case v1.TurnOutcome_TURN_OUTCOME_SAID:
		case v1.TurnOutcome_TURN_OUTCOME_UNSPECIFIED:
			// The turn is not open: one whose time ran out may not be stored as abandoned yet.
			return v1.TurnOutcome_TURN_OUTCOME_ABANDONED
		default:
			return outcome
		}
	}
	return v1.TurnOutcome_TURN_OUTCOME_UNSPECIFIED
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
	asking, err := c.asking(ctx, request, options)
	if err != nil {
		return nil, err
	}
	defer asking.end()
	if asking.isAnswered() {
		return &Asked{Route: asking.routed}, nil
	}
	watched := asking.watched()
	for {
		turns, isOpen, err := c.answersTo(asking.calls, asking.routed.GetRequestId(), watched)
		if err != nil {
			return nil, err
		}
		if !isOpen {
			return &Asked{Route: asking.routed, Turns: turns}, nil
		}
		if err := asking.live(watched, func(response *v1.WatchSessionResponse) bool { return response.GetChange() == nil }); err != nil {
			return nil, err
		}
	}
}

// AskParts asks as Ask does, and yields the answer as it is written, with notes for the user. An error is
// the last value.
//
// Parts are best effort: those of the whole answer that did not come before come at its end, and a part
// with Replaces stands for everything of its request so far. The last part has Asked, which is what Ask
// returns. Agents that send no parts come as one part.
func (c *Client) AskParts(ctx context.Context, request *v1.RouteRequest, options ...CallOption) iter.Seq2[*AskedPart, error] {
	return func(yield func(*AskedPart, error) bool) {
		asking, err := c.asking(ctx, request, options)
		if err != nil {
			yield(nil, err)
			return
		}
		defer asking.end()
		if asking.isAnswered() {
			asked := &Asked{Route: asking.routed}
			yield(&AskedPart{Text: asked.Text(), RequestID: asking.routed.GetRequestId(), Asked: asked}, nil)
			return
		}
		watched := asking.watched(v1.WatchInclude_WATCH_INCLUDE_DELTAS, v1.WatchInclude_WATCH_INCLUDE_NOTES)
		parts := newAnswerParts(asking.routed.GetRequestId())
		for {
			turns, isOpen, err := c.answersTo(asking.calls, asking.routed.GetRequestId(), watched)
			hasLeft := false
			if err == nil && isOpen {
				failure := asking.live(watched, func(response *v1.WatchSessionResponse) bool {
					if response.GetChange() != nil {
						// The stream stays open while this is read, so that no part is lost.
						turns, isOpen, err = c.answersTo(asking.calls, asking.routed.GetRequestId(), watched)
						parts.know(turns, false)
					}
					parts.take(response)
					hasLeft = !yieldAll(parts.ready(), yield)
					return !hasLeft && err == nil && isOpen
				})
				if err == nil {
					err = failure
				}
			}
			switch {
			case hasLeft:
				return
			case err != nil:
				yield(nil, err)
				return
			case !isOpen:
				yieldAll(parts.rest(&Asked{Route: asking.routed, Turns: turns}), yield)
				return
			}
		}
	}
}

func yieldAll(parts []*AskedPart, yield func(*AskedPart, error) bool) bool {
	for _, part := range parts {
		if !yield(part, nil) {
			return false
		}
	}
	return true
}

// asking is a message that was routed, and how long its answer is waited for.
type asking struct {
	client *Client
	routed *Turn
	userID string
	// calls ends when the caller cancels; the calls' time is not that of the answer.
	calls context.Context
	end   func()
	began time.Time
	until time.Time
}

// asking routes a message to inboxes. Its error is that of the service, or that the caller has to carry
// the turn.
func (c *Client) asking(ctx context.Context, request *v1.RouteRequest, options []CallOption) (*asking, error) {
	if request.GetSessionId() == "" {
		return nil, errors.New("agentrouting: Ask needs a session_id, so that a repeat finds the session")
	}
	began := time.Now()
	until, isLimited := ctx.Deadline()
	if !isLimited {
		until = began.Add(DefaultAskWait)
	}
	calls, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.Canceled) {
			cancel()
		}
	})
	a := &asking{client: c, userID: request.GetUserId(), calls: calls, began: began, until: until}
	a.end = func() {
		stop()
		cancel()
	}
	if err := a.route(request, options); err != nil {
		a.end()
		return nil, err
	}
	return a, nil
}

func (a *asking) route(request *v1.RouteRequest, options []CallOption) error {
	message := withRequestID(request)
	message.Deliver = v1.Delivery_DELIVERY_INBOX
	routed, err := a.client.Route(a.calls, message, options...)
	if errors.Is(err, StoreFormat) {
		// Agents with inboxes can be asked all the same.
		message.Deliver = v1.Delivery_DELIVERY_UNSPECIFIED
		routed, err = a.client.Route(a.calls, message, options...)
	}
	if err != nil {
		return err
	}
	if routed.Degraded {
		return routed.Err
	}
	a.routed = routed
	// A message that waits (double_text: queue) is dispatched later, as its turn then says.
	if !a.isAnswered() && !routed.GetQueued() && routed.GetDispatch().GetDelivery() != v1.Delivery_DELIVERY_INBOX {
		return fmt.Errorf("agentrouting: agent %q has no inbox; carry request %s to it, or set delivery: inbox for it in the registry",
			routed.AgentID(), routed.GetRequestId())
	}
	return nil
}

// isAnswered tells whether no agent is asked: a command, with its reply.
func (a *asking) isAnswered() bool { return a.routed.GetDispatch() == nil && !a.routed.GetQueued() }

// watched returns the request of a watch from here on.
func (a *asking) watched(include ...v1.WatchInclude) *v1.WatchSessionRequest {
	return &v1.WatchSessionRequest{
		SessionId: a.routed.GetSessionId(), UserId: a.userID, AfterRevision: proto.Int64(a.routed.GetRevision()), Include: include,
	}
}

// live gives what a watch brings to see, for a while or until that returns false, and moves the request
// on. The error is that there is no time left; the caller's next call shows what is wrong with the service.
func (a *asking) live(watched *v1.WatchSessionRequest, see func(*v1.WatchSessionResponse) bool) error {
	left := time.Until(a.until)
	if left <= 0 {
		return &NoAnswerYetError{AgentID: a.routed.AgentID(), RequestID: a.routed.GetRequestId(), Wait: a.until.Sub(a.began)}
	}
	timeout := min(left, askWatch)
	ctx, cancel := context.WithTimeout(a.calls, timeout)
	defer cancel()
	for response, err := range a.client.watchMessages(ctx, watched, timeout) {
		if err != nil {
			return nil
		}
		if change := response.GetChange(); change != nil {
			watched.AfterRevision = proto.Int64(change.GetRevision())
		}
		if !see(response) {
			return nil
		}
	}
	return nil
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
	turns, known := chainOf(requestID, page.GetTurns())
	isOpen := len(turns) == 0 || slices.ContainsFunc(state.GetOpenRequests(), func(open *v1.Dispatch) bool {
		return known[open.GetRequestId()]
	})
	return turns, isOpen, nil
}

// chainOf returns the turns that followed from a request, itself included, the oldest first, and their
// requests.
func chainOf(requestID string, newestFirst []*v1.Turn) ([]*v1.Turn, map[string]bool) {
	known := map[string]bool{requestID: true}
	said := map[string][]*v1.Turn{}
	var answers []*v1.Turn
	for _, turn := range slices.Backward(newestFirst) {
		if !known[turn.GetRequestId()] && !known[turn.GetParentRequestId()] {
			continue
		}
		known[turn.GetRequestId()] = true
		if turn.GetOutcome() == v1.TurnOutcome_TURN_OUTCOME_SAID {
			said[turn.GetParentRequestId()] = append(said[turn.GetParentRequestId()], turn)
		} else {
			answers = append(answers, turn)
		}
	}
	// What an agent said in its turn was read before its answer, but its turn began earlier.
	var turns []*v1.Turn
	for _, turn := range answers {
		turns = append(append(turns, said[turn.GetRequestId()]...), turn)
	}
	return turns, known
}

// isConsult tells whether an answer was for the agent that asked, and not for the user.
func isConsult(turn *v1.Turn, turns []*v1.Turn) bool {
	const consulted = v1.RouteReason_ROUTE_REASON_CONSULTED
	return turn.GetReason() == consulted && slices.ContainsFunc(turns, func(after *v1.Turn) bool {
		return after.GetParentRequestId() == turn.GetRequestId() && after.GetReason() == consulted &&
			after.GetAgentId() == turn.GetFromAgentId()
	})
}
