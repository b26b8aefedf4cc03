"""The DynamoDB store's settings and leases, and its list of tenants.

A tenant is listed before its first item is written, once per process, so that a list of tenants
misses none and a message costs nothing for it.
"""

from __future__ import annotations

from typing import Final

from routing_service.ids import new_uuid7
from routing_service.storage.dynamodb import keys
from routing_service.storage.dynamodb.api import Api
from routing_service.storage.dynamodb.errors import ConditionFailed
from routing_service.storage.dynamodb.items import (
    binary,
    integer,
    key,
    text,
    to_bytes,
    to_text,
)

TENANTS_KEPT_MAX: Final = 100_000
"""Tenants that this process knows to be listed; some 10 MB. When full it starts empty again."""


class Settings:
    """Settings, leases and tenants of one table."""

    def __init__(self, api: Api) -> None:
        """Know no tenant yet."""
        self._api = api
        self._listed: set[str] = set()

    async def list_tenant(self, tenant: str) -> None:
        """List a tenant before its first item is written."""
        if tenant in self._listed:
            return
        await self._api.on_table("put_item", Item=key(keys.TENANTS, tenant))
        if len(self._listed) >= TENANTS_KEPT_MAX:
            self._listed.clear()
        self._listed.add(tenant)

    async def list_tenants(self, after: str, limit: int) -> list[str]:
        """See Store.list_tenants."""
        found = await self._api.query(keys.TENANTS, after + keys.NEXT, limit=limit)
        return [to_text(item, "sk") for item in found]

    async def get(self, tenant: str, name: str) -> bytes | None:
        """See Store.get_setting."""
        if not tenant or not name:
            return None
        item = await self._api.get(key(keys.setting_pk(tenant), name))
        return None if item is None else to_bytes(item, "payload")

    async def list(self, tenant: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        """See Store.list_settings."""
        found = await self._api.query(keys.setting_pk(tenant), after + keys.NEXT, limit=limit)
        return [(to_text(item, "sk"), to_bytes(item, "payload")) for item in found]

    async def put(self, tenant: str, name: str, value: bytes) -> None:
        """See Store.put_setting."""
        await self.list_tenant(tenant)
        await self._api.on_table(
            "put_item", Item={**key(keys.setting_pk(tenant), name), "payload": binary(value)}
        )

    async def swap(self, tenant: str, name: str, before: bytes | None, value: bytes) -> bool:
        """See SwapsSettings.swap_setting."""
        await self.list_tenant(tenant)
        at = key(keys.setting_pk(tenant), name)
        write_id = text(str(new_uuid7()))
        expected = (
            {"ConditionExpression": "attribute_not_exists(pk)"}
            if before is None
            else {
                "ConditionExpression": "payload = :before",
                "ExpressionAttributeValues": {":before": binary(before)},
            }
        )
        try:
            await self._api.on_table(
                "put_item",
                Item={**at, "payload": binary(value), "write_id": write_id},
                **expected,
            )
        except ConditionFailed:
            # An attempt of this call whose answer was lost may have written it.
            item = await self._api.get(at, "write_id")
            return item is not None and item.get("write_id") == write_id
        return True

    async def acquire_lease(self, name: str, holder: str, now_us: int, until_us: int) -> bool:
        """See Store.acquire_lease. A repeat by the driver finds the lease its own."""
        try:
            await self._api.on_table(
                "update_item",
                Key=key(keys.lease_pk(name), keys.LEASE),
                UpdateExpression="SET holder = :holder, until_us = :until",
                ConditionExpression=(
                    "attribute_not_exists(pk) OR holder = :holder OR until_us <= :now"
                ),
                ExpressionAttributeValues={
                    ":holder": text(holder),
                    ":now": integer(now_us),
                    ":until": integer(until_us if until_us > now_us else 0),
                },
            )
        except ConditionFailed:
            return False
        return True
