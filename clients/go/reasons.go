// Code generated from error_reason.proto by scripts/make_errors.py. DO NOT EDIT.

package agentrouting

// The reasons of the contract.
const (
	// MalformedRequest: the bytes are not a valid message of the request's type, or a text in it is
	// not UTF-8.
	// Code INVALID_ARGUMENT. Remedy: Generate the client from this contract, and send text as UTF-8.
	MalformedRequest Reason = "MALFORMED_REQUEST"

	// InvalidField: a field is missing, too long, out of range, or not in its format. BadRequest names
	// every bad field.
	// Code INVALID_ARGUMENT. Remedy: Fix all the named fields. The same request can never succeed.
	InvalidField Reason = "INVALID_FIELD"

	// UnknownSession: the tenant has no such session, or the session was purged.
	// Code NOT_FOUND. Remedy: Check the id and the tenant. A session begins with its first Route or
	// SetActiveAgent.
	UnknownSession Reason = "UNKNOWN_SESSION"

	// UnknownAgent: the registry has no such agent.
	// Code NOT_FOUND. Remedy: Use an id that ListAgents returns.
	UnknownAgent Reason = "UNKNOWN_AGENT"

	// UnknownTask: the session has no such task; if the request names no session, the tenant has none.
	// Code NOT_FOUND. Remedy: Use a task_id from an answer of Route or from ListTasks.
	UnknownTask Reason = "UNKNOWN_TASK"

	// UnknownRequest: the session has dispatched no such request.
	// Code NOT_FOUND. Remedy: Complete the request_id of a Dispatch of this session; Status lists the
	// open ones. If the client routed the message by itself while the service was away, route it again
	// under the same request_id, then complete it.
	UnknownRequest Reason = "UNKNOWN_REQUEST"

	// UnknownSuggestion: the suggestion or quick reply is not open. It was never made, it was accepted
	// or declined, or it ended when the active agent changed.
	// Code NOT_FOUND. Remedy: Route the message without it.
	UnknownSuggestion Reason = "UNKNOWN_SUGGESTION"

	// HandoffRefused: rules refused the handoff. PreconditionFailure names every rule that refused:
	// type is the name of the rule, subject the target's id. The turn stays open and the request_id is
	// not used up. After three refusals in a turn, the home agent is the only target left to that
	// turn.
	// Code FAILED_PRECONDITION. Remedy: Do what each violation says; or hand over to another agent, or
	// to the home agent, which is always a legal target.
	HandoffRefused Reason = "HANDOFF_REFUSED"

	// RequestNotOpen: the request was already completed with another answer, or decided the other way.
	// Code FAILED_PRECONDITION. Remedy: Nothing needs to be done: the first answer stands. Show that
	// one.
	RequestNotOpen Reason = "REQUEST_NOT_OPEN"

	// TaskNotPaused: the task is not waiting for an approval.
	// Code FAILED_PRECONDITION. Remedy: Read Status: another caller may have decided already.
	TaskNotPaused Reason = "TASK_NOT_PAUSED"

	// TaskClosed: the task is completed, failed or cancelled.
	// Code FAILED_PRECONDITION. Remedy: Leave task_id empty, or send a new one.
	TaskClosed Reason = "TASK_CLOSED"

	// TaskOpen: another task of the session is open.
	// Code FAILED_PRECONDITION. Remedy: Leave task_id empty to continue the open task, or clear with
	// CLEAR_SCOPE_SESSION first.
	TaskOpen Reason = "TASK_OPEN"

	// TurnOpen: a message arrived while a turn is open. The registry rejects that (double_text:
	// reject), too many messages of the session wait, or too many turns of the user wait for agents.
	// Code FAILED_PRECONDITION. Remedy: Send the message after the answer to that turn.
	TurnOpen Reason = "TURN_OPEN"

	// AgentUnavailable: the agent that must act is missing, disabled, or not allowed for this user.
	// Code FAILED_PRECONDITION. Remedy: Enable the agent, or clear the session. A paused task stays
	// paused.
	AgentUnavailable Reason = "AGENT_UNAVAILABLE"

	// SessionErased: the session's data were erased; its id is not used again.
	// Code FAILED_PRECONDITION. Remedy: Begin a session with another id.
	SessionErased Reason = "SESSION_ERASED"

	// RevisionMismatch: the session is not at expected_revision, or other writers came first too
	// often. Nothing was written.
	// Code ABORTED. Remedy: Read Status and decide again. A request without an expected_revision can
	// be repeated with the same request_id.
	RevisionMismatch Reason = "REVISION_MISMATCH"

	// RequestIDReused: the request_id was already used in this session for a request with other
	// content.
	// Code ALREADY_EXISTS. Remedy: Send new content under a new request_id, and the old content under
	// the old one.
	RequestIDReused Reason = "REQUEST_ID_REUSED"

	// DeadlinePassed: the caller's deadline passed, or was too near to begin. The call happened whole
	// or not at all.
	// Code DEADLINE_EXCEEDED, retryable. Remedy: Repeat with the same request_id and a longer
	// deadline: the answer says whether the call happened.
	DeadlinePassed Reason = "DEADLINE"

	// Unauthenticated: the call has no credential, or one that is malformed, expired, or for another
	// service. A watch or stream also ends with this when its credential expires.
	// Code UNAUTHENTICATED. Remedy: Sign in again, and send the token as authorization: Bearer.
	Unauthenticated Reason = "UNAUTHENTICATED"

	// OwnerMismatch: the session or task belongs to another user, or user_id is not the credential's.
	// The owner is not named.
	// Code PERMISSION_DENIED. Remedy: Sign in as the owner, or use one of your own sessions.
	OwnerMismatch Reason = "OWNER_MISMATCH"

	// ScopeMissing: the credential lacks a scope: for an RPC, another tenant, another user, or an
	// initiator.
	// Code PERMISSION_DENIED. Remedy: Use a credential that has the scope.
	ScopeMissing Reason = "SCOPE_MISSING"

	// Overloaded: the server has too many calls or streams, or this caller has more than its share.
	// Nothing was done. RetryInfo gives the delay. A call that was refused before it was read has only
	// a code, RESOURCE_EXHAUSTED or CANCELLED, and no details.
	// Code RESOURCE_EXHAUSTED, retryable. Remedy: Repeat after the delay, with the same request_id.
	Overloaded Reason = "OVERLOADED"

	// TooLarge: the request, or the change that it would make, is larger than is ever accepted. Each
	// field may be within its limits.
	// Code RESOURCE_EXHAUSTED. Remedy: Send less: move large items to a file store and send their uri.
	// Waiting does not help.
	TooLarge Reason = "TOO_LARGE"

	// WatchTooSlow: a watcher reads more slowly than changes arrive, and was disconnected. RetryInfo
	// gives the delay.
	// Code RESOURCE_EXHAUSTED, retryable. Remedy: Watch again from there.
	WatchTooSlow Reason = "WATCH_TOO_SLOW"

	// RevisionCompacted: the watch would begin before the oldest change that is kept.
	// Code OUT_OF_RANGE. Remedy: Read Status, then watch from its revision.
	RevisionCompacted Reason = "REVISION_COMPACTED"

	// StoreUnavailable: the store cannot be reached, is busy for too long, or is full. The change may
	// have been stored all the same. RetryInfo gives the delay.
	// Code UNAVAILABLE, retryable. Remedy: Repeat with the same request_id.
	StoreUnavailable Reason = "STORE_UNAVAILABLE"

	// SchemaTooNew: the session was written by a newer release than this replica's.
	// Code UNAVAILABLE, retryable. Remedy: Repeat: another replica may be newer. Finish the upgrade.
	SchemaTooNew Reason = "SCHEMA_TOO_NEW"

	// StateCorrupt: what the store holds of this session cannot be read. Other sessions are not
	// affected.
	// Code DATA_LOSS. Remedy: Restore the session from a backup, or begin another one.
	StateCorrupt Reason = "STATE_CORRUPT"

	// Internal: the service made a mistake.
	// Code INTERNAL. Remedy: Report it with its error id.
	Internal Reason = "INTERNAL"

	// NotImplemented: this server does not have the RPC, or the feature that a field asks for.
	// Code UNIMPLEMENTED. Remedy: Use a server that has it.
	NotImplemented Reason = "NOT_IMPLEMENTED"

	// ShuttingDown: the server is about to stop. RetryInfo gives the delay.
	// Code UNAVAILABLE, retryable. Remedy: Repeat on another replica, with the same request_id.
	ShuttingDown Reason = "SHUTTING_DOWN"

	// RegistryInvalid: the registry file has mistakes; the registry in force stays.
	// PreconditionFailure names every mistake.
	// Code FAILED_PRECONDITION. Remedy: Correct each mistake as its violation says, then reload.
	RegistryInvalid Reason = "REGISTRY_INVALID"

	// SignInUnavailable: the server has no key of its identity provider yet, and cannot check
	// credentials. RetryInfo gives the delay.
	// Code UNAVAILABLE, retryable. Remedy: Repeat with the same request_id. The log tells the operator
	// why the keys cannot be fetched.
	SignInUnavailable Reason = "SIGN_IN_UNAVAILABLE"

	// LeaseLost: the lease on a turn from an inbox is another worker's by now, or the turn was moved.
	// Code FAILED_PRECONDITION. Remedy: Stop working on the turn: another worker has it, or it needs
	// no answer any more.
	LeaseLost Reason = "LEASE_LOST"

	// StoreFormat: the store's format is too old for what was asked for: an older release may be
	// serving. This release stores everything in format 2, which it needs at start, so it does not
	// answer this; 0.2 does.
	// Code FAILED_PRECONDITION. Remedy: Raise the store's format once no older replica is left, or
	// leave the feature out.
	StoreFormat Reason = "STORE_FORMAT"

	// ApprovalDecided: the approval was decided already, and the other way.
	// Code FAILED_PRECONDITION. Remedy: Nothing needs to be done: show which decision stands.
	ApprovalDecided Reason = "APPROVAL_DECIDED"

	// ApproverRefused: the registry's rule for approvals does not let this caller decide.
	// Code PERMISSION_DENIED. Remedy: Let another person decide, or sign in with a credential that has
	// the role.
	ApproverRefused Reason = "APPROVER_REFUSED"

	// Claimed: another person has claimed the conversation.
	// Code FAILED_PRECONDITION. Remedy: Leave the conversation to that person, or take it over:
	// ClaimTurn with take_over.
	Claimed Reason = "CLAIMED"

	// NothingToClaim: the conversation is not with the agent for which it was to be claimed.
	// Code FAILED_PRECONDITION. Remedy: Read the inbox again: the conversation was answered or handed
	// on.
	NothingToClaim Reason = "NOTHING_TO_CLAIM"

	// TasksOpen: as many tasks as can be are parked, and the message names one more (tasks: new).
	// Code FAILED_PRECONDITION. Remedy: Finish or cancel a parked task first, or leave task_id empty
	// to join the open one.
	TasksOpen Reason = "TASKS_OPEN"

	// ReplayRunning: a replay of the tenant runs on this server already.
	// Code FAILED_PRECONDITION. Remedy: Watch the replay, or cancel it and start again.
	ReplayRunning Reason = "REPLAY_RUNNING"

	// UnknownReplay: this server has no such replay. It may have been restarted, or another replica
	// has the replay.
	// Code NOT_FOUND. Remedy: Ask the replica that started it, or start it again.
	UnknownReplay Reason = "UNKNOWN_REPLAY"

	// RegistryReadOnly: the server may not replace its registry file.
	// Code FAILED_PRECONDITION. Remedy: Change the file where it comes from, such as a ConfigMap or a
	// repository, then reload.
	RegistryReadOnly Reason = "REGISTRY_READ_ONLY"

	// StateChanged: what an operator's act is about has changed since it was read. Nothing was done.
	// Code ABORTED. Remedy: Read the state again, or try the act again with validate_only, and decide
	// again.
	StateChanged Reason = "STATE_CHANGED"
)

