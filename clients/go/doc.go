// Package agentrouting is the client of the agent routing service, which owns which agent has the
// conversation in a chat with several agents.
//
//	client, err := agentrouting.NewClient("127.0.0.1:50051")
//	…
//	turn, err := client.Route(ctx, &agentroutingv1.RouteRequest{SessionId: "chat-42", UserId: "ana", Text: "hello"})
//
// Requests and answers are the messages of the contract, in the package v1. What the client adds:
// ids that are made before a request is sent, so that a repeat is the same request; repeats of calls
// that nobody answered; errors by their reason; a watch and a stream that outlive their connections;
// and a decision of its own while the service is away.
package agentrouting
