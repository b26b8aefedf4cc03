"""The agent routing service: which agent has the conversation.

Owns the version, which is written here and nowhere else: the distribution, ``agent-routing
--version`` and the server's first log line all read it. It must not import anything, so that any
module may ask for it.
"""

__version__ = "0.2.0"
