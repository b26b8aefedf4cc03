"""The web listener: the service's calls over Connect, gRPC-Web and JSON, for browsers.

Owns: HTTP, origins, and how a call that came over HTTP looks like one that came over gRPC. Must not
know: what a call means. Rule: every call goes through the very handlers that gRPC has, so that
sign-in, limits, deadlines and errors cannot differ. Needs the extra ``web``.
"""
