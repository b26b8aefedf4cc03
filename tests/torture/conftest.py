"""Shared by the torture tests: only figures are printed, so in-process servers are silent."""

import logging

import pytest
import structlog


@pytest.fixture(autouse=True)
def _figures_alone_are_printed(_logging_as_it_was):
    """Thousands of servers start here, each with warnings about a registry made for tests."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
