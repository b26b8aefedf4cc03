"""Reading YAML: plain data with positions, safe for any input."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_service.registry.yaml_document import (
    DEPTH_MAX,
    TEXT_BYTES_MAX,
    FileProblem,
    path_text,
    read_document,
)


def test_values_follow_the_core_schema_of_yaml_1_2():
    """Yes, no, on and off are texts, as are quoted numbers."""
    document = read_document(
        "a: [1, -2, 1.5, .5, 1.5e3, true, False, ~, null, '', no, on, 0x1f, '7', 1_000, .inf]\nb:\n"
    )
    assert document.problems == []
    assert document.data == {
        "a": [
            1, -2, 1.5, 0.5, 1500.0, True, False, None, None, "", "no", "on", "0x1f", "7", "1_000",
            ".inf",
        ],
        "b": None,
    }  # fmt: skip


def test_every_value_and_key_has_its_place():
    """Lines and columns count from 1, as editors count them."""
    document = read_document("\nagents:\n  - id: a\n    name: {en: A}\n")
    assert document.value_marks["agents", 0, "id"] == (3, 9)
    assert document.key_marks["agents", 0, "name"] == (4, 5)
    assert document.value_marks["agents", 0, "name", "en"] == (4, 16)
    assert document.value_at(("agents", 0, "id")) == "a"


def test_scalars_are_kept_as_written():
    """A version 1.10 does not become the number 1.1."""
    document = read_document("version: 1.10")
    assert document.data == {"version": 1.1}
    assert document.written["version",] == "1.10"


def test_problem_stands_at_the_nearest_place_there_is():
    """A missing value has no position, so its parent's is used."""
    document = read_document("a:\n  b: 1\n")
    assert document.problem(("a", "c", "d"), "x", "y") == FileProblem(2, 3, "a.c.d", "x", "y")
    assert document.problem(("a", "b"), "x", "y", on_key=True).column == 3
    assert document.problem((), "x", "y") == FileProblem(1, 1, "", "x", "y")


def test_paths_read_as_people_write_them():
    """Keys with points, positions in brackets."""
    assert path_text(("agents", 2, "handoff_to", 0)) == "agents[2].handoff_to[0]"
    assert path_text(()) == ""


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("", (1, 1), "empty"),
        ("# only a comment\n", (1, 1), "empty"),
        ("a: [1", (1, 6), "cannot be read"),
        ("a: 1\nb: {c: 1\n", (3, 1), "cannot be read"),
        ("a: b: c", (1, 5), "mapping values are not allowed"),
        ("a: 1\n\tb: 2", (2, 1), "cannot"),
        ("a: 'x", (1, 6), "quoted scalar"),
        ("a: @x", (1, 4), "cannot start any token"),
        ("a: 1\na: 2", (2, 1), 'the key "a" is already on line 1'),
        ("x: {a: 1, b: 2, a: 3}", (1, 17), 'the key "a" is already on line 1'),
        ("a: 1\n---\nb: 2", (2, 1), "second document"),
        ("%YAML 1.1\n---\na: no", (2, 1), "directive"),
        ("a: !!python/object/apply:os.system [id]", (1, 4), "tag"),
        ("a: !custom x", (1, 4), "tag"),
        ("a: *nobody", (1, 4), 'alias "*nobody"'),
        ("a: &self [*self]", (1, 11), 'alias "*self"'),
        ("? [a, b]\n: 1", (1, 3), "used as a key"),
        ("a: 1\nb: \x07", (2, 4), "U+0007"),
        ("a: \x00", (1, 4), "U+0000"),
        ("a: \ud800", (1, 4), "U+D800"),
        ('a: "\\ud83d"', (1, 4), "half of an escaped character"),
    ],
)
def test_what_cannot_be_taken_is_named_with_its_place(text, place, message):
    """One problem, with the right line and column, and a remedy."""
    problems = read_document(text).problems
    assert len(problems) == 1
    assert (problems[0].line, problems[0].column) == place
    assert message in problems[0].message
    assert problems[0].remedy


def test_aliases_are_written_out():
    """An operator may share a list between agents."""
    document = read_document("a: &list [x, y]\nb: *list\nc: {d: *list}\n")
    assert document.problems == []
    assert document.data == {"a": ["x", "y"], "b": ["x", "y"], "c": {"d": ["x", "y"]}}


def test_byte_order_mark_is_no_content():
    """Some editors write one."""
    assert read_document("\N{ZERO WIDTH NO-BREAK SPACE}a: 1").data == {"a": 1}


def test_json_is_yaml():
    """Programs may write registries as JSON."""
    data = {"a": [1, "x", None, {"b": True}], "ñ": "\n"}
    assert read_document(json.dumps(data)).data == data


LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(9)
)
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 500))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LAUGHS, "expands to more than"),
        (CHAIN, "nests deeper"),
        ("[" * 100_000, "nests deeper"),
        ("{a: " * 100_000, "nests deeper"),
        ("- " * 100_000, "nests deeper"),
        ("x" * (TEXT_BYTES_MAX + 1), "read at most"),
        ("é" * (TEXT_BYTES_MAX // 2 + 1), "read at most"),
    ],
)
def test_text_that_would_explode_is_refused_soon(text, message):
    """Expansion, depth and size are bounded before they cost anything."""
    began_s = time.monotonic()
    problems = read_document(text).problems
    assert [message in problem.message for problem in problems] == [True]
    # A generous bound: unbounded, the first of these would take longer than the universe has.
    assert time.monotonic() - began_s < 20


def test_depth_up_to_the_limit_is_read():
    """A document at exactly the documented limit is accepted."""
    assert read_document("[" * DEPTH_MAX + "]" * DEPTH_MAX).problems == []
    assert read_document("[" * (DEPTH_MAX + 1) + "]" * (DEPTH_MAX + 1)).problems != []


PLAIN_DATA = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**17), 10**17) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(PLAIN_DATA)
def test_any_json_data_comes_back_as_it_was(data):
    """JSON is the part of YAML that other programs write; ASCII escapes carry every character."""
    document = read_document(json.dumps({"data": data}))
    assert document.problems == []
    assert document.data == {"data": data}


@given(st.text(alphabet=st.sampled_from("ab:-[]{}&*!|>'\"#%@,? \n\t\u00e9\x00"), max_size=60))
def test_any_text_ends_in_data_or_problems(text):
    """No text makes the reader fail."""
    document = read_document(text)
    assert document.problems or document.data is not None or "data" not in text
    for problem in document.problems:
        assert problem.line >= 1
        assert problem.column >= 1
        assert problem.message
        assert problem.remedy
