from __future__ import annotations

import json

import pytest


def test_policies_are_compared_at_every_load(cli):
    result = cli(
        "simulate", "-c", "1", "-c", "4", "--policy", "fixed", "--policy", "oracle", "--length", "64"
    )
    assert result.exit_code == 0, result.output
    assert result.stdout.count("fixed") == result.stdout.count("oracle") == 2


def test_json_is_one_object_with_prices_over_time(cli):
    result = cli("simulate", "-c", "2", "--policy", "price", "--texts", "8", "--length", "64", "--json")
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)["rows"]
    assert row["tokens_per_s"] > 0
    assert len(row["price"]) == row["forwards"]
    assert sum(row["verified"].values()) > 0


def test_the_hosts_time_slows_what_does_not_run_ahead_of_it(cli):
    arguments = ("-c", "4", "--policy", "ar", "--policy", "fixed", "--length", "64", "--json")
    free, busy = (
        {row["policy"]: row["tokens_per_s"] for row in json.loads(cli("simulate", *more).stdout)["rows"]}
        for more in (arguments, (*arguments, "--host", "5", "1"))
    )
    assert busy["fixed"] < 0.6 * free["fixed"]
    assert busy["ar"] > 0.8 * free["ar"]  # but where a text begins


def test_what_is_planned_ahead_does_not_wait_for_the_host(cli):
    arguments = ("-c", "4", "--policy", "fixed", "--length", "64", "--json", "--host", "5", "1")
    waiting, ahead = (
        json.loads(cli("simulate", *more).stdout)["rows"][0]["tokens_per_s"]
        for more in (arguments, (*arguments, "--host-ahead", "0", "0"))
    )
    assert ahead > 1.5 * waiting


def test_the_same_seed_says_the_same(cli):
    arguments = ("simulate", "-c", "2", "--policy", "fixed", "--arrivals", "20", "--length", "64", "--json")
    assert cli(*arguments).stdout == cli(*arguments).stdout
    assert cli(*arguments, "--seed", "1").stdout != cli(*arguments).stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--policy", "best"), "policy"),
        (("--process", "nld-1b"), "nld-8b"),
        (("--cost", "nowhere.json"), "nowhere.json"),
        (("--batching", "none"), "ragged"),
        (("-c", "0"), "load"),
        (("--host", "-1", "0"), "host"),
        (("--host-ahead", "-1", "0"), "host-ahead"),
        (("--host-newcomer", "-1"), "host-newcomer"),
        (("-c", "8", "--texts", "8", "--policy", "fixed", "--length", "64"), "raise --texts"),
    ],
)
def test_what_cannot_be_is_refused_by_name(cli, arguments, said):
    result = cli("simulate", *arguments)
    assert result.exit_code == 2
    assert said in result.output
