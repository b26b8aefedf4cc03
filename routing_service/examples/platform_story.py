"""The platform's story: tasks, files, a person's approval, and a request that is sent twice."""

from __future__ import annotations

from routing_service.examples.story import Story, StoryItem, StoryTurn

PLATFORM = Story(
    name="platform",
    title="A report on files, then a deployment that waits until a person has approved it.",
    example="platform",
    locale="en",
    channel="api",
    entitlements=("role:operations",),
    metadata=(("ticket", "OPS-7"), ("requested_by", "build 311")),
    turns=(
        StoryTurn(
            "Write a report on these figures",
            ("planner", "analyst"),
            "NO_ACTIVE_AGENT",
            items=(
                StoryItem("text/csv", text="quarter,sales\n1,1040\n2,1123\n"),
                StoryItem("image/png", uri="https://files.example.com/returns.png"),
            ),
            expect_locked_after=True,
            expect_active_after="analyst",
        ),
        StoryTurn(
            "I'm not sure",
            ("analyst",),
            "FOLLOW_UP_LOCK",
            expect_locked_after=True,
            expect_active_after="analyst",
        ),
        # Its task is complete; the next message begins another one.
        StoryTurn("yes", ("analyst",), "FOLLOW_UP_LOCK"),
        # The answer to this one is lost: the repeat gets it, and nothing happens twice.
        StoryTurn(
            "Deploy version 2.4 to production",
            ("planner", "deployer"),
            "NO_ACTIVE_AGENT",
            comes_twice=True,
            expect_active_after="deployer",
            expect_paused_after=True,
        ),
        StoryTurn(
            "Is it done?",
            ("deployer",),
            "AWAITING_APPROVAL",
            expect_active_after="deployer",
            expect_paused_after=True,
        ),
        StoryTurn(
            "/status",
            expect_command="status",
            expect_active_after="deployer",
            expect_paused_after=True,
        ),
        StoryTurn(
            "not on a Friday",
            ("deployer",),
            "TASK_RESUMED",
            decision="reject",
            expect_locked_after=True,
            expect_active_after="deployer",
        ),
        StoryTurn(
            "on Monday",
            ("deployer",),
            "FOLLOW_UP_LOCK",
            expect_locked_after=True,
            expect_active_after="deployer",
            expect_paused_after=True,
        ),
        # A decision may come twice as well.
        StoryTurn(
            "go ahead",
            ("deployer",),
            "TASK_RESUMED",
            decision="approve",
            comes_twice=True,
        ),
        StoryTurn("Thanks!", ("planner",), "NO_ACTIVE_AGENT"),
    ),
    expect_task_statuses=("completed", "completed", "running"),
)
