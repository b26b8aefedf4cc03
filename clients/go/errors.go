package agentrouting

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errorDomain is ErrorInfo's domain. A reason of another domain is a proxy's, and is not reported
// as ours.
const errorDomain = "agent_routing"

// unhealthy is what grpc says, under UNAVAILABLE, if every replica reports by its health service
// that it cannot serve. No replica is asked then, so that none gives the reason.
const unhealthy = "health check failed"

// unhealthyRetryAfter is what the service asks for when its store is away.
const unhealthyRetryAfter = 250 * time.Millisecond

// Reason is why a call failed, by its name in the contract (error_reason.proto). It is also an
// error to compare with: errors.Is(err, agentrouting.HandoffRefused). Unknown reasons can be
// compared too: Reason("NEW_ONE").
type Reason string

// Error returns the reason's name.
func (r Reason) Error() string { return string(r) }

// Violation is a bad field, or a rule that refused.
type Violation struct {
	// Name is the field's path ("items[2].uri") or the rule's name ("entitled").
	Name string
	// Subject is what the rule refused, such as the target's agent id; empty for a field.
	Subject string
	// Detail says what is wrong, with which value, and what to do.
	Detail string
}

// RoutingError is a call that failed. Get it with errors.As, compare its reason with errors.Is, or
// get one of the types of reasons.go, which read the metadata of their reason:
//
//	var refused *agentrouting.HandoffRefusedError
//	if errors.As(err, &refused) { fmt.Println(refused.Rules()) }
type RoutingError struct {
	// Code is the gRPC status code.
	Code codes.Code
	// Reason is empty if the answer had none, for example if the service did not answer. Use the code
	// then, and for an unknown reason.
	Reason Reason
	// Message says what, which value, and what to do. Its wording is not part of the contract.
	Message string
	// Metadata has the values of the message again, for programs; error_reason.proto documents the
	// keys.
	Metadata map[string]string
	// Violations are all bad fields, or all rules that refused.
	Violations []Violation
	// RetryAfter is how long to wait before a repeat; 0 if the service did not say.
	RetryAfter time.Duration
	// Method is the RPC, such as "Route".
	Method string
	// RequestID is the request's, also if the client generated it; empty for reads.
	RequestID string
	// SessionID is the request's, or the one that the service names; empty if neither had one, and then
	// a repeat with RequestID finds the session.
	SessionID string
	// Attempts is how often the call was sent.
	Attempts int

	status *status.Status
	cause  error
}

// Error returns method, reason and message.
func (e *RoutingError) Error() string {
	if e.Reason == "" {
		return fmt.Sprintf("agentrouting: %s: %s: %s", e.Method, e.Code, e.Message)
	}
	return fmt.Sprintf("agentrouting: %s: %s: %s", e.Method, e.Reason, e.Message)
}

// GRPCStatus returns the unchanged status, for status.FromError.
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

// Unwrap returns the context's error if the caller's context ended the call, so that errors.Is(err,
// context.Canceled) holds.
func (e *RoutingError) Unwrap() error { return e.cause }

// number returns a whole number of the metadata; false if it is missing.
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

// callError returns a failed attempt as a RoutingError. ctx is the caller's: if it has ended, its
// error is the cause.
func callError(ctx context.Context, failure error, call *call) *RoutingError {
	found := status.Convert(failure)
	made := &RoutingError{
		Code:      found.Code(),
		Message:   found.Message(),
		Method:    call.method,
		RequestID: call.requestID,
		SessionID: call.sessionID,
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
	if made.SessionID == "" {
		made.SessionID = made.Metadata["session_id"]
	}
	if made.Reason == "" {
		withoutDetails(made, call.client.target)
	}
	return made
}

// proxyHint returns what an error adds if gRPC goes through a proxy; it never does to loopback.
func proxyHint(target string) string {
	host := target[strings.LastIndex(target, "/")+1:]
	proxy, err := http.ProxyFromEnvironment(&http.Request{URL: &url.URL{Scheme: "https", Host: host}})
	if proxy == nil || err != nil || strings.HasPrefix(target, "unix:") {
		return ""
	}
	return "; it is called through the proxy of HTTPS_PROXY: if it must not be, add it to NO_PROXY"
}

const refusedUnread = "%q has more calls than it can answer and refused this one%s; repeat it later with the same request_id"

// withoutDetails sets reason and message of a failure without details from the service.
func withoutDetails(e *RoutingError, target string) {
	tried := ""
	if e.Attempts > 1 {
		tried = fmt.Sprintf(", after %d attempts", e.Attempts)
	}
	words := e.Message
	if e.wasCutShort() {
		e.Code = codes.Unavailable
	}
	switch {
	case e.wasRefusedStream():
		e.Message = fmt.Sprintf(refusedUnread, target, tried)
	case e.Code == codes.Unavailable && strings.Contains(words, unhealthy):
		e.Reason = StoreUnavailable
		e.RetryAfter = unhealthyRetryAfter
		e.Message = fmt.Sprintf("every replica of %q reports that it cannot serve%s, as while its store is away; repeat with the same request_id", target, tried)
	case e.Code == codes.Unavailable:
		e.Message = fmt.Sprintf("%q cannot be reached%s; is it running there? (%s)%s", target, tried, words, proxyHint(target))
	case e.Code == codes.DeadlineExceeded:
		e.Message = fmt.Sprintf("no answer from %q in time%s; a repeat with the same request_id says whether it happened", target, tried)
	case e.Code == codes.ResourceExhausted && strings.Contains(words, "larger than max"):
		// From gRPC itself, on either side: the message is above its channel's limit.
		e.Reason = TooLarge
		e.Message = words + "; send large items by uri"
	case e.isRefusedUnread():
		e.Message = fmt.Sprintf(refusedUnread, target, tried)
	}
}

// wasCutShort tells whether a stream ended without a status: a proxy whose server is gone ends it so,
// or resets it. The service did not answer, as after any lost connection.
func (e *RoutingError) wasCutShort() bool {
	return (e.Code == codes.Internal || e.Code == codes.Unknown) &&
		(strings.Contains(e.Message, "without sending trailers") || strings.Contains(e.Message, "terminated by RST_STREAM"))
}

// isRefusedUnread tells whether a server over its limits refused the call unread. Such a server
// resets the stream, which arrives as CANCELLED, or sends RESOURCE_EXHAUSTED without details.
func (e *RoutingError) isRefusedUnread() bool {
	isRefused := e.Code == codes.Canceled || e.Code == codes.ResourceExhausted || e.wasRefusedStream()
	return e.Reason == "" && e.cause == nil && isRefused
}

// wasRefusedStream tells whether a server did not take the call in, and so never processed it (RFC
// 9113, 8.7).
func (e *RoutingError) wasRefusedStream() bool {
	return e.Code == codes.Unavailable && strings.Contains(e.status.Message(), "REFUSED_STREAM")
}

// wasUnanswered tells whether the call was not decided, so that it may be sent again. An OVERLOADED
// with its reason is an answer: the caller decides when to repeat.
func (e *RoutingError) wasUnanswered() bool {
	return e.Code == codes.Unavailable || e.isRefusedUnread()
}

// mayFallBack tells whether the client may decide about a message that failed with this error.
func (e *RoutingError) mayFallBack() bool {
	return e.wasUnanswered() || e.Code == codes.DeadlineExceeded
}

// asError returns err as a RoutingError, or nil if it is not one.
func asError(err error) *RoutingError {
	var found *RoutingError
	if errors.As(err, &found) {
		return found
	}
	return nil
}