// As returns the error as the type of its reason.
func (e *RoutingError) As(target any) bool {
	switch wanted := target.(type) {
	case **InvalidFieldError:
		return as(e, InvalidField, func() { *wanted = &InvalidFieldError{e} })
	case **UnknownSessionError:
		return as(e, UnknownSession, func() { *wanted = &UnknownSessionError{e} })
	case **UnknownAgentError:
		return as(e, UnknownAgent, func() { *wanted = &UnknownAgentError{e} })
	case **UnknownTaskError:
		return as(e, UnknownTask, func() { *wanted = &UnknownTaskError{e} })
	case **HandoffRefusedError:
		return as(e, HandoffRefused, func() { *wanted = &HandoffRefusedError{e} })
	case **TaskOpenError:
		return as(e, TaskOpen, func() { *wanted = &TaskOpenError{e} })
	case **TurnOpenError:
		return as(e, TurnOpen, func() { *wanted = &TurnOpenError{e} })
	case **RevisionMismatchError:
		return as(e, RevisionMismatch, func() { *wanted = &RevisionMismatchError{e} })
	case **ScopeMissingError:
		return as(e, ScopeMissing, func() { *wanted = &ScopeMissingError{e} })
	case **WatchTooSlowError:
		return as(e, WatchTooSlow, func() { *wanted = &WatchTooSlowError{e} })
	case **RevisionCompactedError:
		return as(e, RevisionCompacted, func() { *wanted = &RevisionCompactedError{e} })
	case **StateCorruptError:
		return as(e, StateCorrupt, func() { *wanted = &StateCorruptError{e} })
	case **InternalError:
		return as(e, Internal, func() { *wanted = &InternalError{e} })
	}
	return false
}

