package agentrouting

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc/codes"
)

// reconnecting says when a stream connects again, and when it gives up. The caller counts each
// connection in call.attempts.
type reconnecting struct {
	client      *Client
	call        *call
	awayTimeout time.Duration
	awaySince   time.Time
}

// newReconnecting returns it for a stream without a deadline. awayTimeout 0: the service may be
// away for ever.
func newReconnecting(client *Client, method, sessionID string, awayTimeout time.Duration) *reconnecting {
	unlimited := &call{client: client, method: method, sessionID: sessionID, deadline: time.Now().AddDate(1, 0, 0)}
	return &reconnecting{client: client, call: unlimited, awayTimeout: awayTimeout}
}

// alive records a sign of life of the service.
func (r *reconnecting) alive() { r.awaySince, r.call.attempts = time.Time{}, 0 }

// waitAfter returns how long to wait before the next connection, or the error that ends the watch:
// a refusal, or a service that has been away for too long. where: the stream's position, for the log.
func (r *reconnecting) waitAfter(ctx context.Context, err error, where ...any) (time.Duration, *RoutingError) {
	now := time.Now()
	if r.awaySince.IsZero() {
		r.awaySince = now
	}
	wasAlive := r.call.attempts == 0
	r.call.attempts = max(1, r.call.attempts)
	var failure *RoutingError
	if errors.Is(err, io.EOF) {
		// For example by a proxy that limits how long a connection may last.
		failure = &RoutingError{Code: codes.Unavailable, Method: r.call.method, SessionID: r.call.sessionID, Attempts: r.call.attempts,
			Message: "the service ends each watch as it begins; is there a proxy in between?"}
	} else {
		failure = callError(ctx, err, r.call)
	}
	wait := r.client.settings.retry.backoff(r.call.attempts) + failure.RetryAfter
	// A watch whose token expired under way continues with another token.
	mayRenew := wasAlive && len(r.client.settings.tokens) > 0 && failure.Code == codes.Unauthenticated
	mayComeBack := mayRenew || failure.Code == codes.Unavailable || failure.Reason == Overloaded ||
		failure.Reason == WatchTooSlow || failure.isRefusedUnread()
	isTooLong := r.awayTimeout > 0 && now.Sub(r.awaySince)+wait > r.awayTimeout
	if !mayComeBack || isTooLong {
		return 0, failure
	}
	r.client.settings.logger.Debug("watch_resumed",
		append([]any{"method", r.call.method, "wait", wait, "code", failure.Code.String()}, where...)...)
	return wait, nil
}
