"""``agent-routing chat``: talk to agents in the terminal."""

from __future__ import annotations

import os
from typing import Final

from routing_service.cli.chat_options import ChatOptions
from routing_service.cli.options import command_of

EPILOG: Final = """\b
While you chat:
  /help lists the commands, such as /agents, /status, /supervisor and /reset
  Ctrl-D or Ctrl-C leaves

\b
An agent without a script is a stand-in; the start of your message steers it:
  !ask it asks you something    !done it completes    !fail it fails
  !to AGENT it hands over       !pause it needs an approval
  anything else: it answers

\b
If an agent needs an approval, you give it:
  !approve COMMENT              !reject COMMENT

\b
Examples:
  agent-routing chat
  agent-routing chat --example budget --locale es
  agent-routing chat --story tutor --width 40
  agent-routing chat --agents agents.yaml
  printf 'hello\\n/status\\n' | agent-routing chat --json
"""

_HELP: Final = """Talk to agents in the terminal, and see who answers and why.

The examples' agents follow scripts: no model, no network. In a pipe, each line is a message.
"""


def _chat(options: ChatOptions) -> None:
    # gRPC reads it when it is imported: the chat reports connection errors itself.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from routing_service.cli.chat_program import run_chat  # noqa: PLC0415 - after the line above

    run_chat(options)


chat: Final = command_of(ChatOptions, _chat, _HELP)
