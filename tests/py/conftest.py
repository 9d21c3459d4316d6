"""With QUIRE_REQUIRE_ALL=1, as `make test` has it, a test that is skipped has failed: whatever it needs should be there, and a
skipped test looks like one that passed. A reason that begins with "not here: " is one that no installation can change."""

import os

import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if not report.skipped or os.environ.get("QUIRE_REQUIRE_ALL") != "1" or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if "not here: " not in reason:
        report.outcome = "failed"
        report.longrepr = f"QUIRE_REQUIRE_ALL=1, but this was skipped: {reason}"


def full_sweep():
    """Whether every case is wanted, as in `make test-all`."""
    return os.environ.get("QUIRE_TEST_SWEEP") == "full"
