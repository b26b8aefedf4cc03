"""Where sessions are kept: one protocol, several engines.

``store`` is the protocol and its exceptions, ``open_store`` picks an engine by URL, and each
``x_store`` module is one engine, imported only when a URL asks for it.
"""
