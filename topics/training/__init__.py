"""How the parameters of agent_routing_topics are made and judged. Not part of what ships.

Needs scikit-learn, which the service does not. Owns corpora, training and cross-validation. Rule:
the same corpora give the same parameters, byte for byte.
"""
