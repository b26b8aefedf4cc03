"""Calls to DynamoDB: one client, its time-outs and its retries.

A call ends in bounded time. The driver repeats what AWS says may be repeated (throttled, lost,
failed), so an attempt whose answer was lost may have done a write.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from io import BytesIO
from typing import Any, Final

import aiohttp
import structlog
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore.exceptions import BotoCoreError, ClientError
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt
from tenacity.wait import wait_random_exponential

from routing_service.storage.dynamodb.errors import MetAnother, refusal, store_error
from routing_service.storage.dynamodb.url import DynamodbPlace
from routing_service.storage.store import StoreUnavailable

RETRY_ATTEMPTS_MAX: Final = 6
RETRY_WAIT_MAX_S: Final = 0.2
"""If transactions conflict on an item, all but one are refused at once; the conflict is over after
a few times the duration of one. The driver does not retry such a call."""

BATCH_KEYS_MAX: Final = 100
"""What DynamoDB takes in one BatchGetItem."""

BATCH_ATTEMPTS_MAX: Final = 50
"""A batch gives back what did not fit into its answer's 16 MB, or was throttled; each attempt
brings some 50 of the largest items."""

_log = structlog.get_logger(__name__)

PIECES_ABOVE_BYTES: Final = 512 * 1024
"""Bodies above this are sent piece by piece: an append with the largest tasks has nearly 4 MB."""


@asynccontextmanager
async def open_api(place: DynamodbPlace) -> AsyncIterator[Api]:
    """Make a client for the block. It connects at the first call.

    Raises StoreUnavailable where AWS's configuration files cannot be read.
    """
    options = place.options
    session = AioSession()
    # Most of the time to make a client is reading the service's description.
    session.register_component("data_loader", _loader())
    config = AioConfig(
        connect_timeout=options.connect_timeout_s,
        read_timeout=options.read_timeout_s,
        max_pool_connections=options.connections,
        retries={"mode": "standard", "total_max_attempts": options.attempts_max},
        # Our own requests need no validation, which would take a tenth of a call's time.
        parameter_validation=False,
        user_agent_extra="agent-routing",
    )
    try:
        opening = session.create_client(
            "dynamodb",
            region_name=place.region,
            endpoint_url=options.endpoint_url or None,
            config=config,
        )
        client = await opening.__aenter__()
    except (BotoCoreError, OSError, ValueError) as error:
        raise store_error(error, place, "open") from error
    client.meta.events.register("before-send.dynamodb", _send_in_pieces)
    try:
        yield Api(client, place)
    finally:
        await opening.__aexit__(None, None, None)


def _send_in_pieces(request: Any, **_: object) -> None:
    """Let other calls run while a large body is sent; the driver would warn of the delay."""
    if isinstance(request.body, bytes) and len(request.body) > PIECES_ABOVE_BYTES:
        request.body = BytesIO(request.body)


@cache
def _loader() -> Any:
    return AioSession().get_component("data_loader")


class Api:
    """Calls on one table."""

    def __init__(self, client: Any, place: DynamodbPlace) -> None:
        """Use a client that the caller closes."""
        self._client = client
        self._place = place
        self._slots = asyncio.Semaphore(place.options.connections)

    @property
    def place(self) -> DynamodbPlace:
        """Where the table is."""
        return self._place

    async def call(self, operation: str, **parameters: object) -> dict[str, Any]:
        """Make one call and return its answer.

        Raises ConditionFailed, TransactionRefused; StoreUnavailable, StoreCorrupt, AppendRefused.
        """
        try:
            async for attempt in AsyncRetrying(
                retry=retry_if_exception_type(MetAnother),
                stop=stop_after_attempt(RETRY_ATTEMPTS_MAX),
                wait=wait_random_exponential(multiplier=0.01, max=RETRY_WAIT_MAX_S),
                reraise=True,
            ):
                with attempt:
                    return await self._call(operation, parameters)
        except MetAnother as error:
            fields = {"operation": operation, "error": str(error.__cause__)}
            _log.warning("store_contended", store=self._place.shown, **fields)
            raise
        raise AssertionError("the last attempt returns or raises")

    async def on_table(self, operation: str, **parameters: object) -> dict[str, Any]:
        """Make one call that names the table itself. Raises what call does."""
        return await self.call(operation, TableName=self._place.table, **parameters)

    async def describe(self) -> dict[str, Any] | None:
        """Read the table's description; None = the table does not exist."""
        try:
            answer = await self._attempt("describe_table", {"TableName": self._place.table})
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") == "ResourceNotFoundException":
                return None
            raise store_error(error, self._place, "describe_table") from error
        described: dict[str, Any] = answer["Table"]
        return described

    async def get(self, key: dict[str, Any], attributes: str = "") -> dict[str, Any] | None:
        """Read one item consistently, after every write that has returned; None = not found."""
        wanted = {"ProjectionExpression": attributes} if attributes else {}
        answer = await self.on_table("get_item", Key=key, ConsistentRead=True, **wanted)
        return answer.get("Item")

    async def get_many(
        self, wanted: Sequence[dict[str, Any]], attributes: str = ""
    ) -> dict[tuple[str, str], dict[str, Any]]:
        """Read items consistently, by pk and sk; missing items are left out.

        They are not of one moment. attributes has to have pk and sk.
        """
        batches = (
            wanted[start : start + BATCH_KEYS_MAX]
            for start in range(0, len(wanted), BATCH_KEYS_MAX)
        )
        pages = await asyncio.gather(*(self._get_batch(batch, attributes) for batch in batches))
        return {(item["pk"]["S"], item["sk"]["S"]): item for page in pages for item in page}

    async def _get_batch(
        self, wanted: Sequence[dict[str, Any]], attributes: str
    ) -> list[dict[str, Any]]:
        table = self._place.table
        asked: dict[str, Any] = {"Keys": list(wanted), "ConsistentRead": True}
        if attributes:
            asked["ProjectionExpression"] = attributes
        left: dict[str, Any] = {table: asked}
        found: list[dict[str, Any]] = []
        wait = wait_random_exponential(multiplier=0.01, max=RETRY_WAIT_MAX_S)
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(_BatchLeft),
            stop=stop_after_attempt(BATCH_ATTEMPTS_MAX),
            wait=wait,
            reraise=True,
        ):
            with attempt:
                answer = await self.call("batch_get_item", RequestItems=left)
                found += answer.get("Responses", {}).get(table, [])
                left = answer.get("UnprocessedKeys", {})
                if left:
                    raise _BatchLeft("the store's table is read more than it can; try again")
        return found

    async def get_together(
        self, wanted: Sequence[tuple[dict[str, Any], str]]
    ) -> list[dict[str, Any] | None]:
        """Read items as they were at one moment, each given by its key and its attributes."""
        answer = await self.call(
            "transact_get_items",
            TransactItems=[
                {"Get": {"TableName": self._place.table, "Key": k, "ProjectionExpression": names}}
                for k, names in wanted
            ],
        )
        return [found.get("Item") for found in answer["Responses"]]

    async def query(
        self,
        pk: str,
        low: str,
        high: str | None = None,
        *,
        limit: int | None = None,
        newest_first: bool = False,
        attributes: str = "",
        condition: str = "",
        values: dict[str, Any] | None = None,
    ) -> list[dict[str, Any]]:
        """Read a partition's items with low <= sk <= high consistently, in the order of sk.

        high None = to the end. limit None = all of them. condition: which of those read to keep,
        by ``values``; only without a limit.
        """
        assert not (condition and limit), "the limit would count what is left out"
        if high is not None and low > high:
            return []
        bounds = "sk >= :low" if high is None else "sk BETWEEN :low AND :high"
        parameters: dict[str, Any] = {
            "KeyConditionExpression": f"pk = :pk AND {bounds}",
            "ExpressionAttributeValues": {
                ":pk": {"S": pk},
                ":low": {"S": low},
                **({} if high is None else {":high": {"S": high}}),
                **(values or {}),
            },
            "ConsistentRead": True,
            "ScanIndexForward": not newest_first,
        }
        if attributes:
            parameters["ProjectionExpression"] = attributes
        if condition:
            parameters["FilterExpression"] = condition
        found: list[dict[str, Any]] = []
        while True:
            if limit is not None:
                parameters["Limit"] = limit - len(found)
            answer = await self.on_table("query", **parameters)
            found += answer.get("Items", [])
            # A page ends at 1 MB, even below the limit.
            last = answer.get("LastEvaluatedKey")
            if not last or (limit is not None and len(found) >= limit):
                return found
            parameters["ExclusiveStartKey"] = last

    async def transact(self, actions: Sequence[dict[str, Any]], token: str) -> None:
        """Do all of the actions or none.

        token: one for each set of actions; the driver's repeats of one call have the same, so that
        AWS does them once. Raises TransactionRefused where a condition did not hold, and what call
        does.
        """
        table = self._place.table
        named = [
            {kind: {"TableName": table, **action}}
            for entry in actions
            for kind, action in entry.items()
        ]
        await self.call("transact_write_items", TransactItems=named, ClientRequestToken=token)

    async def _call(self, operation: str, parameters: dict[str, object]) -> dict[str, Any]:
        try:
            return await self._attempt(operation, parameters)
        except ClientError as error:
            refused = refusal(error)
            if refused is not None:
                raise refused from error
            raise store_error(error, self._place, operation) from error

    async def _attempt(self, operation: str, parameters: dict[str, object]) -> dict[str, Any]:
        """Make one call, with the driver's repeats. Raises ClientError, StoreUnavailable."""
        async with self._slots:
            try:
                async with asyncio.timeout(self._place.options.call_timeout_s):
                    answer: dict[str, Any] = await getattr(self._client, operation)(**parameters)
            except (BotoCoreError, aiohttp.ClientError, OSError, TimeoutError) as error:
                raise store_error(error, self._place, operation) from error
            return answer


class _BatchLeft(StoreUnavailable):
    """Some of a batch was not read."""
