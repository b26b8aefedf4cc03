package agentrouting

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errorDomain is ErrorInfo's domain: reasons of others are a proxy's, and not ours to name.
const errorDomain = "agent_routing"

// Reason is why a call failed, as the contract names it (error_reason.proto). It is an error too, to
// be compared with: errors.Is(err, agentrouting.HandoffRefused). Reasons that this release does not
// know can be compared as well: Reason("NEW_ONE").
type Reason string

// Error returns the reason's name.
func (r Reason) Error() string { return string(r) }

// Violation is one field that is bad, or one rule that refused.
type Violation struct {
	// Name is the field's path ("items[2].uri") or the rule's name ("entitled").
	Name string
	// Subject is what the rule refused, such as the target's agent id; empty for a field.
	Subject string
	// Detail says what is wrong, with which value, and what to do.
	Detail string
}

// RoutingError is a call that failed. Take it out of an error with errors.As, or ask for its reason with
// errors.Is, or for one of the types below, which read the metadata of theirs:
//
//	var refused *agentrouting.HandoffRefusedError
//	if errors.As(err, &refused) { fmt.Println(refused.Rules()) }
type RoutingError struct {
	// Code is the gRPC status code.
	Code codes.Code
	// Reason is empty where the answer had none, as when nobody answered. Go by the code then, and
	// with a reason that is not known.
	Reason Reason
	// Message says what, which value, and what to do. Its wording is not part of the contract.
	Message string
	// Metadata has the message's values again, for programs; error_reason.proto says which.
	Metadata map[string]string
	// Violations are all bad fields, or all rules that refused.
	Violations []Violation
	// RetryAfter is how long to wait before a repeat makes sense; 0 where the service did not say.
	RetryAfter time.Duration
	// Method is the RPC, such as "Route".
	Method string
	// RequestID is the request's, also where the client made it; empty for reads.
	RequestID string
	// Attempts is how often the call was sent.
	Attempts int

	status *status.Status
	cause  error
}

// Error returns the message, with method and reason before it.
func (e *RoutingError) Error() string {
	if e.Reason == "" {
		return fmt.Sprintf("agentrouting: %s: %s: %s", e.Method, e.Code, e.Message)
	}
	return fmt.Sprintf("agentrouting: %s: %s: %s", e.Method, e.Reason, e.Message)
}

// GRPCStatus returns the status as it came, for status.FromError and what is built on it.
func (e *RoutingError) GRPCStatus() *status.Status { return e.status }

// Is tells whether target is the error's reason.
func (e *RoutingError) Is(target error) bool {
	reason, ok := target.(Reason)
	return ok && reason == e.Reason
}

func as(e *RoutingError, reason Reason, set func()) bool {
	if e.Reason != reason {
		return false
	}
	set()
	return true
}

// Unwrap returns the context's error where the caller's own context ended the call, so that
// errors.Is(err, context.Canceled) holds.
func (e *RoutingError) Unwrap() error { return e.cause }

// number returns a whole number of the metadata; false where it is missing.
func (e *RoutingError) number(key string) (int64, bool) {
	value, err := strconv.ParseInt(e.Metadata[key], 10, 64)
	return value, err == nil
}

func names(violations []Violation) []string {
	made := make([]string, len(violations))
	for place, violation := range violations {
		made[place] = violation.Name
	}
	return made
}

// callError returns a failed attempt as a RoutingError. ctx is the caller's: where that is over, its own
// error is the cause.
func callError(ctx context.Context, failure error, call *call) *RoutingError {
	found := status.Convert(failure)
	made := &RoutingError{
		Code:      found.Code(),
		Message:   found.Message(),
		Method:    call.method,
		RequestID: call.requestID,
		Attempts:  call.attempts,
		status:    found,
	}
	if cause := ctx.Err(); cause != nil && (found.Code() == codes.Canceled || found.Code() == codes.DeadlineExceeded) {
		made.cause = cause
	} else if call.isLate() && found.Code() == codes.DeadlineExceeded {
		made.cause = context.DeadlineExceeded
	}
	for _, detail := range found.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			if detail.GetDomain() == errorDomain {
				made.Reason = Reason(detail.GetReason())
				made.Metadata = detail.GetMetadata()
			}
		case *errdetails.BadRequest:
			for _, each := range detail.GetFieldViolations() {
				made.Violations = append(made.Violations, Violation{Name: each.GetField(), Detail: each.GetDescription()})
			}
		case *errdetails.PreconditionFailure:
			for _, each := range detail.GetViolations() {
				made.Violations = append(made.Violations, Violation{each.GetType(), each.GetSubject(), each.GetDescription()})
			}
		case *errdetails.RetryInfo:
			made.RetryAfter = detail.GetRetryDelay().AsDuration()
		}
	}
	if made.Reason == "" {
		withoutDetails(made, call.client.target)
	}
	return made
}

// withoutDetails gives code and words to a failure of which the service itself said nothing.
func withoutDetails(e *RoutingError, target string) {
	tried := ""
	if e.Attempts > 1 {
		tried = fmt.Sprintf(", after %d attempts", e.Attempts)
	}
	words := e.Message
	switch {
	case e.Code == codes.Unavailable:
		e.Message = fmt.Sprintf("%q cannot be reached%s; is it running there? (%s)", target, tried, words)
	case e.Code == codes.DeadlineExceeded:
		e.Message = fmt.Sprintf("no answer from %q in time%s; a repeat with the same request_id says whether it happened", target, tried)
	case e.Code == codes.ResourceExhausted && strings.Contains(words, "larger than max"):
		// Said by gRPC itself, on either side, of a message above the limit of its channel.
		e.Reason = TooLarge
		e.Message = words + "; send large items by uri"
	case e.isRefusedUnread():
		e.Message = fmt.Sprintf("%q has more calls than it can answer and refused this one%s; repeat it later with the same request_id", target, tried)
	}
}

// isRefusedUnread tells whether a server over its limits refused the call before it read it: it
// resets the stream, which arrives as CANCELLED, or says RESOURCE_EXHAUSTED and no more.
func (e *RoutingError) isRefusedUnread() bool {
	return e.Reason == "" && e.cause == nil && (e.Code == codes.Canceled || e.Code == codes.ResourceExhausted)
}

// wasUnanswered tells whether nobody decided about the call, so that it may be sent again. An
// OVERLOADED with its reason is an answer: when to come back is for the caller to decide.
func (e *RoutingError) wasUnanswered() bool {
	return e.Code == codes.Unavailable || e.Code == codes.Canceled && e.isRefusedUnread()
}

// mayFallBack tells whether a message that failed so is the client's to decide about: nobody did.
func (e *RoutingError) mayFallBack() bool {
	return e.Code == codes.Unavailable || e.Reason == Overloaded || e.isRefusedUnread() ||
		e.Code == codes.DeadlineExceeded
}

// asError returns err as a RoutingError, nil if it is none.
func asError(err error) *RoutingError {
	var found *RoutingError
	if errors.As(err, &found) {
		return found
	}
	return nil
}
