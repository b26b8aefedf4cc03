package agentrouting

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/agent-routing/go/v1"
)

const (
	// DefaultConcurrency is how many turns a worker takes at a time: agents wait for models most of the
	// time.
	DefaultConcurrency = 10
	// DefaultLease is how long a turn waits for another worker after a crash.
	DefaultLease = 30 * time.Second
	// DefaultAttempts is how often a function that fails is tried, before its turn ends with a failure.
	// The service abandons a turn after five leases without an answer.
	DefaultAttempts = 3
	// DefaultStopTimeout is how long running functions may take to end when the worker stops; then
	// their turns are given back. Kubernetes kills a process after 30 s.
	DefaultStopTimeout = 20 * time.Second

	// The longest pause before a function that failed is tried again; the first is a second.
	retryPauseMax = 30 * time.Second
	// How often a lease is extended while it runs, so that one lost call does not lose it.
	keepsPerLease = 3
	// Between two reports of an answer while the service is away.
	reportPause = time.Second
	// What the history says of a turn whose function failed each time. The log has the error.
	failedMessage = "the agent failed"
	// Of the host's name in a worker's own name, which has 128 characters at most.
	hostCharactersMax = 96
)

// InboxTurn is a turn for an agent's function: the generated message, with shortcuts. Its attempt is 1
// for the first delivery. One that a test makes reports nothing.
type InboxTurn struct {
	*v1.InboxItem
	reports *turnReports
}

// Text returns the user's message, without its command.
func (t *InboxTurn) Text() string { return t.GetDispatch().GetText() }

// AgentID returns the agent that must answer.
func (t *InboxTurn) AgentID() string { return t.GetDispatch().GetAgent().GetAgentId() }

// RequestID returns the request to answer, the same in each attempt: the key of what must happen once,
// such as a payment.
func (t *InboxTurn) RequestID() string { return t.GetDispatch().GetRequestId() }

// AgentFunc answers a turn of an agent. ctx ends when the turn is no longer this worker's, or when the
// worker ends; an answer that comes later is dropped. After an error, or a panic, the turn is tried
// again.
type AgentFunc func(ctx context.Context, turn *InboxTurn) (*Answer, error)

// WorkerOptions are the settings of a worker. A zero field has its default.
type WorkerOptions struct {
	// WorkerID is shown to operators. 1-128 characters. Default: host and process.
	WorkerID string
	// Concurrency is how many turns run at a time, 1-1,000. Default: DefaultConcurrency.
	Concurrency int
	// Lease is how long a crash keeps a turn back, 1 s to 1 h. Default: DefaultLease.
	Lease time.Duration
	// Attempts is how often a function that fails is tried. Default: DefaultAttempts.
	Attempts int
	// StopTimeout is how long functions may take to end when the worker stops. Default:
	// DefaultStopTimeout.
	StopTimeout time.Duration
	// HistoryTurns is how many past turns are sent along with each turn, as in Route.
	HistoryTurns int32
}

// Worker runs functions on the turns of their agents, from their inboxes.
//
// A turn is answered under its lease. The worker extends the lease while the function runs, and ends
// the function's context when the turn is no longer its own. A worker that crashes lets the lease
// lapse, and the turn is delivered again: so a function may run more than once for a turn, and one
// answer counts.
type Worker struct {
	client    *Client
	options   WorkerOptions
	functions map[string]AgentFunc
	mu        sync.Mutex
	running   map[string]bool // by lease token
}

// NewWorker returns a worker. The client stays the caller's to close.
func NewWorker(client *Client, options WorkerOptions) *Worker {
	if options.WorkerID == "" {
		options.WorkerID = ownName()
	}
	options.Concurrency = orDefault(options.Concurrency, DefaultConcurrency)
	options.Lease = orDefault(options.Lease, DefaultLease)
	options.Attempts = orDefault(options.Attempts, DefaultAttempts)
	options.StopTimeout = orDefault(options.StopTimeout, DefaultStopTimeout)
	return &Worker{client: client, options: options, functions: map[string]AgentFunc{}, running: map[string]bool{}}
}

func orDefault[Value comparable](given, otherwise Value) Value {
	var zero Value
	if given == zero {
		return otherwise
	}
	return given
}

// Handle registers the function of an agent, before Run. It panics if the agent has one already.
func (w *Worker) Handle(agentID string, run AgentFunc) {
	if w.functions[agentID] != nil {
		panic(fmt.Sprintf("agentrouting: agent %q has a function already", agentID))
	}
	w.functions[agentID] = run
}

