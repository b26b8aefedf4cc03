package agentrouting

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	v1 "example.com/agent-routing/go/v1"
)

// Answer is what a worker's function returns: an outcome with the agent's text, items and steps. It
// is the request of CompleteTurn; the worker fills in the ids. Without an outcome it is a proceed.
type Answer = v1.CompleteTurnRequest

// Say returns an answer: the agent keeps the conversation as its stickiness says.
func Say(text string) *Answer {
	return &Answer{Text: text, Outcome: &v1.CompleteTurnRequest_Proceed{Proceed: &v1.ProceedOutcome{}}}
}

// FollowUp returns a question to the user: the next message goes to this agent.
func FollowUp(text string) *Answer {
	return &Answer{Text: text, Outcome: &v1.CompleteTurnRequest_FollowUp{FollowUp: &v1.FollowUpOutcome{}}}
}

// FollowUpWithin is FollowUp for an agent that waits for the answer for at most so long.
func FollowUpWithin(text string, timeout time.Duration) *Answer {
	outcome := &v1.FollowUpOutcome{Timeout: durationpb.New(timeout)}
	return &Answer{Text: text, Outcome: &v1.CompleteTurnRequest_FollowUp{FollowUp: outcome}}
}

// Complete returns that the agent completed its task; the registry names the next agent. summary: what
// was done, for the audit and the next agent, at most 4 KiB.
func Complete(text, summary string) *Answer {
	outcome := &v1.CompleteOutcome{Summary: summary}
	return &Answer{Text: text, Outcome: &v1.CompleteTurnRequest_Complete{Complete: outcome}}
}

// HandOff returns a handoff to another agent; the message goes there next. reason: at most 1 KiB. Set
// context, message and mode in a v1.HandoffOutcome instead.
func HandOff(agentID, reason string) *Answer {
	outcome := &v1.HandoffOutcome{AgentId: agentID, Reason: reason}
	return &Answer{Outcome: &v1.CompleteTurnRequest_Handoff{Handoff: outcome}}
}

// ApprovalNeeded returns that the agent needs an approval of the prompt: the task pauses until
// ResumeTask. fields: the same for programs, such as the amount, at most 4 KiB; or nil.
func ApprovalNeeded(prompt string, fields *structpb.Struct) *Answer {
	outcome := &v1.ApprovalNeededOutcome{Prompt: prompt, Fields: fields}
	return &Answer{Outcome: &v1.CompleteTurnRequest_ApprovalNeeded{ApprovalNeeded: outcome}}
}

// Failed returns that the agent and its task failed; the agent stays active. message: for the audit
// and not for the user, at most 4 KiB. To have the turn tried again, return an error instead.
func Failed(message string) *Answer {
	outcome := &v1.FailureOutcome{Message: message}
	return &Answer{Outcome: &v1.CompleteTurnRequest_Failure{Failure: outcome}}
}
