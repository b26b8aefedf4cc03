package agentrouting

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

const (
	// Calls in a row without an answer, each with all its attempts, that open the circuit. One call
	// that fails may have met a restart.
	circuitFailuresMax = 3
	// How long an open circuit waits before the next probe, doubled after each that fails.
	circuitOpenFirst = time.Second
	circuitOpenMax   = 8 * time.Second
	// The time limit of a probe, which is a user's message.
	circuitProbe = time.Second
)

// CircuitState says whether messages are sent to the service or decided at once.
type CircuitState string

const (
	// CircuitClosed: calls are sent.
	CircuitClosed CircuitState = "closed"
	// CircuitOpen: messages are decided by the client at once.
	CircuitOpen CircuitState = "open"
	// CircuitHalfOpen: as open; one message is on its way as a probe.
	CircuitHalfOpen CircuitState = "half_open"
)

// Circuit is what a client's circuit breaker reports, for metrics. The breaker never makes a call
// fail: it only lets Route decide at once what it would decide after waiting.
type Circuit struct {
	State CircuitState
	// Opened is how often the circuit has opened.
	Opened int
	// Skipped is how many messages were decided at once because the circuit was open.
	Skipped int
}

type circuit struct {
	mu        sync.Mutex
	logger    *slog.Logger
	answered  time.Time
	failures  int
	open      time.Duration // 0: closed
	probeAt   time.Time
	probeEnds time.Time
	opened    int
	skipped   int
}

func (c *circuit) report() Circuit {
	c.mu.Lock()
	defer c.mu.Unlock()
	state := CircuitClosed
	if c.open > 0 {
		state = CircuitOpen
		if time.Now().Before(c.probeEnds) {
			state = CircuitHalfOpen
		}
	}
	return Circuit{State: state, Opened: c.opened, Skipped: c.skipped}
}

// limit returns how long a message may wait for the service, 0 for not at all; false: no limit.
func (c *circuit) limit() (time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == 0 {
		return 0, false
	}
	now := time.Now()
	if now.Before(c.probeAt) || now.Before(c.probeEnds) {
		c.skipped++
		return 0, true
	}
	c.probeEnds = now.Add(circuitProbe)
	return circuitProbe, true
}

// succeeded counts an answer of any kind: the service is there.
func (c *circuit) succeeded() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open > 0 {
		c.logger.Info("circuit_closed", "skipped_total", c.skipped)
	}
	c.answered = time.Now()
	c.failures, c.open, c.probeEnds = 0, 0, time.Time{}
}

// answeredWithin tells whether the service has answered a call of this client in this time.
func (c *circuit) answeredWithin(span time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.answered) <= span
}

// failed counts a call without an answer.
func (c *circuit) failed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures++
	now := time.Now()
	switch {
	case c.open > 0 && now.Before(c.probeAt):
		return // It was sent before the circuit opened.
	case c.open > 0:
		c.open = min(2*c.open, circuitOpenMax)
	case c.failures >= circuitFailuresMax:
		c.open = circuitOpenFirst
		c.opened++
	default:
		return
	}
	c.probeAt, c.probeEnds = now.Add(c.open), time.Time{}
	c.logger.Warn("circuit_open", "open", c.open, "failures", c.failures)
}

// count counts a call that failed, with all its attempts.
func (c *circuit) count(err *RoutingError) {
	switch {
	case errors.Is(err.cause, context.Canceled):
		// The caller gave up, which says nothing about the service.
	case !err.mayFallBack():
		c.succeeded()
	case err.Reason == "" || err.wasUnanswered():
		c.failed()
	}
}
