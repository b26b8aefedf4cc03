"""Agent frameworks whose runs the service follows.

Owns: nothing by itself; each module needs its framework, installed as an extra of this package
(openai-agents, langgraph, google-adk). Must not know: the service's code. Rule: importing
agent_routing imports none of them.
"""
