package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	agentrouting "example.com/agent-routing/go"
	v1 "example.com/agent-routing/go/v1"
)

// Limit of hops of a message, far above the service's own limit.
const stepsMax = 20

// conversation is one user's conversation with the active agent. Every frontend does this: route
// the message, show a command's reply, and run agents while CompleteTurn names a next one.
type conversation struct {
	client                    *agentrouting.Client
	sessionID, userID, locale string
	screen                    *screen
	agent                     *v1.Agent
}

// say sends the user's text, and shows the answers.
func (c *conversation) say(ctx context.Context, text string) error {
	turn, err := c.client.Route(ctx, &v1.RouteRequest{
		SessionId: c.sessionID, UserId: c.userID, Locale: c.locale, Channel: "web", Text: text,
	})
	if err != nil {
		return err
	}
	if turn.GetReply() != nil {
		c.screen.reply(turn.GetReply().GetText())
	}
	dispatch := turn.GetDispatch()
	for step := 0; dispatch != nil && step < stepsMax; step++ {
		c.showHandoff(dispatch)
		answer := answerOf(dispatch)
		if turn.Degraded {
			// The service does not know this message: there is nothing to complete.
			c.screen.agent(dispatch, answer.GetText(), true)
			return nil
		}
		completed, err := c.complete(ctx, dispatch, answer)
		if err != nil {
			return err
		}
		c.screen.agent(dispatch, completed.GetText(), false)
		dispatch = completed.GetNext()
	}
	if suggestion := turn.GetSuggestion(); suggestion != nil {
		c.screen.suggestion(suggestion)
	}
	return nil
}

func (c *conversation) showHandoff(dispatch *v1.Dispatch) {
	before := dispatch.GetHandoff().GetFrom()
	if before == nil {
		before = c.agent
	}
	c.agent = dispatch.GetAgent()
	if before != nil && before.GetAgentId() != c.agent.GetAgentId() {
		c.screen.handoff(nameOf(before), nameOf(c.agent), dispatch.GetHandoff().GetMessage())
	}
}

// complete reports an answer. If its handoff is refused, the agent answers itself.
func (c *conversation) complete(ctx context.Context, dispatch *v1.Dispatch, answer answer) (*v1.CompleteTurnResponse, error) {
	report := func(answer *v1.CompleteTurnRequest) (*v1.CompleteTurnResponse, error) {
		answer.SessionId, answer.UserId = c.sessionID, c.userID
		answer.RequestId, answer.AgentId = dispatch.GetRequestId(), dispatch.GetAgent().GetAgentId()
		return c.client.CompleteTurn(ctx, answer)
	}
	completed, err := report(answer)
	var refused *agentrouting.HandoffRefusedError
	if errors.As(err, &refused) {
		return report(afterRefusal(refused.Rules()))
	}
	return completed, err
}

func nameOf(agent *v1.Agent) string {
	if agent.GetDisplayName() != "" {
		return agent.GetDisplayName()
	}
	return agent.GetAgentId()
}

// screen writes the chat to a terminal, or as plain text.
type screen struct{ isColored bool }

func (s *screen) dim(text string) string {
	if !s.isColored {
		return text
	}
	return "\x1b[2m" + text + "\x1b[22m"
}

// badge returns an agent's name on its own color.
func (s *screen) badge(agent *v1.Agent) string {
	var red, green, blue int
	found, _ := fmt.Sscanf(agent.GetColor(), "#%02x%02x%02x", &red, &green, &blue)
	if !s.isColored || found != 3 {
		return "[" + nameOf(agent) + "]"
	}
	return fmt.Sprintf("\x1b[97;1;48;2;%d;%d;%dm %s \x1b[0m", red, green, blue, nameOf(agent))
}

func (s *screen) reply(text string) {
	for _, line := range strings.Split(text, "\n") {
		fmt.Println("  " + line)
	}
}

func (s *screen) handoff(from, to, words string) {
	fmt.Println(s.dim("  ── " + from + " → " + to + " ──"))
	if words != "" {
		fmt.Println("  " + words)
	}
}

func (s *screen) agent(dispatch *v1.Dispatch, text string, isDegraded bool) {
	if text == "" {
		return
	}
	because := " (offline: the last agent known answers)"
	if !isDegraded {
		name := strings.TrimPrefix(dispatch.GetReason().String(), "ROUTE_REASON_")
		because = " " + strings.ReplaceAll(strings.ToLower(name), "_", " ")
	}
	fmt.Println(s.badge(dispatch.GetAgent()) + s.dim(because))
	fmt.Println("  " + text)
}

func (s *screen) suggestion(suggestion *v1.Suggestion) {
	fmt.Println("  " + suggestion.GetText())
	for _, option := range suggestion.GetOptions() {
		fmt.Println("    • " + option.GetLabel())
	}
}