// Run takes turns until ctx ends: then it takes no more, waits for the running functions, gives the
// other turns back, and returns nil. A service that is away is waited for, however long. The error is
// a refusal of the service, ErrClosed, or that there are no functions.
//
//	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
//	defer stop()
//	err := worker.Run(ctx)
func (w *Worker) Run(ctx context.Context) error {
	if len(w.functions) == 0 {
		return errors.New("agentrouting: the worker has no functions; register them with worker.Handle")
	}
	ending, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	var turns sync.WaitGroup
	err := w.take(ctx, func(item *v1.InboxItem) {
		if w.isNew(item) {
			turns.Add(1)
			go func() {
				defer turns.Done()
				defer w.isOver(item)
				w.work(ending, item)
			}()
		}
	})
	if ctx.Err() != nil {
		err = nil
	}
	ended := make(chan struct{})
	go func() {
		turns.Wait()
		close(ended)
	}()
	if err == nil {
		select {
		case <-ended:
		case <-time.After(w.options.StopTimeout):
		}
	}
	end()
	<-ended
	return err
}

// isNew tells whether a turn's function is to be begun: a turn that is sent again after a lost
// connection still has its function.
func (w *Worker) isNew(item *v1.InboxItem) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running[item.GetLeaseToken()] {
		return false
	}
	w.running[item.GetLeaseToken()] = true
	return true
}

func (w *Worker) isOver(item *v1.InboxItem) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.running, item.GetLeaseToken())
}

// take reads the inbox, over as many connections as it takes.
func (w *Worker) take(ctx context.Context, begin func(*v1.InboxItem)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(w.client.closing, cancel)()
	request := &v1.WatchInboxRequest{
		WorkerId:     w.options.WorkerID,
		Capacity:     int32(w.options.Concurrency),
		Lease:        durationpb.New(w.options.Lease),
		HistoryTurns: w.options.HistoryTurns,
	}
	for agentID := range w.functions {
		request.AgentIds = append(request.AgentIds, agentID)
	}
	again := newReconnecting(w.client, "WatchInbox", "", 0)
	for {
		again.call.attempts++
		err := w.oneConnection(ctx, request, again, begin)
		if w.client.closing.Err() != nil {
			return ErrClosed
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		wait, failure := again.waitAfter(ctx, err, "worker_id", w.options.WorkerID)
		if failure != nil {
			return failure
		}
		if err := pause(ctx, w.client.closing, wait); err != nil {
			return err
		}
	}
}

// oneConnection begins the turns of one connection, and returns why it ended.
func (w *Worker) oneConnection(ctx context.Context, request *v1.WatchInboxRequest, again *reconnecting, begin func(*v1.InboxItem)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stub, release, err := w.client.streams.take()
	if err != nil {
		return err
	}
	defer release()
	// A copy: gRPC may still read the request when the next connection changes it.
	stream, err := stub.WatchInbox(w.client.outgoing(ctx), proto.Clone(request).(*v1.WatchInboxRequest))
	if err != nil {
		return err
	}
	for {
		message, err := stream.Recv()
		if err != nil {
			return err
		}
		again.alive()
		if beat := message.GetHeartbeat(); beat != nil {
			request.ResumeToken = beat.GetResumeToken()
		} else if item := message.GetItem(); item != nil {
			begin(item)
		}
	}
}

// work answers one turn, or leaves it to another attempt.
func (w *Worker) work(ending context.Context, item *v1.InboxItem) {
	ctx, cancel := context.WithCancel(traced(ending, item.GetDispatch()))
	defer cancel()
	turn := &InboxTurn{InboxItem: item}
	turn.reports = newTurnReports(item.GetStepsKnown(),
		func(said *v1.KeepTurnRequest) (*v1.KeepTurnResponse, error) { return w.tell(ctx, turn, said) },
		func(event string, err error) {
			if ctx.Err() == nil {
				w.report(slog.LevelWarn, event, turn, err)
			}
		})
	defer turn.reports.end()
	answered := make(chan error, 1)
	go func() { answered <- w.answer(ctx, turn) }()
	lost := make(chan struct{})
	go func() {
		if w.isLost(ctx, turn) {
			close(lost)
		}
	}()
	select {
	case err := <-answered:
		if err == nil {
			return
		}
		if ending.Err() == nil {
			w.failed(ctx, turn, err)
			return
		}
	case <-lost:
		w.report(slog.LevelWarn, "turn_lost", turn, nil)
		return
	case <-ending.Done():
	}
	// The worker stops: another one gets the turn at once.
	if _, err := w.tell(context.WithoutCancel(ctx), turn, released()); err != nil {
		w.report(slog.LevelWarn, "turn_left", turn, err)
	}
}

// traced returns a context whose calls continue the turn's trace.
func traced(ctx context.Context, dispatch *v1.Dispatch) context.Context {
	if traceparent := dispatch.GetTraceparent(); traceparent != "" {
		return metadata.AppendToOutgoingContext(ctx, "traceparent", traceparent)
	}
	return ctx
}

// answer runs an agent's function and reports what it returned.
func (w *Worker) answer(ctx context.Context, turn *InboxTurn) error {
	answer, err := w.called(ctx, turn)
	if err != nil {
		return err
	}
	if answer == nil {
		return errors.New("the agent's function returned no answer; return one, or an error")
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	answer = proto.Clone(answer).(*v1.CompleteTurnRequest)
	answer.Steps = append(turn.reports.finish(), answer.GetSteps()...)
	answer.Steps = answer.Steps[:min(len(answer.Steps), stepsMax)]
	return w.complete(ctx, turn, answer)
}

// called returns what the function returned; a panic as an error.
func (w *Worker) called(ctx context.Context, turn *InboxTurn) (answer *Answer, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("the agent's function panicked: %v\n%s", cause, debug.Stack())
		}
	}()
	return w.functions[turn.AgentID()](ctx, turn)
}

