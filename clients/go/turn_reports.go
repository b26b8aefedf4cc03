package agentrouting

import (
	"errors"
	"sync"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	v1 "example.com/agent-routing/go/v1"
)

const (
	// The service stores the steps of a turn at most this often.
	stepsEvery = 5 * time.Second
	// Of one report.
	stepsMax      = 64
	stepsBytesMax = 48 << 10
	// How often a part of the answer is sent: readers see no difference to more often.
	deltaEvery = 100 * time.Millisecond
	// Of one part; the service takes 32 KiB.
	deltaBytesMax = 24 << 10
	// How many characters of the text before come with each part.
	beforeCharacters = 160
)

// Step reports something that was done, for the history and for watchers that ask for it. It is sent at
// once, or 5 s after the report before: what was sent survives a crash. Of a turn 256 steps are kept. What
// could not be sent goes with the answer. A step without a kind is a "tool". Safe in goroutines.
func (t *InboxTurn) Step(step *v1.Step) {
	if t.reports != nil {
		t.reports.step(step)
	}
}

// Note shows the user a line while they wait, such as "still looking". At most 1 KiB. It is stored nowhere,
// and a note that cannot be sent is dropped.
func (t *InboxTurn) Note(text string) {
	if t.reports != nil {
		t.reports.try(&v1.KeepTurnRequest{Note: text})
	}
}

// Delta shows the next part of the answer. It is stored nowhere: return the whole text as well, as
// Say(turn.Written()) does.
func (t *InboxTurn) Delta(text string) {
	if t.reports != nil {
		t.reports.delta(text)
	}
}

// Written returns the parts so far.
func (t *InboxTurn) Written() string {
	if t.reports == nil {
		return ""
	}
	t.reports.mu.Lock()
	defer t.reports.mu.Unlock()
	return t.reports.written
}

// turnReports is what an agent's function says of its turn while it works. Best effort: a report that
// fails never fails the function; steps that were not sent before the answer go with it.
type turnReports struct {
	keep     func(*v1.KeepTurnRequest) (*v1.KeepTurnResponse, error)
	onFailed func(event string, err error)
	ending   chan struct{} // closed when no other report begins
	end      func()

	mu          sync.Mutex
	steps       []*v1.Step
	known       int32 // steps of this attempt that are stored already
	storesSteps bool
	sentSteps   time.Time
	written     string
	sentBytes   int
	reporting   chan struct{} // closed when the goroutine ends; nil if there is none
	sending     chan struct{}
}

// newTurnReports returns the reports of a turn. keep calls KeepTurn for it; onFailed gets what could not
// be sent.
func newTurnReports(known int32, keep func(*v1.KeepTurnRequest) (*v1.KeepTurnResponse, error), onFailed func(string, error)) *turnReports {
	ending := make(chan struct{})
	return &turnReports{
		keep: keep, onFailed: onFailed, known: known, storesSteps: true,
		ending: ending, end: sync.OnceFunc(func() { close(ending) }),
	}
}

