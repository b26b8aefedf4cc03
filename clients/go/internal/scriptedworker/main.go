// Command scriptedworker is a worker whose agents do what a message says, and a frontend that asks. See
// tests/clients/vectors/workers/README.md.
//
//	scriptedworker work ADDRESS OPTIONS
//	scriptedworker ask ADDRESS
//	scriptedworker approvals ADDRESS
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	agentrouting "example.com/agent-routing/go"
	v1 "example.com/agent-routing/go/v1"
)

type options struct {
	Agents        []string `json:"agents"`
	Number        int      `json:"number"`
	LeaseMs       int64    `json:"lease_ms"`
	Attempts      int      `json:"attempts"`
	StopTimeoutMs int64    `json:"stop_timeout_ms"`
	Concurrency   int      `json:"concurrency"`
}

type action map[string]any

func main() {
	client, err := agentrouting.NewClient(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	switch os.Args[1] {
	case "approvals":
		approvals(client)
	case "ask":
		ask(client)
	default:
		work(client)
	}
}

// approvals lists what waits for an approval, then watches it.
func approvals(client *agentrouting.Client) {
	sessions := []string{}
	for waiting, err := range client.AllApprovals(context.Background(), &v1.ListApprovalsRequest{PageSize: 1}) {
		if err != nil {
			log.Fatal(err)
		}
		sessions = append(sessions, waiting.GetSessionId())
	}
	say(map[string]any{"event": "listed", "sessions": sessions})
	for news, err := range client.WatchApprovals(context.Background(), &v1.WatchApprovalsRequest{}) {
		switch {
		case err != nil:
			log.Fatal(err)
		case news.GetWaiting() != nil:
			say(map[string]any{"event": "waiting", "session_id": news.GetWaiting().GetSessionId()})
		default:
			say(map[string]any{"event": "ended", "session_id": news.GetEnded().GetSessionId()})
		}
	}
}

var printing sync.Mutex

func say(line any) {
	printing.Lock()
	defer printing.Unlock()
	text, err := json.Marshal(line)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(text))
}

func work(client *agentrouting.Client) {
	var given options
	if err := json.Unmarshal([]byte(os.Args[3]), &given); err != nil {
		log.Fatal(err)
	}
	worker := agentrouting.NewWorker(client, agentrouting.WorkerOptions{
		Lease:       time.Duration(given.LeaseMs) * time.Millisecond,
		Attempts:    given.Attempts,
		StopTimeout: time.Duration(given.StopTimeoutMs) * time.Millisecond,
		Concurrency: given.Concurrency,
	})
	for _, agentID := range given.Agents {
		worker.Handle(agentID, func(ctx context.Context, turn *agentrouting.InboxTurn) (*agentrouting.Answer, error) {
			say(map[string]any{
				"event": "began", "agent_id": agentID, "attempt": turn.GetAttempt(), "request_id": turn.RequestID(),
			})
			var script map[string][]action
			if err := json.Unmarshal([]byte(turn.Text()), &script); err != nil {
				return nil, err
			}
			actions, ok := script[fmt.Sprintf("%s@%d", agentID, given.Number)]
			if !ok {
				actions = script[agentID]
			}
			for kind, value := range actions[min(int(turn.GetAttempt()), len(actions))-1] {
				return act(ctx, turn, kind, value)
			}
			return nil, errors.New("there is no action")
		})
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}
	say(map[string]any{"event": "ended"})
}

