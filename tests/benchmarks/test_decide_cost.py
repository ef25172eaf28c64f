from __future__ import annotations

from benchmarks import decide_cost
from recguide.bench.targets import read_result


def test_it_says_what_a_choice_costs(monkeypatch, tmp_path, capsys):
    file = tmp_path / "result.json"
    monkeypatch.setattr("sys.argv", ["decide_cost", "--quick", "--output", str(file)])
    decide_cost.main()
    result = read_result(file)
    assert [row["load"] for row in result.rows] == [1, 16]
    assert all(row["decide_ms"] > 0 for row in result.rows)
    assert [target.name for target in result.targets] == ["making a policy, ms"]
    assert "decide, ms" in capsys.readouterr().out
