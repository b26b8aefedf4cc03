package agentrouting

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/health" // lets round_robin check whether replicas are ready
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "example.com/agent-routing/go/v1"
)

const (
	replayedKey = "agent-routing-replayed"
	tenantKey   = "agent-routing-tenant"
)

// ErrClosed is the error of calls on a closed client.
var ErrClosed = errors.New("agentrouting: the client is closed; create another one")

// Client calls the agent routing service. Safe for concurrent use.
type Client struct {
	target   string
	settings settings
	conn     *grpc.ClientConn
	stub     v1.RoutingServiceClient
	known    *knownAgents // nil: no fallback
	throttle throttle
	circuit  circuit
	queue    *queue
	streams  *streamConns
	closing  context.Context
	close    context.CancelFunc
}

// NewClient returns a client of the service at target: "HOST:PORT", or several replicas as
// "dns:///HOST:PORT", over which calls are spread, except those that report themselves not ready.
// The first call opens the connection. Close it when it is no longer needed.
func NewClient(target string, options ...Option) (*Client, error) {
	chosen := settings{
		timeout:     DefaultTimeout,
		retry:       DefaultRetry,
		fallback:    &Fallback{},
		credentials: insecure.NewCredentials(),
		logger:      slog.Default(),
	}
	for _, option := range options {
		option(&chosen)
	}
	if chosen.timeout <= 0 {
		return nil, fmt.Errorf("agentrouting: the timeout is %s; give more than zero", chosen.timeout)
	}
	if chosen.retry.AttemptsMax < 1 {
		return nil, fmt.Errorf("agentrouting: AttemptsMax is %d; give 1 or more", chosen.retry.AttemptsMax)
	}
	conn, err := grpc.NewClient(target, dialOptions(target, &chosen)...)
	if err != nil {
		return nil, fmt.Errorf("agentrouting: %w", err)
	}
	client := &Client{target: target, settings: chosen, conn: conn, stub: v1.NewRoutingServiceClient(conn), queue: newQueue()}
	client.streams = &streamConns{dial: func() (*grpc.ClientConn, error) {
		if client.closing.Err() != nil {
			return nil, ErrClosed
		}
		return grpc.NewClient(target, dialOptions(target, &chosen)...)
	}}
	client.circuit.logger = chosen.logger
	client.closing, client.close = context.WithCancel(context.Background())
	if chosen.fallback != nil {
		client.known = newKnownAgents(*chosen.fallback)
	}
	return client, nil
}

// Close ends the client's connections, watches and streams; calls on their way fail.
func (c *Client) Close() error {
	if c.closing.Err() != nil {
		return nil
	}
	c.close()
	return errors.Join(c.conn.Close(), c.streams.close())
}

// Conn returns the client's connection, for calls without a method in the client, such as the
// generated AdminService. Calls on it have no repeats and no deadline.
func (c *Client) Conn() *grpc.ClientConn { return c.conn }

// Turn is where a user's message goes. Show the reply if there is one; then, if there is a dispatch,
// send its text to its agent and report the answer with CompleteTurn.
type Turn struct {
	// RouteResponse is the whole answer of the contract.
	*v1.RouteResponse
	// Degraded says whether the client decided alone because the service could not be reached:
	// nothing is stored, and the service does not know this message until it is routed again, with the
	// same session_id, request_id and content, or reported with ReportDegraded.
	Degraded bool
	// Replayed tells whether this is the stored answer to an earlier call with this request_id.
	Replayed bool
	// Err is why the decision is degraded, or nil.
	Err error
	// BaseRevision is the last revision of the session that the client knew when it decided alone; nil
	// if it knew none. DecideTime is when it decided.
	BaseRevision *int64
	DecideTime   time.Time
}

