"""A DynamoDB store's URL: what it may say, what is refused, and that it holds no credentials."""

import pytest

from routing_service.storage.dynamodb.url import parse_url
from routing_service.storage.open_store import StoreUrlInvalid, open_store
from routing_service.storage.store_url import DynamodbOptions


def test_url_names_region_and_table():
    """The driver finds AWS's endpoint for the region."""
    place = parse_url("dynamodb://eu-west-1/agent_routing")
    assert (place.region, place.table, place.options) == (
        "eu-west-1",
        "agent_routing",
        DynamodbOptions(),
    )
    assert place.shown == "dynamodb://eu-west-1/agent_routing"


def test_options_are_taken_from_the_query_and_beside_it():
    """An option given next to the URL wins."""
    place = parse_url(
        "dynamodb://eu-west-1/chat.2?endpoint_url=http://127.0.0.1:8000&connections=3"
        "&attempts_max=2&connect_timeout_s=0.5&read_timeout_s=0.75&call_timeout_s=3&log_poll_s=0.2",
        {"connections": 5},
    )
    assert place.options == DynamodbOptions(
        endpoint_url="http://127.0.0.1:8000",
        connections=5,
        attempts_max=2,
        connect_timeout_s=0.5,
        read_timeout_s=0.75,
        call_timeout_s=3,
        log_poll_s=0.2,
    )
    assert place.shown == "dynamodb://eu-west-1/chat.2?endpoint_url=http://127.0.0.1:8000"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("dynamodb://", "names no region and table"),
        ("dynamodb://eu-west-1", "dynamodb://eu-west-1/agent_routing"),
        ("dynamodb:///table", "names no region and table"),
        ("dynamodb://EU/table", 'has the region "EU"'),
        ("dynamodb://eu-west-1/a b", 'has the table "a b"'),
        ("dynamodb://eu-west-1/ab", "3 to 255"),
        ("dynamodb://eu-west-1/table?x=1", "unknown option x; it may have attempts_max"),
        ("dynamodb://eu-west-1/table?connections", "is not option=value"),
        ("dynamodb://eu-west-1/table?connections=many", "which is not a whole number"),
        ("dynamodb://eu-west-1/table?connections=0", "connections is 0; it must be 1 to 512"),
        ("dynamodb://eu-west-1/table?connections=1&connections=2", "gives connections twice"),
        ("dynamodb://eu-west-1/table?call_timeout_s=nan", "over 0 and up to"),
        ("dynamodb://eu-west-1/table?attempts_max=11", "1 to 10"),
        ("dynamodb://eu-west-1/table?endpoint_url=localhost", "write http://host:port"),
        ("dynamodb://eu-west-1/table?endpoint_url=http://a:b@c", "leave the rest out"),
        ("dynamodb://eu-west-1/table?endpoint_url=http://h:x", "write http://host:port"),
    ],
)
async def test_url_that_is_wrong_says_what_to_write(url, words):
    """The error has the problem, the value and the remedy."""
    with pytest.raises(StoreUrlInvalid) as raised:
        await open_store(url)
    assert words in str(raised.value)


async def test_credentials_in_the_url_are_refused_and_not_repeated():
    """A URL is shown by ps and in logs."""
    with pytest.raises(StoreUrlInvalid) as raised:
        await open_store("dynamodb://AKIAKEY:verysecret@eu-west-1/table")
    assert "AWS_PROFILE" in str(raised.value)
    assert "verysecret" not in str(raised.value)
    assert "AKIAKEY" not in str(raised.value)
