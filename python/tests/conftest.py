# SPDX-License-Identifier: Apache-2.0
"""--tap prints a line for each test, as scripts/check.sh counts them. Hypothesis draws the same examples on every run, so that
a red test is red again."""

from __future__ import annotations

from typing import Any

import pytest

try:
    import hypothesis

    hypothesis.settings.register_profile("tern", deadline=None, derandomize=True, database=None)
    hypothesis.settings.load_profile("tern")
except ImportError:
    pass


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--tap", action="store_true", help="a TAP line for each test")


class Tap:
    def __init__(self) -> None:
        self.nr = 0

    def pytest_runtest_logreport(self, report: Any) -> None:
        over = report.when == "call" or (report.when == "setup" and not report.passed) or (report.when == "teardown" and report.failed)
        if not over:
            return
        self._tell(report)

    def pytest_collectreport(self, report: Any) -> None:
        if not report.passed:  # a whole file that is skipped, or that cannot be read
            self._tell(report)

    def _tell(self, report: Any) -> None:
        self.nr += 1
        why = f" # SKIP {report.longrepr[2]}" if report.skipped and isinstance(report.longrepr, tuple) else ""
        print(f"\n{'not ok' if report.failed else 'ok'} {self.nr} - {report.nodeid}{why}")


def pytest_configure(config: Any) -> None:
    if config.getoption("--tap"):
        config.pluginmanager.register(Tap())


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TERN_RANK", "TERN_NR_RANKS", "TERN_BOOT_FD", "TERN_FORCE_ENGINE", "TERN_NODE", "TERN_WAIT_MS"):
        monkeypatch.delenv(name, raising=False)
