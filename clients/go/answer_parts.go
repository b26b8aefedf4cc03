package agentrouting

import (
	"slices"
	"strings"

	v1 "example.com/agent-routing/go/v1"
)

// AskedPart is a part of an answer, or a note.
type AskedPart struct {
	// Text is what to append to the text of its turn, which RequestID and AgentID name.
	Text string
	// AgentID is who wrote it.
	AgentID string
	// RequestID is the request that it belongs to.
	RequestID string
	// IsNote: Text is a note for the user while they wait, and not part of the answer.
	IsNote bool
	// Replaces: Text stands for everything of its turn so far; if it is empty, nothing of it counts.
	Replaces bool
	// Asked is the whole answer, with the last part; nil with the others.
	Asked *Asked
}

// turnKey names a turn: agents between which an operator moved a message share its request.
type turnKey struct{ requestID, agentID string }

// answerParts puts the parts of a message's answers together: repeats are dropped, and after a gap it
// waits for the whole. Parts of turns that are not known to follow from the message are kept back, so
// that what an agent said before a handoff comes before the parts of the next agent.
type answerParts struct {
	written map[turnKey]*writtenAnswer
	chain   []turnKey // turns that are known to follow from the message, in order
}

// writtenAnswer is what came of one turn's answer. text: as the caller has it, after what is ready.
type writtenAnswer struct {
	attempt int32
	end     int64
	text    string
	isWhole bool
	ready   []*AskedPart
}

// know takes the turns that followed from the message so far; those that ended are whole. isDone: all of
// them are, also those that are still open.
func (p *answerParts) know(turns []*v1.Turn, isDone bool) {
	for _, turn := range turns {
		key := turnKey{turn.GetRequestId(), turn.GetAgentId()}
		if !slices.Contains(p.chain, key) {
			p.chain = append(p.chain, key)
		}
		if isDone || turn.GetOutcome() != v1.TurnOutcome_TURN_OUTCOME_UNSPECIFIED {
			p.of(key).complete(turn, shownOf(turn, turns))
		}
	}
}

// complete adds what is missing of a whole answer.
func (w *writtenAnswer) complete(turn *v1.Turn, whole string) {
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
		written := p.of(turnKey{note.GetRequestId(), note.GetAgentId()})
		written.ready = append(written.ready, &AskedPart{
			Text: note.GetText(), AgentID: note.GetAgentId(), RequestID: note.GetRequestId(), IsNote: true,
		})
	}
	delta := response.GetDelta()
	if delta == nil {
		return
	}
	written := p.of(turnKey{delta.GetRequestId(), delta.GetAgentId()})
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
	for _, key := range p.chain {
		written := p.of(key)
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

func (p *answerParts) of(key turnKey) *writtenAnswer {
	written := p.written[key]
	if written == nil {
		written = &writtenAnswer{}
		p.written[key] = written
	}
	return written
}

// shownOf returns what the user should see of a turn, one of those that followed from a message.
func shownOf(turn *v1.Turn, turns []*v1.Turn) string {
	if isConsult(turn, turns) || wasGivenUp(turn) {
		return ""
	}
	return joined([]string{turn.GetAgentText(), turn.GetHandoffMessage()})
}
