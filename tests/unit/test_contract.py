"""The contract: what callers rely on is there, is documented, and stays."""

import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from google.protobuf import descriptor_pb2
from google.rpc import status_pb2

from agent_routing.v1 import (
    admin_service_pb2,
    error_reason_options_pb2,
    error_reason_pb2,
    routing_service_pb2,
)
from routing_service.core.errors import Reason
from routing_service.core.handoff_rules import HANDOFF_RULES

ROOT = Path(__file__).parents[2]
BUF = Path(sys.executable).parent / "buf"
FILES = sorted((ROOT / "protos/agent_routing/v1").glob("*.proto"))
MODULES = {
    path.stem: importlib.import_module(f"agent_routing.v1.{path.stem}_pb2") for path in FILES
}

# name → the fields that clients rely on.
MESSAGES = {
    "Item": "content_type text data uri",
    "RouteRequest": (
        "session_id task_id request_id user_id text items locale channel entitlements metadata "
        "task_expire_time quick_reply_id expected_revision literal_text history_turns "
        "validate_only explain_topic"
    ),
    "RouteResponse": (
        "session_id task_id request_id revision dispatch reply suggestion supervisor_bypassed "
        "topic_trace"
    ),
    "Handoff": "from to initiator mode reason context message",
    "Dispatch": (
        "request_id task_id agent reason reason_detail text items previous_agent_id handoff locked "
        "history resume consult"
    ),
    "Resume": "decision comment",
    "Consult": "asker question answer",
    "Reply": "command text locale",
    "Suggestion": "suggestion_id agent confidence text options",
    "SuggestionOption": "id label",
    "Agent": "agent_id display_name description icon color kind user_selectable enabled",
    "SetActiveAgentRequest": (
        "session_id user_id agent_id request_id turn_request_id initiator from_agent_id reason "
        "context message mode suggestion_id expected_revision validate_only open_turn"
    ),
    "SetActiveAgentResponse": (
        "session_id task_id request_id revision agent handoff verdicts moved_turn"
    ),
    "MovedTurn": "request_id waiting_since agent open_turn",
    "Verdict": "rule allowed detail",
    "CancelTaskRequest": "session_id user_id task_id request_id reason expected_revision",
    "CancelTaskResponse": "session_id task_id request_id revision previous_agent agent",
    "ClaimTurnResponse": "session_id task_id request_id revision claim taken_from",
    "ReleaseTurnResponse": "session_id task_id request_id revision released_from",
    "AddNoteResponse": "session_id task_id request_id revision",
    "Note": "note_id task_id agent author text create_time",
    "Claim": "agent claimant claim_time expire_time",
    "ClearActiveAgentRequest": (
        "session_id user_id request_id scope reason expected_revision open_turn"
    ),
    "ClearActiveAgentResponse": (
        "session_id task_id request_id revision previous_agent agent moved_turn"
    ),
    "StatusRequest": "session_id user_id",
    "StatusResponse": (
        "session_id revision active_agent next_agent locked lock_expire_time return_stack task "
        "open_requests registry_version locale channel owner create_time update_time turns_by_agent"
    ),
    "Task": "task_id status create_time update_time expire_time metadata",
    "CompleteTurnRequest": (
        "session_id user_id request_id agent_id text items steps parse_markers proceed follow_up "
        "complete handoff approval_needed failure"
    ),
    "FollowUpOutcome": "timeout",
    "CompleteOutcome": "summary message",
    "HandoffOutcome": "agent_id reason context message mode",
    "ApprovalNeededOutcome": "prompt",
    "FailureOutcome": "message",
    "CompleteTurnResponse": (
        "session_id task_id request_id revision outcome_status verdicts task_status text next "
        "active_agent locked"
    ),
    "Step": "name kind input output start_time duration",
    "ResumeTaskRequest": "session_id user_id task_id request_id decision comment",
    "ResumeTaskResponse": "session_id task_id request_id revision dispatch",
    "Turn": (
        "request_id parent_request_id task_id agent_id from_agent_id reason user_text user_items "
        "agent_text agent_items steps outcome create_time complete_time response_duration revision "
        "abandon_cause"
    ),
    "SessionEvent": (
        "event_id session_id revision event_time request_id active_agent session_started "
        "session_erased turn_abandoned message_routed agent_handoff agent_cleared lock_engaged "
        "lock_released turn_completed task_created task_paused task_resumed task_completed "
        "task_failed task_cancelled command_handled stickiness_expired handoff_refused "
        "switch_suggested switch_answered stickiness_switched"
    ),
    "ListTasksRequest": "page_size page_token",
    "ListTasksResponse": "next_page_token",
    "ListTurnsRequest": "agent_id task_id page_size page_token",
    "ListTurnsResponse": "next_page_token",
    "ListSessionsRequest": "page_size page_token",
    "ListSessionsResponse": "next_page_token",
    "ListEventsRequest": "page_size page_token",
    "ListEventsResponse": "next_page_token",
    "GetRoutingStatsResponse": "as_of_time",
}

