package agentrouting

import (
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// An unanswered attempt takes a token, and a repeat needs more than half of them: fifty calls on
	// their way to a replica that died are all repeated, and an outage stops a client's repeats after
	// fifty attempts over all calls.
	throttleTokensMax = 100.0
	// What a successful call returns.
	throttleTokensPerSuccess = 0.5
	// Limit of the exponent: by then any first wait has reached its maximum.
	doublingsMax = 30
)

// RetryPolicy says how often and when an unanswered call is sent again. The wait before attempt n+1
// is random between 0 and BackoffFirst * 2^(n-1), at most BackoffMax, plus the delay that the
// service asks for. All attempts are within the call's deadline. A repeat is the same request under
// the same request_id, which the service handles once.
type RetryPolicy struct {
	// AttemptsMax includes the first attempt; 1: no repeats.
	AttemptsMax int
	// BackoffFirst is the maximum of the first wait.
	BackoffFirst time.Duration
	// BackoffMax is the maximum of every wait.
	BackoffMax time.Duration
}

// DefaultRetry is the default policy.
var DefaultRetry = RetryPolicy{AttemptsMax: 4, BackoffFirst: 200 * time.Millisecond, BackoffMax: 2 * time.Second}

// backoff returns how long to wait after this many attempts (1 or more), at random.
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

// mayRetry counts an unanswered attempt, and tells whether another may follow.
func (t *throttle) mayRetry() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.spent = min(throttleTokensMax, t.spent+1)
	return t.spent < throttleTokensMax/2
}
