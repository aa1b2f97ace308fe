"""What becomes of a message by what Celery's own options say."""

from __future__ import annotations

from uuid import uuid4

import pytest
from celery import Celery
from celery.contrib.testing.mocks import TaskMessage

from celery_llama.protocol.names import GENERATE_TASK
from celery_llama_worker.broker.delivery import EngineRequest
from celery_llama_worker.broker.tasks import Outcomes, register


@pytest.fixture(scope="module")
def app() -> Celery:
    app = Celery(set_as_current=False, backend="cache+memory://")
    register(app, Outcomes())
    return app


@pytest.mark.parametrize(("redelivered", "dropped"), [(False, True), (True, False)])
def test_celerys_expiry_drops_a_message_the_first_time_it_comes_and_no_job_that_may_have_begun(
    redelivered: bool, dropped: bool, app: Celery
) -> None:
    message = TaskMessage(GENERATE_TASK, id=str(uuid4()), kwargs={"job": {}}, expires="2001-01-01T00:00:00+00:00")
    message.delivery_info = {"redelivered": redelivered}
    request = EngineRequest(message, app=app, on_ack=lambda *_: None)

    assert request.revoked() is dropped