# name → all of its values, in any order, without the prefix and without UNSPECIFIED.
ENUMS = {
    "RouteReason": (
        "NO_ACTIVE_AGENT DEFAULT_AGENT STICKY FOLLOW_UP_LOCK AWAITING_APPROVAL COMMAND "
        "USER_SELECTED SUPERVISOR_HANDOFF AGENT_HANDOFF TASK_COMPLETED TASK_RESUMED RETURNED "
        "CONSULTED TOPIC_SWITCH EXPIRED AGENT_UNAVAILABLE STICKINESS_DISABLED TOPIC_UNSURE "
        "DEGRADED"
    ),
    "AgentKind": "SUPERVISOR SPECIALIST SYSTEM HUMAN",
    "Initiator": "SUPERVISOR AGENT USER OPERATOR TOPIC COMPLETION",
    "HandoffMode": "TRANSFER INTERLUDE CONSULT RETURN COMPLETION",
    "ClearScope": "ACTIVE_AGENT SESSION",
    "OutcomeStatus": "APPLIED STORED_ONLY DEGRADED",
    "TurnAbandonCause": (
        "OPEN_TURNS TIMEOUT RESET CLEARED OVERTAKEN COMMAND CANCELLED REPLACED ATTEMPTS ERASED"
    ),
    "Decision": "APPROVE REJECT",
    "DegradedTurnStatus": "STORED CONFLICT",
    "TaskStatus": "RUNNING PAUSED COMPLETED FAILED CANCELLED",
}

# name → (caller streams, server streams)
UNARY, WATCH, STREAM = (False, False), (False, True), (True, True)
SERVICES = {
    "RoutingService": {
        "Route": UNARY,
        "SetActiveAgent": UNARY,
        "ClearActiveAgent": UNARY,
        "Status": UNARY,
        "CompleteTurn": UNARY,
        "ResumeTask": UNARY,
        "CancelTask": UNARY,
        "ReportDegraded": UNARY,
        "WatchInbox": WATCH,
        "KeepTurn": UNARY,
        "ListWaiting": UNARY,
        "ClaimTurn": UNARY,
        "ReleaseTurn": UNARY,
        "AddNote": UNARY,
        "ListNotes": UNARY,
        "ListApprovals": UNARY,
        "WatchApprovals": WATCH,
        "ListTasks": UNARY,
        "ListTurns": UNARY,
        "ListAgents": UNARY,
        "WatchSession": WATCH,
        "RouteStream": STREAM,
    },
    "AdminService": {
        "ListSessions": UNARY,
        "ListEvents": UNARY,
        "WatchEvents": WATCH,
        "GetRoutingStats": UNARY,
        "EraseUser": UNARY,
        "GetSessionAt": UNARY,
        "ListInbox": UNARY,
        "GetServerStatus": UNARY,
        "VerifyAudit": UNARY,
        "ExportUser": WATCH,
        "ReloadAgents": UNARY,
        "GetRegistry": UNARY,
        "StartReplay": UNARY,
        "WatchReplay": WATCH,
        "CancelReplay": UNARY,
        "SetStickiness": UNARY,
        "GetStickiness": UNARY,
        "PurgeSessions": UNARY,
    },
    "TopicDetectorService": {"Judge": UNARY},
}


def described(kind):
    """All messages, enums or services of the generated code, by name."""
    return {
        name: descriptor
        for module in MODULES.values()
        for name, descriptor in getattr(module.DESCRIPTOR, f"{kind}_by_name").items()
    }


