/**
 * Client of the agent routing service, which owns which agent has the conversation in a chat with
 * several agents. Start with {@link agentrouting.RoutingClient}; requests and answers are the
 * messages of the contract, in the package {@code agentrouting.v1}.
 */
package agentrouting;
