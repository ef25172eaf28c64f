"""The dashboard is served to everyone, what it shows only to those who may see it."""

from __future__ import annotations

import re

import pytest
from tests.serving.dashboard.served import QUESTION, served
from tests.serving.site import client_of

from recguide.serving.dashboard.routes import FILES, FOLDER


def client(**settings):
    return client_of(served(**settings))


def events(answer):
    """Names of a stream's events, as they come."""
    return (line.removeprefix("event: ") for line in answer.iter_lines() if line.startswith("event: "))


def test_the_page_asks_nobody_else_for_anything():
    page = (FOLDER / "index.html").read_text()
    asked = re.findall(r'(?:src|href)="([^"#][^"]*)"', page)
    assert asked
    with client() as opened:
        for path in ("/", *(f"/{name}" for name in asked), *FILES):
            answer = opened.get(path)
            assert answer.status_code == 200, path
            assert answer.headers["x-content-type-options"] == "nosniff"
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
    scripts = [file.read_text() for file in FOLDER.glob("*") if file.suffix in (".js", ".css", ".html")]
    assert not any(re.search(r"(?:https?:)?//[a-z]+\.[a-z]", text) for text in scripts)


def test_modules_import_only_files_that_are_there():
    for file in FOLDER.glob("*.js"):
        for name in re.findall(r'from "\./([^"]+)"', file.read_text()):
            assert f"/dashboard/{name}" in FILES, f"{file.name} imports {name}"


@pytest.mark.parametrize("name", ["nothing.js", "../routes.py", "%2e%2e/routes.py", "index.html", ""])
def test_nothing_else_can_be_read(name):
    with client() as opened:
        answer = opened.get(f"/dashboard/{name}")
        assert answer.status_code == 404
        assert answer.json()["error"]["message"]


def test_the_page_needs_no_key_and_its_data_does():
    bearer = {"Authorization": "Bearer secret"}
    with client(api_keys=("secret",), models=("my-model",)) as opened:
        assert opened.get("/").status_code == opened.get("/dashboard/main.js").status_code == 200
        for path in ("/dashboard/about", "/dashboard/events", "/metrics"):
            assert opened.get(path).status_code == 401
        assert opened.get("/dashboard/about", headers=bearer).json()["model"] == "my-model"


def test_it_can_be_left_out():
    with client(dashboard=False) as opened:
        assert opened.get("/").status_code == opened.get("/dashboard/events").status_code == 404


def test_metrics_have_vllms_names_if_asked_for():
    with client(vllm_metric_names=True, models=("my-model",)) as opened:
        body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
        answer = opened.post("/v1/chat/completions", json=body).json()
        metrics = opened.get("/metrics").text
    tokens = answer["usage"]["completion_tokens"]
    assert f'vllm:generation_tokens_total{{engine="0",model_name="my-model"}} {tokens}.0' in metrics
    assert 'recguide:requests_total{outcome="stop"} 1.0' in metrics


def test_answers_that_are_errors_are_counted_wherever_they_were_made():
    with client(api_keys=("secret",)) as opened:
        bearer = {"Authorization": "Bearer secret"}
        assert opened.get("/v1/models").status_code == 401
        assert (
            opened.post("/v1/completions", json={"prompt": "x", "nope": 1}, headers=bearer).status_code == 400
        )
        metrics = opened.get("/metrics", headers=bearer).text
    for status in (400, 401):
        assert f'recguide:http_errors_total{{status="{status}"}} 1.0' in metrics


def test_the_feed_ends_when_the_server_is_about_to_stop():
    app = served()
    with client_of(app) as opened, opened.stream("GET", "/dashboard/events") as answer:
        found = events(answer)
        assert next(found) == "history"
        app.state.service.draining = True
        assert set(found) <= {"frame"}  # and the stream ends
