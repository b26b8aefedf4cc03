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
	// Turns in a page that Ask reads: a message passes through far fewer agents.
	askTurns = 100
	// The shortest wait before Ask tries again, whatever the retry policy says.
	askPauseMin = 100 * time.Millisecond
)

// AskedOutcome is what became of a message: how the last agent ended its turn, by the names of
// v1.TurnOutcome without their prefix, or why there is no answer. "" for a command. With the same
// request_id Ask returns what has become of the message since, and waits again if an agent has it.
type AskedOutcome string

// What became of a message.
const (
	AskedProceed        AskedOutcome = "PROCEED"
	AskedFollowUp       AskedOutcome = "FOLLOW_UP"
	AskedComplete       AskedOutcome = "COMPLETE"
	AskedHandoff        AskedOutcome = "HANDOFF"
	AskedApprovalNeeded AskedOutcome = "APPROVAL_NEEDED" // and it is no longer pending
	AskedFailure        AskedOutcome = "FAILURE"
	AskedAnswered       AskedOutcome = "ANSWERED" // by the answer to a later message
	// AskedAbandoned: no answer will come; Asked.Cause says why. Ask as a new request.
	AskedAbandoned AskedOutcome = "ABANDONED"
	// AskedWithPeople: people have the message. A watch of the session shows what they write.
	AskedWithPeople AskedOutcome = "WITH_PEOPLE"
	// AskedAwaitingApproval: a person has to decide first.
	AskedAwaitingApproval AskedOutcome = "AWAITING_APPROVAL"
	// AskedQueued: the message waits behind one that people have.
	AskedQueued AskedOutcome = "QUEUED"
)

// Asked is what became of a message: its answer, or why there is none yet or will be none.
type Asked struct {
	// Route is what Route returned.
	Route *Turn
	// Turns is what the agents did, in order; empty for a command, and while the message is queued.
	Turns []*v1.Turn
	// WaitsFor is an outcome that is not the end of a turn: AskedWithPeople, AskedAwaitingApproval or
	// AskedQueued; otherwise "".
	WaitsFor AskedOutcome
	// Claimed tells, with AskedWithPeople, whether a person has claimed the conversation.
	Claimed bool
	// Replayed tells whether an earlier call sent this request_id, so that its caller gets the same answer.
	Replayed bool
}

// Text returns everything that the user should see: the service's reply, and what the agents wrote. There is
// an empty line between two texts.
func (a *Asked) Text() string {
	texts := []string{a.Route.GetReply().GetText()}
	for _, turn := range a.Turns {
		texts = append(texts, shownOf(turn, a.Turns))
	}
	return joined(texts)
}

// joined puts an empty line between texts that are not empty.
func joined(texts []string) string {
	texts = slices.DeleteFunc(texts, func(text string) bool { return text == "" })
	return strings.Join(texts, "\n\n")
}

// Notice returns what to show after the text: that the task was parked until its approval; or "".
func (a *Asked) Notice() string {
	if len(a.Turns) == 0 {
		return ""
	}
	return a.Turns[len(a.Turns)-1].GetNotice()
}

// AgentID returns the agent that answered last, or has the message; empty for a command.
func (a *Asked) AgentID() string {
	if len(a.Turns) == 0 {
		return ""
	}
	return a.Turns[len(a.Turns)-1].GetAgentId()
}

// Outcome returns what became of the message; "" for a command.
func (a *Asked) Outcome() AskedOutcome {
	end := a.end()
	switch {
	case a.WaitsFor != "":
		return a.WaitsFor
	case end != nil:
		return AskedOutcome(strings.TrimPrefix(outcomeOf(end).String(), "TURN_OUTCOME_"))
	case a.Route.GetQueued():
		return AskedAbandoned
	default:
		return ""
	}
}

// Cause returns why the turn was abandoned; otherwise ABANDON_CAUSE_UNSPECIFIED, also if the message was
// still queued when the session was reset, and if the service is older than these causes.
func (a *Asked) Cause() v1.AbandonCause {
	end := a.end()
	switch {
	case a.Outcome() != AskedAbandoned || end == nil:
		return v1.AbandonCause_ABANDON_CAUSE_UNSPECIFIED
	case end.GetOutcome() == v1.TurnOutcome_TURN_OUTCOME_UNSPECIFIED:
		// It is not stored as abandoned yet.
		return v1.AbandonCause_ABANDON_CAUSE_TIMEOUT
	default:
		return end.GetAbandonCause()
	}
}

// end returns the last turn that is not only something that an agent said; nil for none.
func (a *Asked) end() *v1.Turn {
	for _, turn := range slices.Backward(a.Turns) {
		if turn.GetOutcome() != v1.TurnOutcome_TURN_OUTCOME_SAID {
			return turn
		}
	}
	return nil
}

