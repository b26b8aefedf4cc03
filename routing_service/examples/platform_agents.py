"""The platform's agents: a planner, an analyst that reads files, a deployer that asks first.

Each function is one agent. What they say is in ``lines/platform.*.ftl``.
"""

from __future__ import annotations

from routing_service.examples.agent_reply import AskApproval, Complete, Outcome
from routing_service.examples.scripted_agents import (
    Moment,
    ScriptedAgents,
    hand_over,
    load_lines,
    route_by_words,
    small_talk,
)

_ROUTES = {
    "deployer": ("deploy*", "release", "roll out", "rollout", "despliega*", "despliegue"),
    "analyst": ("report*", "figures", "informe*", "cifras"),
}


def make_agents() -> ScriptedAgents:
    """Return the agents of one conversation."""
    scripts = {"planner": _planner, "analyst": _analyst, "deployer": _deployer}
    return ScriptedAgents(scripts, _explain_refusal, load_lines("platform"), "en")


def _explain_refusal(moment: Moment) -> None:
    moment.say("refused")


def _planner(moment: Moment) -> Outcome | None:
    agent_id = route_by_words(moment, _ROUTES)
    if agent_id:
        return hand_over(moment, agent_id, f"to-{agent_id}")
    small_talk(moment)
    return None


def _analyst(moment: Moment) -> Outcome | None:
    """Read the files, ask what the report is about, and be done."""
    kinds = moment.turn.item_types
    if moment.step == "quarter":
        if moment.is_unsure:
            moment.ask("latest", "report-unsure")
            return None
        moment.finish()
        moment.say("report-done", quarter=moment.turn.text.strip())
        return Complete(summary="report written")
    if moment.step == "latest":
        moment.finish()
        moment.say("report-done", quarter=moment.line("latest"))
        return Complete(summary="report written")
    if not kinds:
        moment.say("report-no-files")
        return None
    moment.ask("quarter", "report-which", files=len(kinds), kinds=", ".join(kinds))
    return None


def _deployer(moment: Moment) -> Outcome | None:
    """Deploy only after a person's approval."""
    version = moment.notes.get("version", "")
    match moment.turn.decision:
        case "approve":
            moment.finish()
            moment.say("deploy-done", version=version)
            return Complete(summary=f"version {version} deployed")
        case "reject":
            comment = moment.turn.decision_comment or moment.line("no-comment")
            moment.ask("when", "deploy-rejected", version=version, comment=comment)
            return None
    if moment.turn.reason == "awaiting_approval":
        moment.say("deploy-waiting")
        return None
    if moment.step == "when":
        return _ask_approval(moment, version, moment.turn.text.strip())
    if moment.number is None:
        moment.ask("version", "deploy-which")
        return None
    version = moment.notes["version"] = f"{moment.number:g}"
    return _ask_approval(moment, version, moment.line("now"))


def _ask_approval(moment: Moment, version: str, when: str) -> Outcome:
    moment.finish()
    moment.say("deploy-approval", version=version)
    return AskApproval(moment.line("deploy-prompt", version=version, when=when))
