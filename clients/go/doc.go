// Package agentrouting is the client of the agent routing service, which owns which agent has the
// conversation in a chat with several agents.
//
//	client, err := agentrouting.NewClient("127.0.0.1:50051")
//	…
//	turn, err := client.Route(ctx, &agentroutingv1.RouteRequest{SessionId: "chat-42", UserId: "ana", Text: "hello"})
//
// Requests and answers are the messages of the contract, in the package v1. The client adds ids
// before a request is sent, so that a repeat is the same request; repeats of unanswered calls;
// errors by reason; a watch and a stream that survive lost connections; and its own decision while
// the service is away.
package agentrouting