// outcomeOf returns how a turn ended. An answer to one that was given up counts as none.
func outcomeOf(turn *v1.Turn) v1.TurnOutcome {
	if turn.GetOutcome() == v1.TurnOutcome_TURN_OUTCOME_UNSPECIFIED || wasGivenUp(turn) {
		return v1.TurnOutcome_TURN_OUTCOME_ABANDONED
	}
	return turn.GetOutcome()
}

// wasGivenUp tells whether the user, or somebody for them, gave the turn up: a late answer is not shown.
func wasGivenUp(turn *v1.Turn) bool {
	switch turn.GetAbandonCause() {
	case v1.AbandonCause_ABANDON_CAUSE_RESET, v1.AbandonCause_ABANDON_CAUSE_CLEARED,
		v1.AbandonCause_ABANDON_CAUSE_COMMAND, v1.AbandonCause_ABANDON_CAUSE_CANCELLED,
		v1.AbandonCause_ABANDON_CAUSE_REPLACED, v1.AbandonCause_ABANDON_CAUSE_ERASED:
		return true
	}
	return false
}

// NoAnswerYetError is Ask's error after its time. The turn goes on: ask again with RequestID.
// errors.Is(err, context.DeadlineExceeded) holds.
type NoAnswerYetError struct {
	// AgentID is the agent that has the message; "" while it is queued.
	AgentID string
	// RequestID is the message's.
	RequestID string
	// Wait is how long Ask waited.
	Wait time.Duration
}

// Error says what to do.
func (e *NoAnswerYetError) Error() string {
	from, state := fmt.Sprintf(" from agent %q", e.AgentID), "its turn goes on"
	if e.AgentID == "" {
		from, state = "", "it waits for the answer to the one before"
	}
	return fmt.Sprintf("no answer%s in %s s; %s: ask again with request_id %s",
		from, strconv.FormatFloat(e.Wait.Seconds(), 'g', 3, 64), state, e.RequestID)
}

// Unwrap returns context.DeadlineExceeded.
func (e *NoAnswerYetError) Unwrap() error { return context.DeadlineExceeded }

// NoInboxError is Ask's error if the agent that has the turn has no inbox: Route the message with
// RequestID, and carry it.
type NoInboxError struct {
	// AgentID is the agent.
	AgentID string
	// RequestID is the message's.
	RequestID string
}

// Error says what to do.
func (e *NoInboxError) Error() string {
	return fmt.Sprintf("agentrouting: agent %q has no inbox; carry request %s to it, or set delivery: inbox for it in the registry",
		e.AgentID, e.RequestID)
}

// Ask routes a message to agents with inboxes, and returns what became of it. It waits as long as one of
// them may still answer; after a handoff, for the next agent too. A command is answered at once. It also
// returns as soon as no answer can come, or people have to act first: see AskedOutcome.
//
// session_id is required, so that a repeat finds the session. With the same request_id a repeat waits
// for the same turn. Ask waits until the deadline of ctx, or else DefaultAskWait; then its error is a
// *NoAnswerYetError, and the turn goes on. While the service is away, the client connects again and goes on
// waiting; if it cannot be reached at first, Ask fails: an inbox needs it. If the agent has no inbox the
// error is a *NoInboxError. Every *RoutingError has the message's RequestID.
func (c *Client) Ask(ctx context.Context, request *v1.RouteRequest, options ...CallOption) (*Asked, error) {
	var asked *Asked
	for part, err := range c.answer(ctx, request, options) {
		if err != nil {
			return nil, err
		}
		asked = part.Asked
	}
	return asked, nil
}

// AskParts asks as Ask does, and yields the answer as it is written, with notes for the user. An error is
// the last value.
//
// Parts are best effort: those of the whole answer that did not come before come at its end, and a part
// with Replaces stands for everything of its turn so far. The last part has Asked, which is what Ask
// returns. Agents that send no parts come as one part.
func (c *Client) AskParts(ctx context.Context, request *v1.RouteRequest, options ...CallOption) iter.Seq2[*AskedPart, error] {
	return c.answer(ctx, request, options, v1.WatchInclude_WATCH_INCLUDE_DELTAS, v1.WatchInclude_WATCH_INCLUDE_NOTES)
}

