"""Made-up conversations, put together from single messages.

Owns how they are put together and the texts in between. Rule: an agent's answer here says nothing
about its subject, so that a change of topic is learned from the user's messages.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Final

from agent_routing_topics.evaluation import Session
from routing_service.topics.topic_detector import TopicQuestion

_REPLIES: Final = {
    "en": (
        ("Okay, that is done.", "complete"),
        ("All set! Is there anything else I can do for you?", "complete"),
        ("Here is what I found. Does one of them suit you?", "follow_up"),
        ("For which day?", "follow_up"),
        ("At what time would you like that?", "follow_up"),
        ("Shall I go ahead?", "follow_up"),
        ("Could you tell me your name please?", "follow_up"),
        ("It is the second one, and it costs 40.", "proceed"),
        ("I am sorry, that did not work.", "proceed"),
        ("There are three. The first one is very popular.", "proceed"),
        ("Yes, it is.", "proceed"),
    ),
    "es": (
        ("De acuerdo, ya está hecho.", "complete"),
        ("¡Listo! ¿Puedo ayudarte en algo más?", "complete"),
        ("Esto es lo que he encontrado. ¿Te sirve alguno?", "follow_up"),
        ("¿Para qué día?", "follow_up"),
        ("¿A qué hora?", "follow_up"),
        ("¿Sigo adelante?", "follow_up"),
        ("Es el segundo, y cuesta 40.", "proceed"),
        ("Lo siento, no ha funcionado.", "proceed"),
    ),
}
_BEFORE: Final = {
    "en": (
        *("",) * 8,
        *("Thanks.", "Great, thank you!", "Okay.", "Sounds good.", "Perfect.", "That's fine."),
        *("No, not right now.", "Not yet.", "Yes, that works.", "Cool,", "No thanks.", "Alright."),
        *("Thank you so much for your help.", "I like that.", "That sounds perfect."),
        *("Actually,", "Also,", "Before that,", "Now", "One more thing:", "Oh wait,", "And then"),
        *("Yes please.", "Yes,", "Thanks, that's all for that. Now", "Awesome! Also"),
    ),
    "es": (
        *("",) * 5,
        *("Gracias.", "Vale.", "Perfecto.", "De acuerdo.", "No, ahora no.", "Sí,", "Muy bien."),
        *("Ahora", "También", "Antes de eso", "Por cierto,", "Una cosa más:", "Además,"),
    ),
}
_ANSWERS: Final = {
    "en": (
        *("yes", "no", "Yes please", "no thank you", "sure, go ahead", "Monday", "the first one"),
        *("at 5 pm", "tomorrow morning", "two", "4", "John", "My name is Ana", "I don't know"),
        *("any is fine", "What else is there?", "how much is it?", "Is it far?", "that one please"),
        *("Could you repeat that?", "is there a cheaper one?", "March 3rd", "for three people"),
        *("Not really, show me others", "Does it have good reviews?", "I don't care"),
        *("That is correct.", "Where is it?", "No, change the time to 6:30", "Sounds good to me"),
    ),
    "es": (
        *("sí", "no", "sí por favor", "el lunes", "el primero", "a las cinco", "mañana", "dos"),
        *("me llamo Ana", "no lo sé", "me da igual", "¿hay otro?", "¿cuánto cuesta?", "para tres"),
        *("¿puedes repetirlo?", "¿dónde está?", "ese está bien", "cámbialo a las seis"),
    ),
}
_CLOSINGS: Final = {
    "en": ("No, that's all. Thanks!", "Thank you, bye!", "thanks a lot", "Great, have a nice day"),
    "es": ("No, eso es todo. Gracias", "gracias, adiós", "muchas gracias", "perfecto, hasta luego"),
}


def converse(
    chance: random.Random,
    messages: Sequence[tuple[str, int]],
    agent_ids: Sequence[str],
    language: str,
) -> Iterator[tuple[TopicQuestion, int]]:
    """Yield the user's messages of one conversation with the place of their agent.

    messages: texts that open a topic, with the place of the agent that each is for.
    """
    session = Session(language, agent_ids, releases=chance.random() < 0.25)
    by_agent: dict[int, list[str]] = {}
    for text, place in messages:
        by_agent.setdefault(place, []).append(text)
    present = chance.choice(sorted(by_agent))
    text = by_agent[present].pop()
    for _ in range(chance.randint(3, 8)):
        yield session.question(text), present
        reply, outcome = chance.choice(_REPLIES[language])
        session.answered(text, agent_ids[present], reply, outcome)
        others = [place for place, left in by_agent.items() if left and place != present]
        kind = chance.random()
        if others and kind < 0.3:
            present = chance.choice(sorted(others))
            text = f"{chance.choice(_BEFORE[language])} {by_agent[present].pop()}"
        elif by_agent[present] and kind < 0.45:
            text = f"{chance.choice(_BEFORE[language])} {by_agent[present].pop()}"
        elif kind < 0.93:
            text = chance.choice(_ANSWERS[language])
        else:
            text = chance.choice(_CLOSINGS[language])