func act(ctx context.Context, turn *agentrouting.InboxTurn, kind string, value any) (*agentrouting.Answer, error) {
	text := fmt.Sprint(value)
	list, _ := value.([]any)
	switch kind {
	case "write":
		turn.Note("one moment")
		turn.Step(&v1.Step{Name: "search", Input: "VAT", Output: "2 pages"})
		for _, part := range list {
			turn.Delta(fmt.Sprint(part))
			time.Sleep(400 * time.Millisecond)
		}
		return agentrouting.Say(turn.Written()), nil
	case "steps":
		for _, name := range list {
			turn.Step(&v1.Step{Name: fmt.Sprint(name)})
		}
		return agentrouting.Say("done"), nil
	case "write_and_raise":
		turn.Delta(text)
		time.Sleep(500 * time.Millisecond)
		return nil, errors.New(text)
	case "write_and_hang":
		turn.Delta(text)
	case "say":
		return agentrouting.Say(text), nil
	case "say_late":
		time.Sleep(4 * time.Second)
		return agentrouting.Say(text), nil
	case "follow_up":
		return agentrouting.FollowUp(text), nil
	case "complete":
		return agentrouting.Complete("done", text), nil
	case "handoff":
		answer := agentrouting.HandOff(text, "asked")
		answer.Text = "one moment"
		return answer, nil
	case "approval_needed":
		fields, err := structpb.NewStruct(map[string]any{"amount": 20})
		return agentrouting.ApprovalNeeded(text, fields), err
	case "failure":
		return agentrouting.Failed(text), nil
	case "answer":
		answer := agentrouting.Say(text)
		answer.Items = []*v1.Item{{ContentType: "text/plain", Content: &v1.Item_Text{Text: "more"}}}
		answer.Steps = []*v1.Step{{Name: "look up", Kind: "tool"}}
		return answer, nil
	case "raise":
		// Both are failures of the function.
		if turn.GetAttempt() == 1 {
			panic(text)
		}
		return nil, errors.New(text)
	case "nothing":
		return nil, nil
	case "die", "step_and_die":
		if kind != "die" {
			turn.Step(&v1.Step{Name: text})
			time.Sleep(500 * time.Millisecond)
		}
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			return nil, err
		}
	}
	<-ctx.Done()
	say(map[string]any{"event": "stopped", "agent_id": turn.AgentID()})
	return nil, ctx.Err()
}

func ask(client *agentrouting.Client) {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var given struct {
			Text      string `json:"text"`
			SessionID string `json:"session_id"`
			UserID    string `json:"user_id"`
			RequestID string `json:"request_id"`
			WaitMs    int64  `json:"wait_ms"`
			Parts     bool   `json:"parts"`
		}
		if err := json.Unmarshal(lines.Bytes(), &given); err != nil {
			log.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		if given.WaitMs > 0 {
			ctx, cancel = context.WithTimeout(context.Background(), time.Duration(given.WaitMs)*time.Millisecond)
		}
		request := &v1.RouteRequest{
			SessionId: given.SessionID, UserId: given.UserID, RequestId: given.RequestID, Text: given.Text,
		}
		said := map[string]any{}
		var asked *agentrouting.Asked
		var err error
		if given.Parts {
			asked, err = readParts(client.AskParts(ctx, request), said)
		} else {
			asked, err = client.Ask(ctx, request)
		}
		cancel()
		if err != nil {
			say(map[string]any{"error": err.Error(), "request_id": requestIDOf(err)})
			continue
		}
		turns := []string{}
		for _, turn := range asked.Turns {
			turns = append(turns, turn.GetAgentId())
		}
		said["text"], said["agent_id"], said["turns"] = asked.Text(), asked.AgentID(), turns
		said["outcome"], said["notice"] = asked.Outcome(), asked.Notice()
		said["claimed"], said["replayed"], said["cause"] = asked.Claimed, asked.Replayed, ""
		if cause := asked.Cause(); cause != v1.AbandonCause_ABANDON_CAUSE_UNSPECIFIED {
			said["cause"] = strings.TrimPrefix(cause.String(), "ABANDON_CAUSE_")
		}
		say(said)
	}
}

// requestIDOf returns the message's request id, as the error of an ask has it.
func requestIDOf(err error) string {
	var late *agentrouting.NoAnswerYetError
	var carried *agentrouting.NoInboxError
	var failure *agentrouting.RoutingError
	switch {
	case errors.As(err, &late):
		return late.RequestID
	case errors.As(err, &carried):
		return carried.RequestID
	case errors.As(err, &failure):
		return failure.RequestID
	}
	return ""
}

// readParts returns the whole answer, and puts what a user saw of it into said.
func readParts(parts iter.Seq2[*agentrouting.AskedPart, error], said map[string]any) (*agentrouting.Asked, error) {
	var asked *agentrouting.Asked
	places, shown, notes, count := map[string]int{}, []string{}, []string{}, 0
	for part, err := range parts {
		switch {
		case err != nil:
			return nil, err
		case part.IsNote:
			notes = append(notes, part.Text)
		case part.Text != "" || part.Replaces:
			turn := part.RequestID + part.AgentID
			place, isKnown := places[turn]
			if !isKnown {
				place = len(shown)
				places[turn] = place
				shown = append(shown, "")
			}
			if part.Replaces {
				shown[place] = ""
			}
			shown[place] += part.Text
			count++
		}
		asked = part.Asked
	}
	shown = slices.DeleteFunc(shown, func(text string) bool { return text == "" })
	said["shown"], said["notes"], said["in_parts"] = shown, notes, count > len(shown)
	return asked, nil
}
