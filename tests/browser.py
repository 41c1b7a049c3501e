# SPDX-License-Identifier: Apache-2.0
"""A real browser that can reach this machine alone."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

browser_needed = pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")),
    reason="no browser on this machine: apt-get install chromium chromium-driver",
)


@pytest.fixture(scope="module")
def chrome() -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in (
        "--headless=new",
        "--no-sandbox",  # which root has to do without
        "--disable-dev-shm-usage",
        "--no-proxy-server",
        "--window-size=1280,900",
        "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL"})
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    yield driver
    driver.quit()
