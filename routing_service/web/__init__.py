"""The web listener: the service's calls over Connect, gRPC-Web and JSON, for browsers.

Every call goes through the same handlers as over gRPC, so sign-in, limits, deadlines and errors
cannot differ. Needs the extra ``web``.
"""
