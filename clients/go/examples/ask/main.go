// Command ask is the frontend's half: it asks the agents of the worker, and shows their answers.
//
//	go run ./examples/ask [127.0.0.1:50051]
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	agentrouting "example.com/agent-routing/go"
	v1 "example.com/agent-routing/go/v1"
)

func main() {
	client, err := agentrouting.NewClient(append(os.Args, "127.0.0.1:50051")[1])
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	for _, text := range []string{"How much VAT do I owe?", "I don't know"} {
		request := &v1.RouteRequest{SessionId: "chat-1", UserId: "ana", Text: text}
		answer, err := client.Ask(context.Background(), request)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("ana: %s\n%s: %s\n", text, answer.AgentID(), answer.Text())
	}
}