// complete reports an answer, for as long as it takes: ctx ends if the turn is lost.
func (w *Worker) complete(ctx context.Context, turn *InboxTurn, answer *Answer) error {
	request := proto.Clone(answer).(*v1.CompleteTurnRequest)
	request.SessionId, request.RequestId = turn.GetSessionId(), turn.RequestID()
	request.AgentId, request.LeaseToken = turn.AgentID(), turn.GetLeaseToken()
	if request.GetOutcome() == nil {
		request.Outcome = &v1.CompleteTurnRequest_Proceed{Proceed: &v1.ProceedOutcome{}}
	}
	for {
		_, err := w.client.CompleteTurn(ctx, request)
		switch {
		case errors.Is(err, LeaseLost), errors.Is(err, RequestNotOpen):
			w.report(slog.LevelWarn, "answer_not_taken", turn, err)
			return nil
		case err == nil || !isPassing(err):
			return err
		}
		if err := pause(ctx, w.client.closing, reportPause); err != nil {
			return err
		}
	}
}

// failed lets a turn be tried again after a pause, or ends it with a failure.
func (w *Worker) failed(ctx context.Context, turn *InboxTurn, cause error) {
	w.report(slog.LevelError, "agent_failed", turn, cause)
	var err error
	if int(turn.GetAttempt()) >= w.options.Attempts {
		err = w.complete(ctx, turn, Failed(failedMessage))
	} else {
		// The lease lapses after the pause, and counts as an attempt.
		wait := min(time.Second<<min(turn.GetAttempt()-1, doublingsMax), retryPauseMax)
		_, err = w.tell(ctx, turn, extended(wait))
	}
	if err != nil {
		w.report(slog.LevelWarn, "turn_left", turn, err)
	}
}

// isLost extends a lease until the turn is no longer this worker's; false if ctx ended before.
func (w *Worker) isLost(ctx context.Context, turn *InboxTurn) bool {
	every, took := w.options.Lease/keepsPerLease, time.Duration(0)
	for {
		// A call that timed out is repeated at once: after another pause the lease would be over.
		if pause(ctx, w.client.closing, max(0, every-took)) != nil {
			return false
		}
		begun := time.Now()
		took = 0
		kept, err := w.tell(ctx, turn, extended(w.options.Lease))
		switch {
		case ctx.Err() != nil:
			return false
		case err != nil && isPassing(err):
			// An answer may still count: it is possible that no other worker has the turn.
			took = time.Since(begun)
		case err != nil:
			w.report(slog.LevelWarn, "lease_not_kept", turn, err)
			return true
		case kept.GetStatus() != v1.KeepTurnStatus_KEEP_TURN_STATUS_KEPT:
			return true
		}
	}
}

func extended(lease time.Duration) *v1.KeepTurnRequest {
	return &v1.KeepTurnRequest{Act: &v1.KeepTurnRequest_Extend{Extend: durationpb.New(lease)}}
}

func released() *v1.KeepTurnRequest {
	return &v1.KeepTurnRequest{Act: &v1.KeepTurnRequest_Release{Release: true}}
}

// tell extends a lease, gives it back, or reports something.
func (w *Worker) tell(ctx context.Context, turn *InboxTurn, request *v1.KeepTurnRequest) (*v1.KeepTurnResponse, error) {
	request.SessionId, request.RequestId = turn.GetSessionId(), turn.RequestID()
	request.AgentId, request.LeaseToken = turn.AgentID(), turn.GetLeaseToken()
	ctx, cancel := context.WithTimeout(ctx, w.options.Lease/keepsPerLease)
	defer cancel()
	return w.client.KeepTurn(ctx, request)
}

// isPassing tells whether a call may succeed later.
func isPassing(err error) bool {
	failure := asError(err)
	return failure != nil && (failure.Code == codes.Unavailable || failure.Code == codes.DeadlineExceeded ||
		failure.Reason == Overloaded || failure.isRefusedUnread())
}

func (w *Worker) report(level slog.Level, event string, turn *InboxTurn, err error) {
	fields := []any{"request_id", turn.RequestID(), "agent_id", turn.AgentID(), "attempt", turn.GetAttempt()}
	if err != nil {
		fields = append(fields, "error", err.Error())
	}
	w.client.settings.logger.Log(context.Background(), level, event, fields...)
}

// ownName returns a worker's name: its host, its process, and what tells two of one process apart.
func ownName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "worker"
	}
	host = regexp.MustCompile("[^A-Za-z0-9.-]").ReplaceAllString(host, "-")
	id := NewUUID7()
	return fmt.Sprintf("%s-%d-%s", host[:min(len(host), hostCharactersMax)], os.Getpid(), id[len(id)-8:])
}
