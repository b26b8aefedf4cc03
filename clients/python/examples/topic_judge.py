"""Judge whose message it is: a TopicDetectorService, with a scripted model in place of yours.

python topic_judge.py 127.0.0.1:50060
agent-routing serve --agents agents.yaml --topic-detector grpc://127.0.0.1:50060
"""

import asyncio
import sys
from typing import Any

import grpc.aio

from agent_routing.v1.dispatch_pb2 import Dispatch
from agent_routing.v1.topic_detector_service_pb2 import JudgeRequest, JudgeResponse
from agent_routing.v1.topic_detector_service_pb2_grpc import (
    TopicDetectorServiceServicer,
    add_TopicDetectorServiceServicer_to_server,
)


def score(text: str, about: str) -> float:
    """Put your classifier here. This one counts the words that a message and an agent share."""
    words = {word.strip(".,;:!?¡¿").lower() for word in text.split()}
    known = {word.strip(".,;:!?¡¿").lower() for word in about.split()}
    shared = sum(len(word) > 3 for word in words & known)  # noqa: PLR2004 - ignores short words
    return shared / (shared + 1)


class Judge(TopicDetectorServiceServicer):
    """Judges by the agents' descriptions and examples, which come with each request."""

    async def Judge(self, request: JudgeRequest, context: Any) -> JudgeResponse:  # noqa: N802
        """Answer with probabilities that are at most 1 together."""
        del context
        scores = {
            agent.agent_id: score(
                request.text,
                " ".join((agent.display_name, agent.description, *agent.examples)),
            )
            for agent in request.agents
        }
        total = sum(scores.values())
        if not total:
            return JudgeResponse(stay=0.9 if request.active_agent_id else 0.0, model="words-1")
        best = max(scores.values())
        shares = {agent_id: best * each / total for agent_id, each in scores.items()}
        stay = shares.pop(request.active_agent_id, 0.0)
        ranked = sorted(shares, key=lambda agent_id: -shares[agent_id])
        return JudgeResponse(
            ranked=[
                Dispatch.TopicCandidate(agent_id=agent_id, probability=shares[agent_id])
                for agent_id in ranked
                if agent_id in request.candidate_ids and shares[agent_id] > 0
            ][:5],
            stay=stay,
            model="words-1",
        )


async def main(listen: str) -> None:
    """Serve until the process ends."""
    server = grpc.aio.server()
    add_TopicDetectorServiceServicer_to_server(Judge(), server)
    port = server.add_insecure_port(listen)
    await server.start()
    print(f"judging on port {port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50060"))