// InvalidFieldError is a RoutingError with the reason InvalidField.
type InvalidFieldError struct{ *RoutingError }

// Fields returns the paths of the bad fields, such as "task_id" or "items[2].uri".
func (e *InvalidFieldError) Fields() []string { return names(e.Violations) }

// UnknownSessionError is a RoutingError with the reason UnknownSession.
type UnknownSessionError struct{ *RoutingError }

// SessionID returns the session of the request.
func (e *UnknownSessionError) SessionID() string { return e.Metadata["session_id"] }

// UnknownAgentError is a RoutingError with the reason UnknownAgent.
type UnknownAgentError struct{ *RoutingError }

// AgentID returns the agent of the request.
func (e *UnknownAgentError) AgentID() string { return e.Metadata["agent_id"] }

// UnknownTaskError is a RoutingError with the reason UnknownTask.
type UnknownTaskError struct{ *RoutingError }

// TaskID returns the task of the request.
func (e *UnknownTaskError) TaskID() string { return e.Metadata["task_id"] }

// HandoffRefusedError is a RoutingError with the reason HandoffRefused.
type HandoffRefusedError struct{ *RoutingError }

// Rules returns the names of the rules that refused, in the order of their evaluation.
func (e *HandoffRefusedError) Rules() []string { return names(e.Violations) }

