"""Detection of topics for agent-routing-service: the model, its weights, and what measures it.

The service finds it by its entry points, and never imports it by name.
"""