def snake(name):
    """RouteReason → route_reason."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def run_buf(*arguments, cwd=ROOT):
    """Run buf and keep what it says."""
    return subprocess.run(
        [BUF, *arguments], cwd=cwd, capture_output=True, text=True, check=False, timeout=50
    )


@pytest.fixture(scope="session")
def sources(tmp_path_factory):
    """The contract as its files have it, comments included, by file name."""
    image = tmp_path_factory.mktemp("contract") / "image.binpb"
    built = run_buf("build", "protos", "--as-file-descriptor-set", "--output", str(image))
    assert built.returncode == 0, built.stderr
    files = descriptor_pb2.FileDescriptorSet.FromString(image.read_bytes()).file
    return {file.name: file for file in files if file.package == "agent_routing.v1"}


# FileDescriptorProto fields that hold what needs a comment → the fields of those in turn.
TOP_LEVEL = {
    "message_type": ("field", "oneof_decl", "nested_type", "enum_type"),
    "enum_type": ("value",),
    "service": ("method",),
}


def elements(file):
    """Yield every path of source info with the name of what it is, map entries left out."""
    numbers = descriptor_pb2.FileDescriptorProto.DESCRIPTOR.fields_by_name
    for kind, parts in TOP_LEVEL.items():
        for index, outer in enumerate(getattr(file, kind)):
            path = (numbers[kind].number, index)
            yield path, outer.name
            for part in parts:
                number = outer.DESCRIPTOR.fields_by_name[part].number
                for inner_index, inner in enumerate(getattr(outer, part)):
                    is_implied = (part == "nested_type" and inner.options.map_entry) or (
                        # proto3 makes a oneof of its own for each optional field.
                        part == "oneof_decl" and inner.name.startswith("_")
                    )
                    if not is_implied:
                        yield (*path, number, inner_index), f"{outer.name}.{inner.name}"


def comments(file):
    """Each element's comment, in the lines that it is written in."""
    by_path = {
        tuple(location.path): location.leading_comments.strip()
        for location in file.source_code_info.location
    }
    return {name: by_path.get(path, "") for path, name in elements(file)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_part_of_the_contract_says_what_it_is_in_sentences(path, sources):
    """What is not said here cannot be relied on, and is found out by trial."""
    said = comments(sources[f"agent_routing/v1/{path.name}"])
    assert said
    silent = [name for name, comment in said.items() if not re.search(r"\S\s+\S+\.$", comment)]
    assert silent == []


@pytest.mark.parametrize("name", MESSAGES)
def test_the_fields_that_clients_rely_on_are_there(name):
    """A renamed field breaks JSON and every line of code that names it."""
    present = {field.name for field in described("message_types")[name].fields}
    assert set(MESSAGES[name].split()) - present == set()


@pytest.mark.parametrize("name", ENUMS)
def test_enums_have_the_values_that_clients_rely_on(name):
    """Zero means not given, so that a forgotten field is never taken for a choice."""
    enum = described("enum_types")[name]
    prefix = f"{snake(name).upper()}_"
    values = {value.name.removeprefix(prefix): value.number for value in enum.values}
    assert values.pop("UNSPECIFIED") == 0
    assert values.keys() == set(ENUMS[name].split())


def test_a_turn_and_its_event_say_by_the_same_numbers_why_it_was_abandoned():
    """A frontend that got the event and one that read the history say the same to the user."""
    enums = described("enum_types")
    of_event, of_turn = (
        {value.name.partition("ABANDON_CAUSE_")[2]: value.number for value in enums[name].values}
        for name in ("TurnAbandonCause", "AbandonCause")
    )
    assert of_event == of_turn


@pytest.mark.parametrize("name", SERVICES)
def test_services_have_their_calls_and_no_others(name):
    """Whether a call streams is a part of its name for those who call it."""
    methods = described("services")[name].methods
    assert {
        method.name: (method.client_streaming, method.server_streaming) for method in methods
    } == SERVICES[name]


def test_no_call_shares_its_request_or_response():
    """Shared ones could never grow a field for one call alone."""
    used = [
        message.full_name
        for service in described("services").values()
        for method in service.methods
        for message in (method.input_type, method.output_type)
    ]
    assert len(used) == len(set(used)) == 2 * sum(map(len, SERVICES.values()))


def test_a_service_stands_in_its_own_file_with_its_messages():
    """Who implements a service reads one file."""
    for module in MODULES.values():
        for service in module.DESCRIPTOR.services_by_name.values():
            assert module.DESCRIPTOR.name.endswith(f"/{snake(service.name)}.proto")
            for method in service.methods:
                assert method.input_type.file is module.DESCRIPTOR
                assert method.output_type.file is module.DESCRIPTOR


MUTATING = (
    "Route",
    "SetActiveAgent",
    "ClearActiveAgent",
    "CancelTask",
    "CompleteTurn",
    "ResumeTask",
    "ClaimTurn",
    "ReleaseTurn",
    "AddNote",
)


@pytest.mark.parametrize("name", MUTATING)
def test_answers_to_changes_begin_with_the_same_four_fields(name):
    """So that one piece of client code reads them from any answer."""
    response = described("message_types")[f"{name}Response"]
    first = [field.name for field in sorted(response.fields, key=lambda field: field.number)[:4]]
    assert first == ["session_id", "task_id", "request_id", "revision"]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ("RouteRequest", "expected_revision"),
        ("SetActiveAgentRequest", "expected_revision"),
        ("ClearActiveAgentRequest", "expected_revision"),
        ("WatchSessionRequest", "after_revision"),
        ("SetStickinessRequest", "enabled"),
        ("ListSessionsRequest", "locked"),
        ("Consult", "answer"),
    ],
)
def test_zero_is_told_from_not_given_where_both_mean_something(message, field):
    """expected_revision 0 says that the session must be new; leaving it out says nothing."""
    assert described("message_types")[message].fields_by_name[field].has_presence


