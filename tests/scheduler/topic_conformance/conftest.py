# SPDX-License-Identifier: Apache-2.0
"""One running broker of each kind for all tests, and a fresh topic for each test."""

import itertools
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.scheduler.topic_conformance.members import Topic
from tests.scheduler.topic_conformance.services import SERVICES

_numbers = itertools.count()


@pytest.fixture(scope="module")
def short_folder():
    """A folder whose name leaves room for the name of a socket."""
    folder = Path(tempfile.mkdtemp(prefix="fd-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module", params=SERVICES)
def service(request, short_folder):
    folder = short_folder / str(next(_numbers))
    folder.mkdir()
    service = SERVICES[request.param](folder)
    yield service
    service.stop()


@pytest.fixture
def topic(service):
    topic = Topic(service, f"t{next(_numbers)}")
    yield topic
    topic.close()
