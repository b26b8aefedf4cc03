package agentrouting

import (
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// An attempt that nobody answered takes a token, and a repeat needs more than half of them: fifty
	// calls on their way to a replica that died are all repeated, and an outage ends a client's
	// repeats after fifty attempts over all calls.
	throttleTokensMax = 100.0
	// What a successful call gives back.
	throttleTokensPerSuccess = 0.5
	// Of the backoff: by then any first wait has long met its bound.
	doublingsMax = 30
)

// RetryPolicy says how often and when a call that nobody answered is sent again. The wait before
// attempt n+1 is drawn evenly from 0 to BackoffFirst * 2^(n-1), at most BackoffMax, and comes after
// the delay that the service asks for; all of it within the call's deadline. A repeat is the same
// request under the same request_id, which the service handles once.
type RetryPolicy struct {
	// AttemptsMax counts the first attempt too; 1: never again.
	AttemptsMax int
	// BackoffFirst bounds the first wait.
	BackoffFirst time.Duration
	// BackoffMax bounds every wait.
	BackoffMax time.Duration
}

// DefaultRetry is the policy of a client that is given none.
var DefaultRetry = RetryPolicy{AttemptsMax: 4, BackoffFirst: 200 * time.Millisecond, BackoffMax: 2 * time.Second}

// backoff returns how long to wait after so many attempts, 1 or more, drawn anew each time.
func (p RetryPolicy) backoff(attempts int) time.Duration {
	ceiling := p.BackoffFirst << min(attempts-1, doublingsMax)
	if ceiling > p.BackoffMax || ceiling < p.BackoffFirst {
		ceiling = p.BackoffMax
	}
	if ceiling <= 0 {
		return 0
	}
	return time.Duration(rand.Int64N(int64(ceiling)))
}

// throttle stops a client's repeats while most of its calls fail, as gRPC's retryThrottling does.
type throttle struct {
	mu    sync.Mutex
	spent float64
}

func (t *throttle) succeeded() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.spent = max(0, t.spent-throttleTokensPerSuccess)
}

// mayRetry counts an attempt that nobody answered, and tells whether another may follow.
func (t *throttle) mayRetry() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.spent = min(throttleTokensMax, t.spent+1)
	return t.spent < throttleTokensMax/2
}