// DegradedTurn returns the report of a degraded decision, for ReportDegraded. agentText is what the
// user was shown. It returns nil if the service decided: there is nothing to report then.
func (t *Turn) DegradedTurn(agentText, userID string) *v1.DegradedTurn {
	if !t.Degraded {
		return nil
	}
	return &v1.DegradedTurn{
		SessionId:    t.GetSessionId(),
		RequestId:    t.GetRequestId(),
		UserId:       userID,
		AgentId:      t.AgentID(),
		Text:         t.GetDispatch().GetText(),
		Items:        t.GetDispatch().GetItems(),
		AgentText:    agentText,
		DecideTime:   timestamppb.New(t.DecideTime),
		BaseRevision: t.BaseRevision,
	}
}

// AgentID returns the agent to send the message to; empty if no agent must act.
func (t *Turn) AgentID() string { return t.GetDispatch().GetAgent().GetAgentId() }

// Reason returns why this agent, such as "STICKY": a RouteReason without its prefix.
func (t *Turn) Reason() string {
	return strings.TrimPrefix(t.GetDispatch().GetReason().String(), "ROUTE_REASON_")
}

// Route routes a user's message: it returns the agent that gets it, or a reply to show. It opens a
// turn, which CompleteTurn ends.
//
// A missing request_id is generated; a missing session_id is made by the service, from the
// request_id, and is in the turn. A task_id identifies its session. If the service cannot be reached, the turn is the last known agent of the session, or else the
// supervisor, with Degraded set and err nil.
func (c *Client) Route(ctx context.Context, request *v1.RouteRequest, options ...CallOption) (*Turn, error) {
	request = withRequestID(request)
	var info CallInfo
	if c.known != nil && c.known.mayDecide(request) {
		limit, limited := c.circuit.limit()
		if limited && limit == 0 {
			return c.turn(request, nil, false, c.away(request))
		}
		if limited {
			if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > limit {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, limit)
				defer cancel()
			}
		}
	}
	answer, err := invoke(ctx, c, "Route", request, c.stub.Route, append(options, withOwnInfo(&info)))
	return c.turn(request, answer, info.Replayed, err)
}

// turn returns the answer to a message, or the client's own decision if there is no answer.
func (c *Client) turn(request *v1.RouteRequest, answer *v1.RouteResponse, replayed bool, err error) (*Turn, error) {
	if err == nil {
		return &Turn{RouteResponse: answer, Replayed: replayed}, nil
	}
	failure := asError(err)
	// Never beside a service that refuses this call for its load, and answers others.
	if failure != nil && failure.isRefusedUnread() && c.isAnswering() {
		return nil, err
	}
	// A caller that cancelled does not need a decision; one whose deadline passed does.
	if c.known == nil || failure == nil || errors.Is(err, context.Canceled) {
		return nil, err
	}
	degraded := c.known.degradedAnswer(request, failure)
	if degraded == nil {
		return nil, err
	}
	c.settings.logger.Warn("route_degraded", "session_id", degraded.GetSessionId(),
		"request_id", degraded.GetRequestId(), "agent_id", degraded.GetDispatch().GetAgent().GetAgentId(),
		"code", failure.Code.String(), "reason", string(failure.Reason), "attempts", failure.Attempts)
	base := c.known.revision(degraded.GetSessionId())
	return &Turn{RouteResponse: degraded, Degraded: true, Err: err, BaseRevision: base, DecideTime: time.Now()}, nil
}

func withRequestID(request *v1.RouteRequest) *v1.RouteRequest {
	request = proto.Clone(request).(*v1.RouteRequest)
	if request.GetRequestId() == "" {
		request.RequestId = NewUUID7()
	}
	return request
}

// SetActiveAgent hands the conversation to an agent, if the rules allow it; otherwise the error is
// a HandoffRefusedError with every rule that refused. A missing request_id is generated.
func (c *Client) SetActiveAgent(ctx context.Context, request *v1.SetActiveAgentRequest, options ...CallOption) (*v1.SetActiveAgentResponse, error) {
	if request.GetRequestId() == "" {
		request = proto.Clone(request).(*v1.SetActiveAgentRequest)
		request.RequestId = NewUUID7()
	}
	return invoke(ctx, c, "SetActiveAgent", request, c.stub.SetActiveAgent, options)
}