// answer yields the parts of an answer; the last one has Asked.
func (c *Client) answer(ctx context.Context, request *v1.RouteRequest, options []CallOption, include ...v1.WatchInclude) iter.Seq2[*AskedPart, error] {
	return func(yield func(*AskedPart, error) bool) {
		asking, err := c.asking(ctx, request, options, include)
		if err != nil {
			yield(nil, err)
			return
		}
		defer asking.end()
		if asking.asked != nil {
			yield(&AskedPart{Text: asking.asked.Text(), RequestID: asking.routed.GetRequestId(), Asked: asking.asked}, nil)
			return
		}
		if reply := asking.routed.GetReply().GetText(); reply != "" {
			if !yield(&AskedPart{Text: reply, RequestID: asking.routed.GetRequestId()}, nil) {
				return
			}
		}
		parts := &answerParts{written: map[turnKey]*writtenAnswer{}}
		for asking.asked == nil {
			hasLeft := false
			err := asking.look(parts)
			if err == nil && asking.asked == nil {
				err = asking.live(parts, func(part *AskedPart) bool {
					hasLeft = !yield(part, nil)
					return !hasLeft
				})
			}
			if hasLeft {
				return
			}
			if err != nil {
				err = asking.failed(err)
			}
			if err == nil && asking.asked == nil {
				err = asking.pause()
			}
			if err != nil {
				yield(nil, err)
				return
			}
		}
		yieldAll(parts.rest(asking.asked), func(part *AskedPart) bool { return yield(part, nil) })
	}
}

func yieldAll(parts []*AskedPart, yield func(*AskedPart) bool) bool {
	for _, part := range parts {
		if !yield(part) {
			return false
		}
	}
	return true
}

// asking is a message that was routed: what became of it so far, and how long that is waited for.
type asking struct {
	client *Client
	routed *Turn
	// asked is the result; nil as long as an agent may still answer.
	asked    *Asked
	turns    []*v1.Turn
	replayed bool
	watched  *v1.WatchSessionRequest
	// calls ends when the caller cancels; the calls' time is not that of the answer.
	calls        context.Context
	end          func()
	began, until time.Time
	// watchUntil is when the present watch, or the time after a failure, is over by itself.
	watchUntil time.Time
	attempts   int
}

// asking routes a message to inboxes. Its error is that of the service, or that the caller has to carry
// the turn.
func (c *Client) asking(ctx context.Context, request *v1.RouteRequest, options []CallOption, include []v1.WatchInclude) (*asking, error) {
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
	a := &asking{client: c, calls: calls, began: began, until: until}
	a.end = func() {
		stop()
		cancel()
	}
	if err := a.route(request, options); err != nil {
		a.end()
		return nil, err
	}
	a.watched = &v1.WatchSessionRequest{
		SessionId: a.routed.GetSessionId(), UserId: request.GetUserId(), AfterRevision: proto.Int64(a.routed.GetRevision()), Include: include,
	}
	return a, nil
}

func (a *asking) route(request *v1.RouteRequest, options []CallOption) error {
	message := withRequestID(request)
	message.Deliver = v1.Delivery_DELIVERY_INBOX
	var chosen callSettings
	for _, option := range options {
		option(&chosen)
	}
	if chosen.info == nil {
		chosen.info = &CallInfo{}
		options = append(slices.Clone(options), WithInfo(chosen.info))
	}
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
	// An attempt of this very call may be the earlier one, so a repeat within it says nothing.
	a.replayed = routed.Replayed && chosen.info.Attempts == 1
	if dispatch := routed.GetDispatch(); dispatch != nil {
		return checkInbox(dispatch)
	}
	// A message that waits (double_text: queue) is dispatched later, as its turn then says.
	if !routed.GetQueued() {
		a.done("", false)
	}
	return nil
}

// checkInbox returns an error for a turn that the caller has to carry.
func checkInbox(dispatch *v1.Dispatch) error {
	if dispatch.GetDelivery() != v1.Delivery_DELIVERY_INBOX {
		return &NoInboxError{AgentID: dispatch.GetAgent().GetAgentId(), RequestID: dispatch.GetRequestId()}
	}
	return nil
}

func (a *asking) done(waitsFor AskedOutcome, claimed bool) {
	a.asked = &Asked{Route: a.routed, Turns: a.turns, WaitsFor: waitsFor, Claimed: claimed, Replayed: a.replayed}
}

