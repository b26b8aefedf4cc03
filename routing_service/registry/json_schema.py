"""The JSON Schema library, imported without its check of internationalised addresses.

If rfc3987_syntax is installed, jsonschema imports it, and that compiles a grammar: 1.2 s of
processor time. The schema of the registry names no formats.
"""

from __future__ import annotations

import sys
from typing import Final

_SLOW: Final = "rfc3987_syntax"

_is_known = _SLOW in sys.modules
if not _is_known:
    # With None an import of it fails as if it were not installed, and jsonschema does without.
    sys.modules.update({_SLOW: None})  # type: ignore[dict-item]
try:
    from jsonschema import Draft202012Validator, ValidationError
    from jsonschema.validators import extend
finally:
    if not _is_known:
        del sys.modules[_SLOW]

__all__ = ["Draft202012Validator", "ValidationError", "extend"]
