"""The callers file: accepted whole, or refused with all its mistakes."""

import pytest

from routing_service.auth.callers_file import CALLERS_BYTES_MAX, CallersFileInvalid, read_callers

GOOD = """
[[caller]]
certificate = "uri:spiffe://example.org/runtime/vat"
tenant = "acme"
scopes = ["agent"]
agents = ["vat", "payroll"]

[[caller]]
certificate = "cn:sam"
user = "sam"
scopes = ["route", "admin"]
"""


def problems(tmp_path, text):
    """Return the mistakes of a file."""
    path = tmp_path / "callers.toml"
    path.write_text(text)
    with pytest.raises(CallersFileInvalid) as caught:
        read_callers(path)
    return str(caught.value).splitlines()


def test_callers_are_found_by_the_name_in_their_certificate(tmp_path):
    """A service has no user; without a tenant the default one counts."""
    path = tmp_path / "callers.toml"
    path.write_text(GOOD)
    callers = read_callers(path)
    runtime, sam = callers["uri:spiffe://example.org/runtime/vat"], callers["cn:sam"]
    assert (runtime.tenant, runtime.user, runtime.scopes) == ("acme", "", {"agent"})
    assert runtime.agents == {"vat", "payroll"}
    assert (sam.tenant, sam.user, sam.subject) == ("default", "sam", "cn:sam")


def test_every_mistake_is_named_at_once(tmp_path):
    """Each has its place and the remedy."""
    found = problems(
        tmp_path,
        GOOD
        + """
[[caller]]
certificate = "sam"
tenant = "a/b"
scopes = ["root"]
agent = "vat"
[[caller]]
certificate = "cn:sam"
scopes = ["agent"]
[[caller]]
certificate = "cn:x"
scopes = "agent"
agents = ["a b"]
[server]
""",
    )
    assert any('"server" is not a key' in line for line in found)
    assert any('caller 3: certificate is not "uri:' in line for line in found)
    assert any("caller 3: tenant is not" in line for line in found)
    assert any('caller 3: "root" is not a scope; use act_as, admin' in line for line in found)
    assert any('caller 3: "agent" is not a key of a caller' in line for line in found)
    assert any('certificate "cn:sam" is named twice' in line for line in found)
    assert any("caller 4: agents is missing" in line for line in found)
    assert any("caller 5: scopes is not a list of words" in line for line in found)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[[caller", "write TOML"),
        ("caller = 5", "not a list of tables"),
        ("caller = [5]", "not a list of tables"),
        ('[[caller]]\ncertificate = "cn:x"\nagents = ["a b"]', "agents is not valid"),
        ('[[caller]]\ncertificate = "cn:x"\nuser = "a\\nb"', "user is not valid"),
        ('[[caller]]\ncertificate = "cn:x"\nuser = "a\u200bb"', "user is not valid"),
        ('[[caller]]\ncertificate = "cn:x\u202e"', "certificate is not valid"),
        ('[[caller]]\ncertificate = "cn:x"\nuser = 5', "user is not valid"),
        ("#" * (CALLERS_BYTES_MAX + 1), "longer than"),
    ],
)
def test_unreadable_file_is_refused(tmp_path, text, word):
    """Half a file would accept or refuse callers without anyone noticing."""
    assert word in "\n".join(problems(tmp_path, text))


def test_missing_file_is_named(tmp_path):
    """The message has its path."""
    with pytest.raises(CallersFileInvalid, match=r"nowhere.*No such file"):
        read_callers(tmp_path / "nowhere")