// ClearActiveAgent returns the conversation to the supervisor, or to a swarm's default agent.
// A missing request_id is generated.
func (c *Client) ClearActiveAgent(ctx context.Context, request *v1.ClearActiveAgentRequest, options ...CallOption) (*v1.ClearActiveAgentResponse, error) {
	if request.GetRequestId() == "" {
		request = proto.Clone(request).(*v1.ClearActiveAgentRequest)
		request.RequestId = NewUUID7()
	}
	return invoke(ctx, c, "ClearActiveAgent", request, c.stub.ClearActiveAgent, options)
}

// CancelTask cancels an open task; its id alone is enough. Its open turns are abandoned, a pending
// approval is withdrawn, and the next message goes to the home agent. A missing request_id is
// generated.
func (c *Client) CancelTask(ctx context.Context, request *v1.CancelTaskRequest, options ...CallOption) (*v1.CancelTaskResponse, error) {
	if request.GetRequestId() == "" {
		request = proto.Clone(request).(*v1.CancelTaskRequest)
		request.RequestId = NewUUID7()
	}
	return invoke(ctx, c, "CancelTask", request, c.stub.CancelTask, options)
}

// Status returns the current state of a session. It changes nothing.
func (c *Client) Status(ctx context.Context, request *v1.StatusRequest, options ...CallOption) (*v1.StatusResponse, error) {
	return invoke(ctx, c, "Status", request, c.stub.Status, options)
}

// CompleteTurn reports what an agent answered and how its turn ended. Show the text of the answer
// first. If next is set, then send the message to that agent, and complete it under the request_id
// of next.
func (c *Client) CompleteTurn(ctx context.Context, request *v1.CompleteTurnRequest, options ...CallOption) (*v1.CompleteTurnResponse, error) {
	return invoke(ctx, c, "CompleteTurn", request, c.stub.CompleteTurn, options)
}

// KeepTurn extends a worker's lease on a turn, or gives it back; the answer says whether the turn is
// still this worker's. A Worker does this for its turns.
func (c *Client) KeepTurn(ctx context.Context, request *v1.KeepTurnRequest, options ...CallOption) (*v1.KeepTurnResponse, error) {
	return invoke(ctx, c, "KeepTurn", request, c.stub.KeepTurn, options)
}

// ResumeTask approves or rejects what a paused task is waiting for.
func (c *Client) ResumeTask(ctx context.Context, request *v1.ResumeTaskRequest, options ...CallOption) (*v1.ResumeTaskResponse, error) {
	return invoke(ctx, c, "ResumeTask", request, c.stub.ResumeTask, options)
}

// ReportDegraded reports turns that were decided without the service; it returns what became of each.
// Give 1-100 turns in the order in which they happened; Turn.DegradedTurn makes them. A turn is
// stored in the history, or is a conflict: the service knows better. Nothing moves. Each is stored
// once by its request_id, so after a lost answer report all of them again.
func (c *Client) ReportDegraded(ctx context.Context, request *v1.ReportDegradedRequest, options ...CallOption) (*v1.ReportDegradedResponse, error) {
	return invoke(ctx, c, "ReportDegraded", request, c.stub.ReportDegraded, options)
}

// Circuit returns the state of the circuit breaker, for metrics.
func (c *Client) Circuit() Circuit { return c.circuit.report() }

// LearnHome asks once for the home agent, as at a process's start, and returns its id. During an
// outage it gets the messages of sessions that this client does not know.
func (c *Client) LearnHome(ctx context.Context) (string, error) {
	answer, err := c.ListAgents(ctx, &v1.ListAgentsRequest{})
	return answer.GetHomeAgentId(), err
}

