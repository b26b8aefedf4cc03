package agentrouting

import (
	"slices"
	"strings"

	v1 "example.com/agent-routing/go/v1"
)

// AskedPart is a part of an answer, or a note.
type AskedPart struct {
	// Text is what to append to the text of its request.
	Text string
	// AgentID is who wrote it.
	AgentID string
	// RequestID is the request that it belongs to.
	RequestID string
	// IsNote: Text is a note for the user while they wait, and not part of the answer.
	IsNote bool
	// Replaces: Text stands for everything of its request so far.
	Replaces bool
	// Asked is the whole answer, with the last part; nil with the others.
	Asked *Asked
}

// answerParts puts the parts of a message's answers together: repeats are dropped, and after a gap it
// waits for the whole. Parts of requests that are not known to follow from the message are kept back, so
// that what an agent said before a handoff comes before the parts of the next agent.
type answerParts struct {
	written map[string]*writtenAnswer
	chain   []string // requests that are known to follow from the message, in order
}

// writtenAnswer is what came of one request's answer. text: as the caller has it, after what is ready.
type writtenAnswer struct {
	attempt int32
	end     int64
	text    string
	isWhole bool
	ready   []*AskedPart
}

func newAnswerParts(requestID string) *answerParts {
	return &answerParts{written: map[string]*writtenAnswer{}, chain: []string{requestID}}
}

// know takes the turns that followed from the message so far; those that ended are whole. isDone: all of
// them are, also those that were abandoned.
func (p *answerParts) know(turns []*v1.Turn, isDone bool) {
	for _, turn := range turns {
		if !slices.Contains(p.chain, turn.GetRequestId()) {
			p.chain = append(p.chain, turn.GetRequestId())
		}
		hasEnded := isDone || turn.GetOutcome() != v1.TurnOutcome_TURN_OUTCOME_UNSPECIFIED
		if hasEnded && !isConsult(turn, turns) {
			p.of(turn.GetRequestId()).complete(turn)
		}
	}
}

// complete adds what is missing of a whole answer.
func (w *writtenAnswer) complete(turn *v1.Turn) {
	whole := shownOf(turn)
	if whole != w.text {
		part := &AskedPart{Text: whole, AgentID: turn.GetAgentId(), RequestID: turn.GetRequestId(), Replaces: true}
		if missing, isMore := strings.CutPrefix(whole, w.text); isMore {
			part.Text, part.Replaces = missing, false
		}
		w.ready = append(w.ready, part)
	}
	w.text, w.isWhole = whole, true
}

// take takes a message of the watch.
func (p *answerParts) take(response *v1.WatchSessionResponse) {
	if note := response.GetNote(); note != nil {
		written := p.of(note.GetRequestId())
		written.ready = append(written.ready, &AskedPart{
			Text: note.GetText(), AgentID: note.GetAgentId(), RequestID: note.GetRequestId(), IsNote: true,
		})
	}
	delta := response.GetDelta()
	if delta == nil {
		return
	}
	written := p.of(delta.GetRequestId())
	startsAgain := delta.GetAttempt() > written.attempt
	begin := written.end
	if startsAgain {
		begin = 0
	}
	if written.isWhole || delta.GetAttempt() < written.attempt || delta.GetEnd() <= begin || delta.GetBegin() != begin {
		return
	}
	replaces := startsAgain && written.text != ""
	if startsAgain {
		written.text = ""
	}
	written.attempt, written.end = delta.GetAttempt(), delta.GetEnd()
	written.text += delta.GetText()
	written.ready = append(written.ready, &AskedPart{
		Text: delta.GetText(), AgentID: delta.GetAgentId(), RequestID: delta.GetRequestId(), Replaces: replaces,
	})
}

// ready returns the parts to show, and forgets them.
func (p *answerParts) ready() []*AskedPart {
	var parts []*AskedPart
	for _, requestID := range p.chain {
		written := p.of(requestID)
		parts = append(parts, written.ready...)
		written.ready = nil
	}
	return parts
}

// rest returns what is missing of the whole answers, with the last part.
func (p *answerParts) rest(asked *Asked) []*AskedPart {
	p.know(asked.Turns, true)
	return append(p.ready(), &AskedPart{AgentID: asked.AgentID(), RequestID: asked.Route.GetRequestId(), Asked: asked})
}

func (p *answerParts) of(requestID string) *writtenAnswer {
	written := p.written[requestID]
	if written == nil {
		written = &writtenAnswer{}
		p.written[requestID] = written
	}
	return written
}

// shownOf returns what the user should see of a turn.
func shownOf(turn *v1.Turn) string {
	var texts []string
	for _, text := range []string{turn.GetAgentText(), turn.GetHandoffMessage()} {
		if text != "" {
			texts = append(texts, text)
		}
	}
	return strings.Join(texts, "\n\n")
}
