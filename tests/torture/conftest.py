"""What the proofs share: their figures are printed, so that servers in this process are silent."""

import logging

import pytest
import structlog


@pytest.fixture(autouse=True)
def _figures_alone_are_printed(_logging_as_it_was):
    """Thousands of servers are started here, each with warnings about a registry made for tests."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
