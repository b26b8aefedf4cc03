"""A process of its own for one message or one decision.

python -m tests.integrations.approval_process MODULE ADDRESS PLACE say TEXT
python -m tests.integrations.approval_process MODULE ADDRESS PLACE decide APPROVAL DECISION COMMENT
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from pathlib import Path

from agent_routing import Client
from tests.integrations.approval_stories import approval_of, desk_script
from tests.integrations.stories import ANA


def main(module: str, address: str, place: str, what: str, *given: str) -> None:
    """Say a message or decide an approval, and print the result."""
    approving = importlib.import_module(module).approving
    with Client(address, timeout=20) as client:
        routed = approving(client, desk_script(), Path(place))
        if what == "say":
            run = routed.run_sync(given[0], session_id="restarted", **ANA)
        else:
            approval, decision, comment = given
            run = routed.decide_sync(
                approval_of(approval), decision, user_id="ana", comment=comment
            )
    approval = run.approval and dataclasses.asdict(run.approval)
    sys.stdout.write(json.dumps({"text": run.text, "approval": approval}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