func (r *turnReports) step(given *v1.Step) {
	step := proto.Clone(given).(*v1.Step)
	if step.GetKind() == "" {
		step.Kind = "tool"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.steps = append(r.steps, step)
	if r.storesSteps && r.reporting == nil && !r.isEnding() {
		r.reporting = make(chan struct{})
		go r.report(r.reporting)
	}
}

func (r *turnReports) delta(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.written += text
	if r.sending == nil && !r.isEnding() {
		r.sending = make(chan struct{})
		go r.send(r.sending)
	}
}

// finish sends the rest of the parts, and returns the steps that were not sent.
func (r *turnReports) finish() []*v1.Step {
	r.end()
	r.mu.Lock()
	sending, reporting := r.sending, r.reporting
	r.mu.Unlock()
	await(sending)
	for r.flush(true) {
	}
	// A report on its way may be stored: its steps must not go with the answer as well.
	await(reporting)
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.steps
}

func await(done chan struct{}) {
	if done != nil {
		<-done
	}
}

func (r *turnReports) isEnding() bool {
	select {
	case <-r.ending:
		return true
	default:
		return false
	}
}

// endsWithin waits for so long, or until the function has ended; it returns whether it has. Without a
// wait the answer is no: a step that is reported as the function ends is sent.
func (r *turnReports) endsWithin(wait time.Duration) bool {
	if wait <= 0 {
		return false
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-r.ending:
		return true
	case <-timer.C:
		return false
	}
}

// report sends steps until there are none.
func (r *turnReports) report(done chan struct{}) {
	defer close(done)
	var wait time.Duration
	for {
		r.mu.Lock()
		if !r.sentSteps.IsZero() {
			wait = max(wait, time.Until(r.sentSteps.Add(stepsEvery)))
		}
		hasNone := len(r.steps) == 0
		if hasNone {
			r.reporting = nil
		}
		r.mu.Unlock()
		if hasNone || r.endsWithin(wait) {
			return
		}
		var isOver bool
		if wait, isOver = r.reportOnce(); isOver {
			return
		}
	}
}

// reportOnce sends one report. It returns how long to wait after it, and whether there is no other.
func (r *turnReports) reportOnce() (time.Duration, bool) {
	r.mu.Lock()
	part, first := oneReport(r.steps), r.known
	r.mu.Unlock()
	kept, err := r.keep(&v1.KeepTurnRequest{Steps: part, FirstStep: first})
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		failure := asError(err)
		if failure != nil && failure.Reason == Overloaded {
			return max(failure.RetryAfter, time.Millisecond), false
		}
		r.onFailed("steps_not_reported", err)
		// Those that the service refuses go with the answer.
		r.storesSteps = !errors.Is(err, StoreFormat) && !errors.Is(err, InvalidField)
		return stepsEvery, !r.storesSteps
	}
	if kept.GetStatus() != v1.KeepTurnStatus_KEEP_TURN_STATUS_KEPT {
		return 0, true
	}
	r.sentSteps = time.Now()
	// Beyond the limit of a turn the service leaves steps out: they are not sent again.
	r.steps = r.steps[len(part):]
	r.known = kept.GetStepsKnown()
	return 0, false
}

// oneReport returns the first steps that fit into one report; one that never does goes alone.
func oneReport(steps []*v1.Step) []*v1.Step {
	total := 0
	for place, step := range steps[:min(len(steps), stepsMax)] {
		total += proto.Size(step)
		if total > stepsBytesMax {
			return steps[:max(1, place)]
		}
	}
	return steps[:min(len(steps), stepsMax)]
}

// send sends the parts of the answer until there are none.
func (r *turnReports) send(done chan struct{}) {
	defer close(done)
	for !r.endsWithin(deltaEvery) {
		if r.flush(false) {
			continue
		}
		r.mu.Lock()
		isAll := len(r.written)-halfAtEnd(r.written) <= r.sentBytes
		if isAll {
			r.sending = nil
		}
		r.mu.Unlock()
		if isAll {
			return
		}
	}
}

// flush sends one part; false if there is none. Half of a character waits for the other half, unless it is
// the last part.
func (r *turnReports) flush(isLast bool) bool {
	r.mu.Lock()
	start, end := r.sentBytes, len(r.written)
	if !isLast {
		end -= halfAtEnd(r.written)
	}
	if end <= start {
		r.mu.Unlock()
		return false
	}
	if end > start+deltaBytesMax {
		end = start + deltaBytesMax
		end -= halfAtEnd(r.written[start:end])
	}
	delta := &v1.AnswerDelta{Offset: int64(start), Text: r.written[start:end], Before: lastCharacters(r.written[:start])}
	// Also if it fails: a gap only means that readers wait for the whole answer.
	r.sentBytes = end
	r.mu.Unlock()
	r.try(&v1.KeepTurnRequest{Delta: delta})
	return true
}

func (r *turnReports) try(said *v1.KeepTurnRequest) {
	if _, err := r.keep(said); err != nil {
		r.onFailed("report_not_sent", err)
	}
}

// halfAtEnd returns how many bytes at the end of a text are the beginning of a character.
func halfAtEnd(text string) int {
	for size := 1; size < utf8.UTFMax && size <= len(text); size++ {
		if tail := text[len(text)-size:]; utf8.RuneStart(tail[0]) {
			if utf8.FullRuneInString(tail) {
				return 0
			}
			return size
		}
	}
	return 0
}

func lastCharacters(text string) string {
	start := len(text)
	for range beforeCharacters {
		_, size := utf8.DecodeLastRuneInString(text[:start])
		start -= size
	}
	return text[start:]
}