// look reads what became of the message.
func (a *asking) look(parts *answerParts) error {
	ids := &v1.StatusRequest{SessionId: a.watched.GetSessionId(), UserId: a.watched.GetUserId()}
	// First: a turn that is open now is in the history that is read next.
	state, err := a.client.Status(a.calls, ids)
	if err != nil {
		return err
	}
	queue, isQueued := a.queue(state)
	var newestFirst []*v1.Turn
	isMessage := func(turn *v1.Turn) bool { return turn.GetRequestId() == a.routed.GetRequestId() }
	for token := ""; ; {
		page, err := a.client.ListTurns(a.calls, &v1.ListTurnsRequest{
			SessionId: ids.GetSessionId(), UserId: ids.GetUserId(), Order: v1.TurnOrder_TURN_ORDER_NEWEST_FIRST,
			PageSize: askTurns, PageToken: token,
		})
		if err != nil {
			return err
		}
		newestFirst = append(newestFirst, page.GetTurns()...)
		token = page.GetNextPageToken()
		if token == "" || isQueued || slices.ContainsFunc(newestFirst, isMessage) {
			break
		}
	}
	turns, chain := chainOf(a.routed.GetRequestId(), newestFirst)
	a.turns = turns
	parts.know(turns, false)
	if state.GetRevision() < a.watched.GetAfterRevision() {
		return nil // Of a replica that has not seen the newest change.
	}
	waiting := lastOpen(state, func(open *v1.Dispatch) bool { return chain[open.GetRequestId()] })
	switch {
	case waiting != nil:
		if err := checkInbox(waiting); err != nil {
			return err
		}
		if isWithPeople(waiting) {
			// The claim of a parked task is not in its state.
			a.done(AskedWithPeople, state.GetClaim() != nil && waiting.GetTaskId() == state.GetTask().GetTaskId())
		}
	case isQueued:
		before := lastOpen(state, func(open *v1.Dispatch) bool { return open.GetTaskId() == queue })
		if before != nil && isWithPeople(before) {
			a.done(AskedQueued, false)
		}
	case isPaused(state, chain):
		a.done(AskedAwaitingApproval, false)
	default:
		a.done("", false)
	}
	return nil
}

// queue returns the task in which the message is queued, and whether it is.
func (a *asking) queue(state *v1.StatusResponse) (string, bool) {
	if slices.Contains(state.GetQueuedRequestIds(), a.routed.GetRequestId()) {
		return state.GetTask().GetTaskId(), true
	}
	for _, parked := range state.GetParkedTasks() {
		if slices.Contains(parked.GetQueuedRequestIds(), a.routed.GetRequestId()) {
			return parked.GetTask().GetTaskId(), true
		}
	}
	return "", false
}

// lastOpen returns the newest open request of a kind; nil for none.
func lastOpen(state *v1.StatusResponse, isWanted func(*v1.Dispatch) bool) *v1.Dispatch {
	for _, open := range slices.Backward(state.GetOpenRequests()) {
		if isWanted(open) {
			return open
		}
	}
	return nil
}

func isWithPeople(dispatch *v1.Dispatch) bool {
	return dispatch.GetAgent().GetKind() == v1.AgentKind_AGENT_KIND_HUMAN
}

// isPaused tells whether one of the requests waits for an approval.
func isPaused(state *v1.StatusResponse, requests map[string]bool) bool {
	return requests[state.GetPendingApproval().GetRequestId()] ||
		slices.ContainsFunc(state.GetParkedTasks(), func(parked *v1.ParkedTask) bool {
			return requests[parked.GetPendingApproval().GetRequestId()]
		})
}

// live watches for a while, or until the message is answered or the reader leaves. A watch that fails ends;
// the next look shows what is wrong with the service.
func (a *asking) live(parts *answerParts, yield func(*AskedPart) bool) error {
	now := time.Now()
	if !now.Before(a.until) {
		agentID := a.routed.AgentID()
		if len(a.turns) > 0 {
			agentID = a.turns[len(a.turns)-1].GetAgentId()
		}
		return &NoAnswerYetError{AgentID: agentID, RequestID: a.routed.GetRequestId(), Wait: a.until.Sub(a.began)}
	}
	a.attempts++
	timeout := min(a.until.Sub(now), askWatch)
	a.watchUntil = now.Add(timeout)
	ctx, cancel := context.WithTimeout(a.calls, timeout)
	defer cancel()
	for response, err := range a.client.watchMessages(ctx, a.watched, timeout) {
		if err != nil {
			return nil
		}
		a.attempts = 0
		if change := response.GetChange(); change != nil {
			a.watched.AfterRevision = proto.Int64(change.GetRevision())
			// The stream stays open while this is read, so that no part is lost.
			if err := a.look(parts); err != nil {
				return err
			}
		}
		parts.take(response)
		if !yieldAll(parts.ready(), yield) || a.asked != nil {
			return nil
		}
	}
	return nil
}

// failed returns nil while the service is away, and otherwise the error: a refusal, or time is up.
func (a *asking) failed(err error) error {
	failure := asError(err)
	if failure == nil {
		return err
	}
	failure.RequestID = a.routed.GetRequestId()
	mayComeBack := failure.mayFallBack() || failure.Reason == Overloaded || failure.Reason == WatchTooSlow
	if !mayComeBack || a.calls.Err() != nil || !time.Now().Before(a.until) {
		return failure
	}
	a.attempts++
	a.watchUntil = a.until
	return nil
}

// pause waits before the next look, after a watch or a failure.
func (a *asking) pause() error {
	wait := max(askPauseMin, a.client.settings.retry.backoff(max(1, a.attempts)))
	return pause(a.calls, a.client.closing, max(0, min(wait, time.Until(a.watchUntil))))
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
