"""The school tutor's agents: a coordinator, two teachers, a motivator and an assessor.

Each function is one agent. What they say is in ``lines/tutor.*.ftl``. The teachers ask for an
interlude by a marker in their text, the way agents do that can only write; the assessor by handing
over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

from routing_service.examples.agent_reply import Complete, HandOff, Outcome
from routing_service.examples.scripted_agents import (
    Moment,
    ScriptedAgents,
    hand_over,
    load_lines,
    plain,
    route_by_words,
    small_talk,
)

_ROUTES = {
    "math_specialist": ("fraction*", "math*", "fraccion*", "matematic*", "sums"),
    "language_specialist": ("verb*", "english", "ingles", "past tense", "language", "pasado"),
}

_FRUSTRATED = (
    "give up",
    "too hard",
    "too stupid",
    "hate this",
    "me rindo",
    "no puedo mas",
    "muy dificil",
    "demasiado dificil",
    "lo odio",
)
_BORED = ("boring", "bored", "tired", "aburrido", "aburrida", "cansado", "cansada")

# An attempt at an exercise is a few words; more is talk.
_ATTEMPT_WORDS_MAX = 3

# Exercise -> answer. The exercises' wording is in the lines, under the same number.
_FRACTIONS = {"1": "3/4", "2": "5/6", "3": "1/2"}
_VERBS = {"1": "ate", "2": "went", "3": "wrote"}
_TESTS: Mapping[str, Mapping[str, str]] = {
    "math": {"1": "3/5", "2": "1/4"},
    "language": {"1": "saw", "2": "gave"},
}


def make_agents() -> ScriptedAgents:
    """Return the agents of one conversation."""
    scripts = {
        "coordinator": _coordinator,
        "math_specialist": _math_specialist,
        "language_specialist": _language_specialist,
        "motivator": _motivator,
        "assessor": _assessor,
    }
    return ScriptedAgents(scripts, _explain_refusal, load_lines("tutor"), "en")


def _explain_refusal(moment: Moment) -> None:
    moment.say("refused")


def _coordinator(moment: Moment) -> Outcome | None:
    agent_id = route_by_words(moment, _ROUTES)
    if agent_id:
        return hand_over(moment, agent_id, f"to-{agent_id.replace('_', '-')}")
    small_talk(moment)
    return None


def _math_specialist(moment: Moment) -> Outcome | None:
    return _lesson(moment, "math", _FRACTIONS, _is_same_fraction)


def _language_specialist(moment: Moment) -> Outcome | None:
    return _lesson(moment, "language", _VERBS, _has_word)


def _lesson(
    moment: Moment,
    subject: str,
    answers: Mapping[str, str],
    is_right: Callable[[str, str], bool | None],
) -> Outcome | None:
    """Go through the exercises one by one; the pupil cannot leave the lesson."""
    moment.shared["subject"] = subject
    exercise = moment.step
    if not exercise:
        moment.say(f"{subject}-start")
        moment.ask("1", f"{subject}-1")
        return None
    if moment.turn.reason == "returned" and not _answers(moment, answers[exercise], is_right):
        moment.say("lesson-back")
        moment.ask(exercise, f"{subject}-{exercise}")
        return None
    if moment.mentions(*_FRUSTRATED, *_BORED):
        moment.say("lesson-frustrated")
        return None
    if moment.is_unsure:
        moment.ask(exercise, f"{subject}-{exercise}-hint")
        return None
    match is_right(moment.turn.text, answers[exercise]):
        case None:
            moment.say("lesson-off-topic")
            moment.ask(exercise, f"{subject}-{exercise}")
            return None
        case False:
            moment.say("lesson-wrong")
            moment.ask(exercise, f"{subject}-{exercise}-hint")
            return None
        case True:
            return _next_exercise(moment, subject, answers, exercise)


def _answers(moment: Moment, answer: str, is_right: Callable[[str, str], bool | None]) -> bool:
    """Whether the message is an attempt at the exercise at all."""
    return is_right(moment.turn.text, answer) is not None or moment.is_unsure


def _next_exercise(
    moment: Moment, subject: str, answers: Mapping[str, str], exercise: str
) -> Outcome | None:
    following = str(int(exercise) + 1)
    if following in answers:
        moment.say("lesson-right")
        moment.ask(following, f"{subject}-{following}")
        return None
    moment.finish()
    moment.say("lesson-complete")
    return Complete(summary=f"{subject} lesson: {len(answers)} exercises done")


def _is_same_fraction(text: str, answer: str) -> bool | None:
    """Whether a text names the same number; None if it names none. 2/4 is 1/2.

    Within a sentence only fractions count: "the year 1700" is not an attempt.
    """
    words = text.replace("½", "1/2").replace("¼", "1/4").replace("¾", "3/4").split()
    for word in words:
        if "/" not in word and len(words) > _ATTEMPT_WORDS_MAX:
            continue
        try:
            return Fraction(word.strip(".,;:!?()")) == Fraction(answer)
        except (ValueError, ZeroDivisionError):
            continue
    return None


def _has_word(text: str, answer: str) -> bool | None:
    """Whether a text has the word; None if it is a sentence about something else."""
    words = plain(text).split()
    if answer in words:
        return True
    return False if len(words) <= _ATTEMPT_WORDS_MAX else None


def _motivator(moment: Moment) -> Outcome | None:
    """Cheer up: a pep talk for the bored, a question for those who are about to give up."""
    if moment.step == "hardest":
        moment.finish()
        moment.say("motivator-again" if moment.is_unsure else "motivator-encourage")
        return Complete(summary="the pupil wants to go on")
    if moment.mentions(*_BORED):
        moment.say("motivator-pep")
        return Complete(summary="a short break")
    moment.ask("hardest", "motivator-ask")
    return None


def _assessor(moment: Moment) -> Outcome | None:
    """Ask the questions of a short test; an unknown answer counts as wrong."""
    subject = moment.shared.get("subject", "math")
    test = _TESTS[subject]
    question = moment.step
    if not question:
        moment.notes["right"] = "0"
        moment.ask("1", f"{subject}-test-1")
        return None
    is_back = moment.turn.reason == "returned"
    if moment.mentions(*_FRUSTRATED, *_BORED) and not is_back:
        return HandOff(
            "motivator",
            reason="the pupil is about to give up",
            message=moment.line("test-frustrated"),
        )
    is_right = (_is_same_fraction if subject == "math" else _has_word)(
        moment.turn.text, test[question]
    )
    if is_right is None and not moment.is_unsure:
        moment.say("lesson-back" if is_back else "test-off-topic")
        moment.ask(question, f"{subject}-test-{question}")
        return None
    moment.notes["right"] = str(int(moment.notes.get("right", "0")) + bool(is_right))
    moment.say("test-right" if is_right else "test-wrong", answer=test[question])
    following = str(int(question) + 1)
    if following in test:
        moment.ask(following, f"{subject}-test-{following}")
        return None
    moment.finish()
    right = moment.notes["right"]
    moment.say("test-result", right=right, questions=str(len(test)))
    return Complete(summary=f"{subject} test: {right} of {len(test)}")
