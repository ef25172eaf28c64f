"""What every request passes: keys, sizes, ids, origins; and what a server says of itself."""

from __future__ import annotations

import pytest
from tests.fake import EOS, Script, encode, engine
from tests.serving.site import client_of, fake_app, wait_until

from recguide.core import ParameterError
from recguide.serving.settings import ServerSettings

PROMPT = tuple(encode("Uhi\nA"))
SCRIPT = Script(PROMPT, (*encode("hello there"), EOS))
COMPLETION = {"prompt": "Uhi\nA", "temperature": 0, "max_tokens": 20}


def site(**settings):
    return client_of(fake_app(engine(SCRIPT), **settings))


@pytest.fixture
def client():
    with site() as client:
        yield client


def test_a_key_is_asked_for_everywhere_but_by_orchestrators():
    with site(api_keys=("first", "second")) as client:
        for path in ("/health", "/ready"):
            assert client.get(path).status_code == 200
        for header in (None, "Bearer wrong", "Basic first", "first", "Bearer ", "Bearer first second"):
            headers = {} if header is None else {"authorization": header}
            for path in ("/v1/models", "/metrics", "/openapi.json", "/nowhere"):
                response = client.get(path, headers=headers)
                assert response.status_code == 401, (header, path)
                assert response.json()["error"]["code"] == "invalid_api_key"
            assert client.post("/v1/completions", json=COMPLETION, headers=headers).status_code == 401
        for key in ("first", "second"):
            good = {"authorization": f"Bearer {key}"}
            assert client.post("/v1/completions", json=COMPLETION, headers=good).status_code == 200


def test_a_body_past_the_limit_is_refused_whatever_it_says_of_its_length():
    with site(max_body_bytes=200) as client:
        assert client.post("/v1/completions", json=COMPLETION).status_code == 200
        large = {**COMPLETION, "prompt": "x" * 300}
        known = client.post("/v1/completions", json=large)

        def pieces():
            for _ in range(10):
                yield b"x" * 50

        unknown = client.post(
            "/v1/completions", content=pieces(), headers={"content-type": "application/json"}
        )
        for response in (known, unknown):
            assert response.status_code == 413
            assert "200" in response.json()["error"]["message"]


def test_a_request_keeps_the_id_that_its_client_gave_it(client):
    assert client.get("/health", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    drawn = {client.get("/health").headers["x-request-id"] for _ in range(3)}
    assert len(drawn) == 3
    for unfit in ("a b", "x" * 129, "\u00e9"):
        given = client.get("/health", headers={"x-request-id": unfit.encode()}).headers["x-request-id"]
        assert given != unfit


def test_pages_of_other_origins_may_call_only_if_named():
    asked = {"origin": "https://a.example", "access-control-request-method": "POST"}
    with site() as client:
        assert "access-control-allow-origin" not in client.options("/v1/completions", headers=asked).headers
    with site(cors_origins=("https://a.example",), api_keys=("k",)) as client:
        preflight = client.options("/v1/completions", headers=asked)
        assert preflight.headers["access-control-allow-origin"] == "https://a.example"
        refused = client.post("/v1/completions", json=COMPLETION, headers={"origin": "https://a.example"})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://a.example"


def test_unknown_routes_and_methods_have_the_shape_of_errors(client):
    missing, wrong = client.get("/v1/nothing"), client.get("/v1/completions")
    assert (missing.status_code, wrong.status_code) == (404, 405)
    for response in (missing, wrong):
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert "GET /v1/nothing" in missing.json()["error"]["message"]


def test_a_stopping_server_takes_no_new_work_but_says_that_it_lives(client):
    client.app.state.service.draining = True
    response = client.post("/v1/completions", json=COMPLETION)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "draining"
    assert "retry-after" in response.headers
    assert client.get("/health").status_code == 200
    assert client.get("/ready").status_code == 503


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_failed_engine_is_told_to_everyone(client):
    service = client.app.state.service

    def crash():
        raise RuntimeError("out of order")

    service.engine._link._engine.step = crash
    response = client.post("/v1/completions", json=COMPLETION)
    assert response.status_code == 503
    assert "out of order" in response.json()["error"]["message"]
    wait_until(lambda: not service.engine.healthy)
    for path in ("/health", "/ready", "/v1/models"):
        assert client.get(path).status_code == 503
    assert "out of order" in client.get("/health").json()["detail"]


def test_models_are_listed_under_their_names():
    with site(models=("a/b", "short")) as client:
        cards = client.get("/v1/models").json()["data"]
        assert [card["id"] for card in cards] == ["a/b", "short"]
        for card in cards:
            assert card["object"] == "model"
            assert card["created"] > 1_700_000_000
            assert card["max_model_len"] == 4096
            assert client.get(f"/v1/models/{card['id']}").json() == card
            assert (
                client.post("/v1/completions", json={**COMPLETION, "model": card["id"]}).json()["model"]
                == card["id"]
            )
        assert client.get("/v1/models/c").status_code == 404
        assert client.post("/v1/completions", json=COMPLETION).json()["model"] == "a/b"


def test_tokens_of_text_and_text_of_tokens(client):
    answer = client.post("/tokenize", json={"prompt": "Hi", "return_token_strs": True}).json()
    assert answer == {"count": 2, "max_model_len": 4096, "tokens": [72, 105], "token_strs": ["H", "i"]}
    assert client.post("/detokenize", json={"tokens": [72, 105]}).json() == {"prompt": "Hi"}
    chat = client.post("/tokenize", json={"messages": [{"role": "user", "content": "hi"}]}).json()
    assert tuple(chat["tokens"]) == PROMPT


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "b"}]}, "prompt"),
        ("/tokenize", {"prompt": "a", "chat_template_kwargs": {}}, "chat_template_kwargs"),
        ("/detokenize", {"tokens": [9999]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens"),
    ],
)
def test_what_has_no_tokens_is_refused(client, path, body, param):
    response = client.post(path, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_version_and_metrics_are_there(client):
    assert client.get("/version").json()["version"]
    client.post("/v1/completions", json=COMPLETION)
    assert "recguide:" in client.get("/metrics").text


@pytest.mark.parametrize(
    "wrong", [{"models": ("",)}, {"api_keys": ("",)}, {"api_keys": ("é",)}, {"timeout_s": 0}, {"drain_s": -1}]
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ParameterError):
        ServerSettings(**wrong)
