"""A finished run, read from its folder: everything in it is real, exact and complete."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from running import lines, qwengyre

from qwengyre.errors import JournalError
from qwengyre.gateway.journal import read_calls, rebuild
from qwengyre.model import load
from qwengyre.observe.rebuild import check
from qwengyre.types import ExecutionId

pytestmark = pytest.mark.e2e


def test_every_execution_has_its_log_journal_work_and_score(tiny_run: Path) -> None:
    scores = lines(tiny_run / "scores.jsonl")
    assert len(scores) >= 16
    for line in scores:
        execution = line["execution"]
        folder = tiny_run / "executions" / execution
        log = (folder / "harness.log").read_text()
        assert log.strip(), execution
        assert (folder / "work").is_dir()
        assert len(line["work"]) == 64
        assert line["verdict"] == "scored"
        assert 0 <= line["score"] <= 1
        calls = read_calls(tiny_run / "calls" / f"{execution}.calls")
        assert calls.sealed
        assert calls.calls


def test_two_steps_with_gradient_and_the_second_sampled_from_the_new_weights(tiny_run: Path) -> None:
    rows = lines(tiny_run / "metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 1]
    assert all(row["actor/grad_norm"] > 0 for row in rows)
    versions = {
        (ExecutionId.parse(path.stem).group in rows[1]["groups"]): {
            s.version for call in read_calls(path).calls for s in call.stretches
        }
        for path in (tiny_run / "calls").glob("*.calls")
        if ExecutionId.parse(path.stem).evaluation < 0
    }
    assert versions == {False: {0}, True: {1}}
    assert all(row["staleness/max"] == 0 for row in rows)
    summary = json.loads((tiny_run / "summary.json").read_text())
    assert (summary["steps"], summary["version"]) == (2, 2)
    assert summary["executions"]["scored"] == 16


def test_conditioning_ids_are_the_parent_path_and_the_suffix(tiny_run: Path) -> None:
    """The recorded path of a call = the tokens of its rendered request: nothing lost, nothing re-encoded."""
    tokenizer = load.tokenizer(load.resolve("tiny"))
    for path in (tiny_run / "calls").glob("*.calls"):
        tree, log = rebuild(path), read_calls(path)
        sampled = {tree.calls[row]: row for row in tree.versions}
        for call in log.calls:
            row = sampled[call.call]
            conditioning = np.concatenate([tree.path_ids(call.parent), call.suffix])
            assert np.array_equal(tree.path_ids(row), np.concatenate([conditioning, call.output]))
            messages = [{"role": m["role"], "content": m["text"]} for m in call.request["messages"]]
            text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            assert tokenizer.decode(conditioning.tolist()) == text


def test_recomputed_logprobs_agree(tiny_run: Path) -> None:
    """With the trainer's own forward, under the weights that the journal names, in fp32."""
    found = check(tiny_run)
    assert found.calls >= 16
    assert found.tokens > 100
    assert found.largest < 1e-3
    assert not found.missing


def test_other_weights_do_not_agree(tiny_run: Path, tmp_path: Path) -> None:
    """The comparison can fail: the newest checkpoint in place of the one that was sampled from."""
    run_dir = tmp_path / "run"
    shutil.copytree(tiny_run, run_dir)
    shutil.rmtree(run_dir / "checkpoints" / "step-000001")
    mark = run_dir / "checkpoints" / "step-000002" / "run.json"
    mark.write_text(json.dumps(json.loads(mark.read_text()) | {"version": 1}))
    with pytest.raises(JournalError, match="recomputed log-probs differ"):
        check(run_dir)


def test_the_checkpoint_opens_with_from_pretrained(tiny_run: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tiny_run / "checkpoints" / "step-000002"
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert AutoTokenizer.from_pretrained(folder).chat_template
    before = load.causal_lm(load.resolve("tiny"))
    pairs = zip(model.state_dict().values(), before.state_dict().values(), strict=True)
    assert any(not torch.equal(a, b) for a, b in pairs)


def test_inspect_shows_the_run_and_an_execution(tiny_run: Path) -> None:
    shown = qwengyre("inspect", str(tiny_run))
    assert shown.returncode == 0, shown.stderr
    assert "0-0" in shown.stdout
    assert "ended as configured" in shown.stdout
    one = qwengyre("inspect", str(tiny_run), "0-1")
    assert "sampled" in one.stdout
    assert "trajectory 0" in one.stdout
    missing = qwengyre("inspect", str(tiny_run), "99-9")
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)