// ListTasks returns one page of a session's tasks.
func (c *Client) ListTasks(ctx context.Context, request *v1.ListTasksRequest, options ...CallOption) (*v1.ListTasksResponse, error) {
	return invoke(ctx, c, "ListTasks", request, c.stub.ListTasks, options)
}

// AllTasks iterates over all tasks of a session; pages are fetched when needed. It ends with the
// first error.
func (c *Client) AllTasks(ctx context.Context, request *v1.ListTasksRequest, options ...CallOption) iter.Seq2[*v1.Task, error] {
	return func(yield func(*v1.Task, error) bool) {
		page := proto.Clone(request).(*v1.ListTasksRequest)
		for {
			answer, err := c.ListTasks(ctx, page, options...)
			if !overPage(answer.GetTasks(), err, yield) || answer.GetNextPageToken() == "" {
				return
			}
			page.PageToken = answer.GetNextPageToken()
		}
	}
}

// ListTurns returns one page of a session's history.
func (c *Client) ListTurns(ctx context.Context, request *v1.ListTurnsRequest, options ...CallOption) (*v1.ListTurnsResponse, error) {
	return invoke(ctx, c, "ListTurns", request, c.stub.ListTurns, options)
}

// AllTurns iterates over the whole history of a session; pages are fetched when needed. It ends
// with the first error.
func (c *Client) AllTurns(ctx context.Context, request *v1.ListTurnsRequest, options ...CallOption) iter.Seq2[*v1.Turn, error] {
	return func(yield func(*v1.Turn, error) bool) {
		page := proto.Clone(request).(*v1.ListTurnsRequest)
		for {
			answer, err := c.ListTurns(ctx, page, options...)
			if !overPage(answer.GetTurns(), err, yield) || answer.GetNextPageToken() == "" {
				return
			}
			page.PageToken = answer.GetNextPageToken()
		}
	}
}

// overPage yields a page's entries, or its error. It returns whether to continue.
func overPage[Entry any](entries []*Entry, err error, yield func(*Entry, error) bool) bool {
	if err != nil {
		yield(nil, err)
		return false
	}
	for _, entry := range entries {
		if !yield(entry, nil) {
			return false
		}
	}
	return true
}

// ListAgents returns the registry's agents as this caller may see them.
func (c *Client) ListAgents(ctx context.Context, request *v1.ListAgentsRequest, options ...CallOption) (*v1.ListAgentsResponse, error) {
	return invoke(ctx, c, "ListAgents", request, c.stub.ListAgents, options)
}

// call is one call on its way, over all its attempts.
type call struct {
	client    *Client
	method    string
	requestID string
	sessionID string
	begun     time.Time
	deadline  time.Time
	attempts  int
	// Whether the service refused it unread.
	wasRefused bool
}

func (c *Client) newCall(ctx context.Context, method string, request proto.Message) *call {
	made := &call{client: c, method: method}
	if named, ok := request.(interface{ GetRequestId() string }); ok {
		made.requestID = named.GetRequestId()
	}
	if named, ok := request.(interface{ GetSessionId() string }); ok {
		made.sessionID = named.GetSessionId()
	}
	made.begun = time.Now()
	made.deadline = made.begun.Add(c.settings.timeout)
	if deadline, ok := ctx.Deadline(); ok {
		made.deadline = deadline
	}
	return made
}

func (c *call) isLate() bool { return !time.Now().Before(c.deadline) }

// waitAfter returns how long to wait before the next attempt; false if there is none.
func (c *call) waitAfter(err *RoutingError) (time.Duration, bool) {
	if !err.wasUnanswered() {
		if c.client.known != nil {
			c.client.known.forget(c.sessionID, err)
		}
		return 0, false
	}
	retry := c.client.settings.retry
	if err.isRefusedUnread() {
		// Nothing happened, and the service is there: it is sent again until its deadline.
		c.wasRefused = true
		if retry.AttemptsMax == 1 {
			return 0, false
		}
	} else if !c.client.throttle.mayRetry() || c.attempts >= retry.AttemptsMax {
		return 0, false
	}
	wait := retry.backoff(c.attempts) + err.RetryAfter
	if !time.Now().Add(wait).Before(c.deadline) {
		return 0, false
	}
	c.client.settings.logger.Debug("call_repeated", "method", c.method, "request_id", c.requestID,
		"attempt", c.attempts+1, "wait", wait, "code", err.Code.String(), "reason", string(err.Reason))
	return wait, true
}

