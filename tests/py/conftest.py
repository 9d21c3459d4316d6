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


def pytest_sessionfinish(session, exitstatus):
    """A run in which every case was skipped says so with 77, as CTest wants it: it would look like one that passed."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    ran = {what for what, reports in reporter.stats.items() if reports and what}
    if "skipped" in ran and not ran - {"skipped", "deselected", "warnings"} and exitstatus in (0, 5):
        session.exitstatus = 77


def full_sweep():
    """Whether every case is wanted, as in `make test-all`."""
    return os.environ.get("QUIRE_TEST_SWEEP") == "full"
