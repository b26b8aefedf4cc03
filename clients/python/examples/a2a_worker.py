"""A worker that carries the turns of an agent to a remote agent, over the A2A protocol.

    python a2a_worker.py planner http://127.0.0.1:41241 127.0.0.1:50051

The agent has `delivery: inbox` in the registry. The remote agent is any A2A server.
"""

import sys

from agent_routing import AsyncClient
from agent_routing.integrations.a2a import RemoteAgent
from agent_routing.worker import Worker


def main(agent_id: str, url: str, address: str = "127.0.0.1:50051", lease: str = "30") -> None:
    """Serve until SIGTERM. lease: how long, in seconds, a crash keeps a turn back."""
    client = AsyncClient(address)
    worker = Worker(client, lease=float(lease))
    worker.agent(agent_id)(RemoteAgent(url, client=client).answer)
    worker.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
