"""The OpenAPI document holds: generated requests meet no failure of the server and no undocumented answer."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.fake import EOS, Script, encode, engine
from tests.serving.site import fake_app, server_of

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
PATHS = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/models",
    "/v1/models/{model}",
    "/tokenize",
    "/detokenize",
    "/health",
    "/ready",
    "/version",
)


@pytest.fixture(scope="module")
def document():
    """The document of a running server."""
    scripts = [Script((token, 1), (*encode("hello there"), EOS)) for token in range(256)]
    with server_of(fake_app(engine(*scripts, max_model_len=64))) as url:
        yield schemathesis.openapi.from_url(f"{url}/openapi.json")


@pytest.mark.parametrize("path", PATHS)
def test_generated_requests_are_answered_as_documented(document, path):
    (method,) = document[path]

    @given(case=document[path][method].as_strategy(generation_mode=GenerationMode.POSITIVE))
    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    def ask(case):
        response = case.call()
        case.validate_response(response, checks=CHECKS)

    ask()


def test_every_route_for_clients_is_documented(document):
    documented = set(document.raw_schema["paths"])
    assert set(PATHS) <= documented
    answers = [
        operation["responses"]
        for path in document.raw_schema["paths"].values()
        for operation in path.values()
    ]
    assert not any("422" in responses for responses in answers)