// AgentID returns the target of the handoff.
func (e *HandoffRefusedError) AgentID() string { return e.Metadata["agent_id"] }

// FromAgentID returns the agent that wanted to hand over.
func (e *HandoffRefusedError) FromAgentID() string { return e.Metadata["from_agent_id"] }

// TaskOpenError is a RoutingError with the reason TaskOpen.
type TaskOpenError struct{ *RoutingError }

// OpenTaskID returns the task that is open.
func (e *TaskOpenError) OpenTaskID() string { return e.Metadata["open_task_id"] }

// TurnOpenError is a RoutingError with the reason TurnOpen.
type TurnOpenError struct{ *RoutingError }

// OpenRequestID returns the request that is not answered.
func (e *TurnOpenError) OpenRequestID() string { return e.Metadata["request_id"] }

// RevisionMismatchError is a RoutingError with the reason RevisionMismatch.
type RevisionMismatchError struct{ *RoutingError }

// Expected returns the revision that the request expected; false if the error does not say.
func (e *RevisionMismatchError) Expected() (int64, bool) { return e.number("expected_revision") }

// Actual returns the revision of the session; false if the error does not say.
func (e *RevisionMismatchError) Actual() (int64, bool) { return e.number("revision") }

// ScopeMissingError is a RoutingError with the reason ScopeMissing.
type ScopeMissingError struct{ *RoutingError }

// Scope returns the scope that the credential lacks.
func (e *ScopeMissingError) Scope() string { return e.Metadata["scope"] }

// WatchTooSlowError is a RoutingError with the reason WatchTooSlow.
type WatchTooSlowError struct{ *RoutingError }

// Revision returns the last revision sent; false if the error does not say.
func (e *WatchTooSlowError) Revision() (int64, bool) { return e.number("revision") }

// RevisionCompactedError is a RoutingError with the reason RevisionCompacted.
type RevisionCompactedError struct{ *RoutingError }

// OldestRevision returns the oldest revision kept; false if the error does not say.
func (e *RevisionCompactedError) OldestRevision() (int64, bool) { return e.number("oldest_revision") }

// StateCorruptError is a RoutingError with the reason StateCorrupt.
type StateCorruptError struct{ *RoutingError }

// ErrorID returns the id under which the server's log has the cause.
func (e *StateCorruptError) ErrorID() string { return e.Metadata["error_id"] }

// InternalError is a RoutingError with the reason Internal.
type InternalError struct{ *RoutingError }

// ErrorID returns the id under which the server's log has the cause.
func (e *InternalError) ErrorID() string { return e.Metadata["error_id"] }
