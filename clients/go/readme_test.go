package agentrouting_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	agentrouting "example.com/agent-routing/go"
	v1 "example.com/agent-routing/go/v1"
)

// The README's blocks, in its order, as one program against the tax example that it speaks of.
func TestTheReadmeRunsAsItStands(t *testing.T) {
	out := &strings.Builder{}
	if err := readme(t.Context(), serveTax(t), func(words ...any) { fmt.Fprintln(out, words...) }); err != nil {
		t.Fatal(err)
	}
	expected := `send to coordinator because NO_ACTIVE_AGENT : How much VAT do I owe this quarter?
Our VAT specialist will help you.
next: vat
entitled - agent "payroll" requires plan:premium, which the user lacks
revision 1 with 3 events
revision 2 with 2 events
revision 3 with 2 events
2 turns on the stream
`
	if out.String() != expected {
		t.Errorf("said\n%s", out)
	}
}

func TestTheReadmesBlocksAreThoseThatRun(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	// The examples of workers are run by tests/clients/test_workers.py.
	var sources []byte
	for _, path := range []string{"readme_test.go", "examples/worker/main.go", "examples/ask/main.go"} {
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		sources = append(sources, source...)
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllSubmatch(readme, -1)
	if len(blocks) < 5 {
		t.Error(len(blocks), "blocks")
	}
	indent := regexp.MustCompile(`(?m)^(.)`)
	for _, block := range blocks {
		if code := indent.ReplaceAllString(string(block[1]), "\t$1"); !strings.Contains(string(sources), code) {
			t.Errorf("not in readme_test.go or an example:\n%s", code)
		}
	}
}

func serveTax(t *testing.T) string {
	command := exec.Command(filepath.Join(filepath.Dir(python()), "agent-routing"), "serve", "--listen", "127.0.0.1:0", "--store", "memory:",
		"--agents", filepath.Join(root, "routing_service/examples/tax.yaml"), "--log-level", "error")
	command.Stderr = os.Stderr
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	line, err := bufio.NewReader(output).ReadString('\n')
	address, found := strings.CutPrefix(strings.TrimSpace(line), "serving on ")
	if !found {
		t.Fatalf("it said %q: %v", line, err)
	}
	return address
}

func readme(ctx context.Context, address string, println func(...any)) error {
	client, err := agentrouting.NewClient(address)
	if err != nil {
		return err
	}
	defer client.Close()

	turn, err := client.Route(ctx, &v1.RouteRequest{
		SessionId: "chat-42",
		UserId:    "ana",
		Text:      "How much VAT do I owe this quarter?",
		Locale:    "en",
		Channel:   "web",
	})
	if err != nil {
		return err
	}
	if reply := turn.GetReply(); reply != nil {
		println(reply.GetText()) // the answer to a command such as /status: show it at once
	}
	if dispatch := turn.GetDispatch(); dispatch != nil {
		println("send to", turn.AgentID(), "because", turn.Reason(), ":", dispatch.GetText())
	}

	answer, err := client.CompleteTurn(ctx, &v1.CompleteTurnRequest{
		SessionId: "chat-42",
		UserId:    "ana",
		RequestId: turn.GetRequestId(),
		AgentId:   "coordinator",
		Text:      "Our VAT specialist will help you.",
		Outcome: &v1.CompleteTurnRequest_Handoff{
			Handoff: &v1.HandoffOutcome{AgentId: "vat", Reason: "a VAT question"},
		},
	})
	if err != nil {
		return err
	}
	println(answer.GetText()) // always for the user to see
	if next := answer.GetNext(); next != nil {
		println("next:", next.GetAgent().GetAgentId())
		_, err = client.CompleteTurn(ctx, &v1.CompleteTurnRequest{
			SessionId: "chat-42",
			UserId:    "ana",
			RequestId: next.GetRequestId(),
			AgentId:   "vat",
			Text:      "What did you sell, without VAT?",
			Outcome: &v1.CompleteTurnRequest_FollowUp{
				FollowUp: &v1.FollowUpOutcome{Timeout: durationpb.New(10 * time.Minute)},
			},
		})
		if err != nil {
			return err
		}
	}

	_, err = client.SetActiveAgent(ctx, &v1.SetActiveAgentRequest{
		SessionId: "chat-42",
		UserId:    "ana",
		AgentId:   "payroll",
		Initiator: v1.Initiator_INITIATOR_USER,
	})
	var refused *agentrouting.HandoffRefusedError
	switch {
	case errors.As(err, &refused):
		for _, violation := range refused.Violations {
			println(violation.Name, "-", violation.Detail)
		}
	case errors.Is(err, agentrouting.UnknownSession):
		println("no such session")
	case err != nil:
		return err
	}

	watch := &v1.WatchSessionRequest{SessionId: "chat-42", UserId: "ana", AfterRevision: proto.Int64(0)}
	for change, err := range client.WatchSession(ctx, watch) {
		if err != nil {
			return err
		}
		println("revision", change.GetRevision(), "with", len(change.GetEvents()), "events")
		if change.GetRevision() == 3 {
			break
		}
	}

	stream := client.Stream()
	defer stream.Close()
	one := stream.Send(ctx, &v1.RouteRequest{SessionId: "chat-51", UserId: "ana", Text: "hello"})
	two := stream.Send(ctx, &v1.RouteRequest{SessionId: "chat-52", UserId: "ben", Text: "hola"})
	routed := 0
	for _, pending := range []*agentrouting.Pending{one, two} {
		if _, err := pending.Wait(); err != nil {
			return err
		}
		routed++
	}
	println(routed, "turns on the stream")
	return nil
}
