"""One option for every sampling parameter, with the same default."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import get_type_hints

import pytest
import typer

from recguide.cli.options import fills, loading, sampling, template_arguments
from recguide.core import ParameterError, SamplingParams, Structure
from recguide.speculation.methods import METHODS


def test_every_sampling_parameter_has_an_option_with_its_default():
    """But for structures, which have one for each kind that is easily told."""
    options = set(inspect.signature(sampling).parameters)
    wanted = {field.name for field in fields(SamplingParams)}
    assert options == wanted - {"structure"} | {"json_schema", "regex"}
    assert sampling() == SamplingParams()


def test_the_help_lists_every_method():
    """By hand, because the methods' module imports torch and help must not."""
    hints = get_type_hints(sampling, include_extras=True, localns={"SamplingParams": SamplingParams})
    (option,) = hints["method"].__metadata__
    listed = option.help.rstrip(".").replace(" (the default)", "").split(", ")
    assert sorted(listed) == sorted(method.name for method in METHODS)


def test_options_become_parameters():
    params = sampling(logit_bias=["5=-2.5", "7=1"], stop=["end"], stop_token_ids=[9], n=3, method="linear")
    assert params.logit_bias == {5: -2.5, 7: 1.0}
    assert params.stop == ("end",)
    assert params.stop_token_ids == (9,)
    assert (params.n, params.method) == (3, "linear")


def test_structures_come_from_a_file_or_an_expression(tmp_path):
    file = tmp_path / "schema.json"
    file.write_text('{"type": "object"}')
    assert sampling(json_schema=file).structure == Structure("json_schema", '{"type": "object"}')
    assert sampling(regex="a+").structure == Structure("regex", "a+")
    with pytest.raises(typer.BadParameter, match="--regex"):
        sampling(json_schema=file, regex="a+")


@pytest.mark.parametrize("pair", ["5", "a=1", "1=b", "1=2=3"])
def test_a_bias_that_is_no_pair_is_refused(pair):
    with pytest.raises(typer.BadParameter, match="ID=VALUE"):
        sampling(logit_bias=[pair])


def test_a_value_out_of_range_is_refused_by_name():
    with pytest.raises(ParameterError, match="top_p"):
        sampling(top_p=1.5)


@pytest.mark.parametrize("text", ["{", "[1]", "3", "[" * 100_000, "9" * 5000])
def test_template_arguments_must_be_an_object(text):
    with pytest.raises(typer.BadParameter):
        template_arguments(text)


def test_no_adapter_is_none():
    assert loading(adapter="none").adapter is None
    assert loading().adapter == "auto"


def test_fills_replaces_a_parameter_by_its_builders_options():
    def builder(left: int, right: int = 2) -> int:
        return left + right

    def verb(name: str, *, total: NotImported) -> None:  # noqa: F821
        seen.append((name, total))

    seen: list[tuple[str, int]] = []
    command = fills(total=builder)(verb)
    assert list(inspect.signature(command).parameters) == ["name", "left", "right"]
    command(name="sum", left=1, right=5)
    assert seen == [("sum", 6)]
