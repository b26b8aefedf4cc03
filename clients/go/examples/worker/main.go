// Command worker runs two agents of a help desk, in a process of their own.
//
//	go run ./examples/worker [127.0.0.1:50051]
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	agentrouting "example.com/agent-routing/go"
)

func main() {
	client, err := agentrouting.NewClient(append(os.Args, "127.0.0.1:50051")[1])
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	worker := agentrouting.NewWorker(client, agentrouting.WorkerOptions{})

	worker.Handle("front_desk", func(_ context.Context, _ *agentrouting.InboxTurn) (*agentrouting.Answer, error) {
		return agentrouting.HandOff("vat", "a VAT question"), nil
	})

	worker.Handle("vat", func(_ context.Context, turn *agentrouting.InboxTurn) (*agentrouting.Answer, error) {
		if !turn.GetDispatch().GetLocked() {
			return agentrouting.FollowUp("Monthly or quarterly?"), nil
		}
		return agentrouting.Say("You said: " + turn.Text() + ". Let us look it up."), nil
	})

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
