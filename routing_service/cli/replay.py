"""``agent-routing replay``: replay recorded dialogues and count what routing does."""

from __future__ import annotations

from typing import Final

from routing_service.cli.options import command_of
from routing_service.cli.replay_options import ReplayOptions
from routing_service.cli.replay_run import run_replay

EPILOG: Final = """\b
Each line is a dialogue:
  {"dialogue_id": "d1", "corpus": "mine", "language": "en", "turns": [
    {"speaker": "user", "text": "...", "agent": "billing"},
    {"speaker": "agent", "text": "...", "agent": "billing",
     "requires_follow_up": true, "task_complete": false}]}
agent is the turn's true owner; null is the supervisor.

\b
Figures (shares are from 0 to 1):
  supervisor_calls_saved  user turns that stickiness took past the supervisor;
                          a locked turn counts, whichever agent it was for
  first_dispatch_right    user turns that Route sent directly to their owner
  misrouted               user turns that Route sent to another agent
  stuck_turns             user turns that ended with another agent
  switch_precision        share of switches by topic (in suggest mode: offers)
                          that went to the owner
  switch_recall           share of the due switches that were made
  false_switches_per_1000 switches away from the owner, per 1,000 scored turns
  calibration_error       how far the probabilities of topic detection are off
  decisions_digest        equal for runs with the same decisions

\b
Examples:
  agent-routing replay sgd.jsonl.gz --corpus sgd --policy sticky
  agent-routing replay mine.jsonl --agents agents.yaml --json
  agent-routing replay mine.jsonl --agents new.yaml --compare agents.yaml
  agent-routing replay sgd.jsonl.gz --corpus sgd --topics auto --switch agent
  zcat *.gz | agent-routing replay - --target 127.0.0.1:50051 --limit 100
"""

_HELP: Final = """Replay recorded dialogues and count what routing did.

Every user turn is a Route, every agent turn a CompleteTurn with its
outcome. --policy and --switch shape the registry made of a corpus;
with --agents or --target the registry is given, and they say how wrong
dispatches are corrected and counted.
"""

replay: Final = command_of(ReplayOptions, run_replay, _HELP)