def test_field_numbers_have_no_gaps():
    """A gap then always means a field that was taken away, and is to be reserved."""
    for message in described("message_types").values():
        proto = descriptor_pb2.DescriptorProto()
        message.CopyToProto(proto)
        numbers = {field.number for field in message.fields}
        for gone in proto.reserved_range:
            numbers.update(range(gone.start, gone.end))
        assert numbers == set(range(1, len(numbers) + 1)), message.full_name


CONTEXT_LEVELS_MAX = 24


def nested(levels):
    """A context that is so many levels deep."""
    value = {"end": 1}
    for _ in range(levels - 1):
        value = {"k": value}
    return value


def test_the_deepest_context_that_is_accepted_can_be_sent_back():
    """Protobuf refuses what is nested too deep; answers hold a context deeper than requests do."""
    answer = admin_service_pb2.ExportUserResponse()
    answer.record.event.agent_handoff.handoff.context.update(nested(CONTEXT_LEVELS_MAX))
    assert admin_service_pb2.ExportUserResponse.FromString(answer.SerializeToString()) == answer
    answer = routing_service_pb2.RouteStreamResponse()
    answer.route.dispatch.handoff.context.update(nested(CONTEXT_LEVELS_MAX))
    assert routing_service_pb2.RouteStreamResponse.FromString(answer.SerializeToString()) == answer


@pytest.mark.parametrize("message", ["SetActiveAgentRequest", "HandoffOutcome"])
def test_the_contract_says_how_deep_a_context_may_be(message, sources):
    """So that callers need not find it out."""
    said = comments(sources["agent_routing/v1/routing_service.proto"])[f"{message}.context"]
    assert f"at most {CONTEXT_LEVELS_MAX} levels deep" in said


STATUS_CODES = {code.value[0] for code in grpc.StatusCode}


@pytest.mark.parametrize("name", error_reason_pb2.ErrorReason.keys()[1:])
def test_an_error_reason_says_code_metadata_remedy_and_example(name, sources):
    """An operator who meets an error looks here first."""
    said = comments(sources["agent_routing/v1/error_reason.proto"])[f"ErrorReason.{name}"]
    said = " ".join(said.split())
    assert re.search(r"\. Metadata: \w", said)
    assert re.search(r'Example: "[^"].*"\.$', said)
    value = error_reason_pb2.ErrorReason.DESCRIPTOR.values_by_name[name]
    options = value.GetOptions().Extensions[error_reason_options_pb2.error_reason]
    assert options.code in STATUS_CODES - {grpc.StatusCode.OK.value[0]}
    assert re.search(r"^\w.*\.$", options.remedy)