func withOwnInfo(own *CallInfo) CallOption {
	return func(s *callSettings) {
		// The caller's CallInfo, if there is one, is filled in as well.
		if s.info == nil {
			s.info = own
			return
		}
		asked := s.info
		s.info = own
		s.also = asked
	}
}

type method[Request, Answer any] func(context.Context, *Request, ...grpc.CallOption) (*Answer, error)

// invoke makes a call with all its attempts: one deadline covers all of them, and each sends the
// same request.
func invoke[Request, Answer any](ctx context.Context, c *Client, name string, request *Request, do method[Request, Answer], options []CallOption) (*Answer, error) {
	var chosen callSettings
	for _, option := range options {
		option(&chosen)
	}
	message := any(request).(proto.Message)
	call := c.newCall(ctx, name, message)
	limited, cancel := context.WithDeadline(c.outgoing(ctx), call.deadline)
	defer cancel()
	release, err := call.place(limited, request)
	if err != nil {
		return nil, err
	}
	defer release()
	for {
		if c.closing.Err() != nil {
			return nil, ErrClosed
		}
		call.attempts++
		var trailer metadata.MD
		answer, err := do(limited, request, grpc.Trailer(&trailer))
		replayed := len(trailer[replayedKey]) > 0 && trailer[replayedKey][0] == "true"
		chosen.fill(CallInfo{Attempts: call.attempts, Replayed: err == nil && replayed})
		if err == nil {
			c.throttle.succeeded()
			c.circuit.succeeded()
			if c.known != nil {
				c.known.learn(message, any(answer).(proto.Message))
			}
			return answer, nil
		}
		if c.closing.Err() != nil {
			return nil, ErrClosed
		}
		failure := callError(ctx, err, call)
		if failure.Code == codes.DeadlineExceeded && call.isLate() {
			failure = call.tooLate(limited)
		}
		wait, again := call.waitAfter(failure)
		if !again || pause(limited, c.closing, wait) != nil {
			if !failure.isRefusedUnread() || !c.isAnswering() {
				c.circuit.count(failure)
			}
			return nil, failure
		}
	}
}

// pause waits. Its error says that the context has ended, or that the client is closed.
func pause(ctx, closing context.Context, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-closing.Done():
		return ErrClosed
	}
}

// outgoing returns a context with the metadata of every call.
func (c *Client) outgoing(ctx context.Context) context.Context {
	pairs := make([]string, 0, 2+2*len(c.settings.metadata))
	if c.settings.tenant != "" {
		pairs = append(pairs, tenantKey, c.settings.tenant)
	}
	for _, pair := range c.settings.metadata {
		pairs = append(pairs, pair[0], pair[1])
	}
	return metadata.AppendToOutgoingContext(ctx, pairs...)
}

func (s *callSettings) fill(info CallInfo) {
	for _, each := range []*CallInfo{s.info, s.also} {
		if each != nil {
			*each = info
		}
	}
}

// deadlineError returns the error of a call whose deadline has passed.
func (c *call) deadlineError(ctx context.Context) *RoutingError {
	made := &RoutingError{Code: codes.DeadlineExceeded, Method: c.method, RequestID: c.requestID, SessionID: c.sessionID, Attempts: c.attempts, cause: context.DeadlineExceeded}
	if errors.Is(ctx.Err(), context.Canceled) {
		made.Code, made.cause, made.Message = codes.Canceled, context.Canceled, "the caller gave up"
		return made
	}
	withoutDetails(made, c.client.target)
	return made
}
