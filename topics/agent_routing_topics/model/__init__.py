"""The model that ships: pure functions of its parameters, the registry and the question."""
