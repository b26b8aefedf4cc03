"""Agent frameworks whose runs the service follows.

Each module needs its framework, which is an extra of this package (openai-agents, langgraph,
google-adk). Importing agent_routing imports none of them.
"""