def test_what_clients_repeat_by_themselves_is_retryable():
    """Clients repeat UNAVAILABLE for any reason."""
    options = {
        value.name: value.GetOptions().Extensions[error_reason_options_pb2.error_reason]
        for value in error_reason_pb2.ErrorReason.DESCRIPTOR.values
    }
    unavailable = grpc.StatusCode.UNAVAILABLE.value[0]
    repeated = {name for name, option in options.items() if option.code == unavailable}
    assert repeated
    assert repeated <= {name for name, option in options.items() if option.retryable}


def test_the_service_and_the_contract_know_the_same_error_reasons():
    """A reason that is not in the contract would tell clients nothing."""
    names = error_reason_pb2.ErrorReason.keys()[1:]
    documented = {name.removeprefix("ERROR_REASON_") for name in names}
    assert {reason.value for reason in Reason} == documented


def test_the_contract_documents_every_handoff_rule_in_its_order(sources):
    """Rule names are what clients see in verdicts and in refusals."""
    said = comments(sources["agent_routing/v1/error_reason.proto"])[
        "ErrorReason.ERROR_REASON_HANDOFF_REFUSED"
    ]
    listed = said.partition("evaluated:")[2].partition("Example:")[0]
    assert re.findall(r"^ *([a-z_]+): ", listed, re.MULTILINE) == [
        rule.name for rule in HANDOFF_RULES
    ]


def test_generated_code_is_that_of_the_contract(sources):
    """Code that lags behind would send and read other fields than its documentation says."""
    generated = {module.DESCRIPTOR.name: module.DESCRIPTOR for module in MODULES.values()}
    assert generated.keys() == sources.keys()
    for name, source in sources.items():
        expected = descriptor_pb2.FileDescriptorProto()
        expected.CopyFrom(source)
        expected.ClearField("source_code_info")
        present = descriptor_pb2.FileDescriptorProto.FromString(generated[name].serialized_pb)
        for file in (expected, present):
            forget_json_names(file)
        assert present == expected, f"{name}: run make protos"


def forget_json_names(file):
    """Drop what one compiler writes down and the other leaves to be derived."""
    for extension in file.extension:
        extension.ClearField("json_name")
    for message in file.message_type:
        for part in (message, *message.nested_type):
            for field in part.field:
                field.ClearField("json_name")


def test_the_kept_copy_of_status_is_what_clients_have():
    """Its code comes from another package, which must mean the same bytes."""
    source = (ROOT / "third_party/googleapis/google/rpc/status.proto").read_text("utf-8")
    kept = {name: int(number) for name, number in re.findall(r"(\w+) = (\d+);", source)}
    installed = status_pb2.Status.DESCRIPTOR.fields
    assert kept == {field.name: field.number for field in installed}


def test_the_contract_passes_its_linter():
    """Names, prefixes and comments are held by rules, not by memory."""
    linted = run_buf("lint", "--error-format", "text")
    assert (linted.returncode, linted.stdout + linted.stderr) == (0, "")
    formatted = run_buf("format", "--diff", "--exit-code", "protos")
    assert formatted.returncode == 0, formatted.stdout


@pytest.mark.parametrize(
    ("file", "before", "after", "rule"),
    [
        ("item.proto", r"string content_type = 1;", "string content_type = 9;", "FIELD_NO_DELETE"),
        ("item.proto", r"string uri = 4;", "string url = 4;", "FIELD_SAME_NAME"),
        ("clear_scope.proto", r"CLEAR_SCOPE_SESSION = 2;", "", "ENUM_VALUE_NO_DELETE"),
        ("routing_service.proto", r"rpc Status\(.*", "", "RPC_NO_DELETE"),
    ],
)
def test_a_change_that_breaks_clients_is_caught(file, before, after, rule, tmp_path):
    """Released contracts have clients that we cannot rebuild."""
    for name in ("protos", "third_party"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    landed = tmp_path / "landed.binpb"
    assert run_buf("build", "protos", "-o", str(landed), cwd=tmp_path).returncode == 0
    check = ("breaking", "protos", "--against", str(landed), "--error-format", "json")
    assert run_buf(*check, cwd=tmp_path).returncode == 0

    changed = tmp_path / "protos/agent_routing/v1" / file
    text, count = re.subn(before, after, changed.read_text("utf-8"))
    assert count == 1
    changed.write_text(text, "utf-8")
    broken = run_buf(*check, cwd=tmp_path)
    assert broken.returncode != 0
    assert rule in {json.loads(line)["type"] for line in broken.stdout.splitlines()}
