import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import qwengyre.model.load as load
from qwengyre.errors import ConfigError, MachineError

RESOLVE = "import sys; from qwengyre.model.load import resolve; print(resolve(sys.argv[1], progress=print))"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def folder(cache: Path) -> Path:
    return load.resolve("tiny", cache=cache)


def one_line(error: pytest.ExceptionInfo[ConfigError], *parts: str) -> None:
    text = str(error.value)
    assert "\n" not in text
    for part in parts:
        assert part in text


def python(code: str, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, env=os.environ | env, check=False
    )


def test_tiny_is_an_ordinary_model(folder):
    model = load.causal_lm(folder)
    assert not model.training
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model.config.model_type == "qwen3"
    assert model.config.num_key_value_heads < model.config.num_attention_heads
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert load.window(folder) == 4096
    assert load.causal_lm(folder, torch.bfloat16).dtype == torch.bfloat16


def test_tiny_reads_any_text_byte_by_byte(folder):
    tokenizer = load.tokenizer(folder)
    text = "<|im_start|>user\n  café\t日本 \x00 12<|im_end|>\n"
    ids = tokenizer(text).input_ids
    assert tokenizer.decode(ids) == text
    assert len(ids) == len(text.encode()) - len("<|im_start|>") - len("<|im_end|>") + 2
    assert len(tokenizer) == load.causal_lm(folder).config.vocab_size
    assert load.eos_ids(folder) == (tokenizer.convert_tokens_to_ids("<|im_end|>"),)


def test_tiny_is_the_same_everywhere(folder, tmp_path):
    other = load.resolve("tiny", cache=tmp_path)
    assert (other / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_building_leaves_the_callers_randomness_alone(tmp_path):
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    load.resolve("tiny", cache=tmp_path)
    assert torch.equal(torch.rand(2), expected)


def test_a_built_model_is_built_once(cache, folder, monkeypatch):
    monkeypatch.setattr(load, "_build", lambda *_: pytest.fail("built again"))
    lines: list[str] = []
    assert load.resolve("tiny", cache=cache, progress=lines.append) == folder
    assert lines == []


def test_processes_that_build_at_once_share_one_build(tmp_path):
    command = [sys.executable, "-c", RESOLVE, "tiny"]
    env = os.environ | {"QWENGYRE_CACHE": str(tmp_path)}
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) for _ in range(2)]
    said = [process.communicate()[0].splitlines() for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert {lines[-1] for lines in said} == {str(tmp_path / "tiny-1")}
    assert sum(len(lines) - 1 for lines in said) == 1  # one "ready" line in all
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix != ".lock") == ["tiny-1"]


def test_resolving_a_built_model_is_light(cache, folder):
    code = f"{RESOLVE}; print(*({{'torch', 'transformers'}} & set(sys.modules)))"
    assert python(code, "tiny", QWENGYRE_CACHE=str(cache)).stdout == f"{folder}\n\n"


def test_a_build_that_dies_leaves_nothing_that_looks_complete(tmp_path):
    code = (
        "import os, sys; import qwengyre.model.load as load, qwengyre.model.tiny as tiny\n"
        "tiny._write_tokenizer = lambda folder, *_: ((folder / 'half').touch(), os.kill(os.getpid(), 9))\n"
        "load.resolve('tiny')"
    )
    assert python(code, QWENGYRE_CACHE=str(tmp_path)).returncode == -9
    assert not (tmp_path / "tiny-1").exists()
    assert list(tmp_path.glob("*/half"))
    load.resolve("tiny", cache=tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix != ".lock") == ["tiny-1"]


def test_a_build_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise MachineError("no")

    monkeypatch.setattr("qwengyre.model.tiny.tiny", fail)
    with pytest.raises(MachineError, match="no"):
        load.resolve("tiny", cache=tmp_path)
    assert [p.name for p in tmp_path.iterdir() if p.suffix != ".lock"] == []


def test_the_shipped_template_stands_in_a_built_folder(cache, folder):
    place = folder / "chat_template.jinja"
    assert place.read_bytes() == load.TEMPLATE.read_bytes()
    place.write_text("old")
    load.resolve("tiny", cache=cache)
    assert place.read_bytes() == load.TEMPLATE.read_bytes()
    text = load.tokenizer(folder).apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_of_ones_own_replaces_the_models(folder, tmp_path):
    own = tmp_path / "own.jinja"
    own.write_text("{{ messages[0].content }}!")
    loaded = load.tokenizer(folder, str(own))
    assert loaded.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi!"


def copied(folder: Path, to: Path, *, without: str = "") -> Path:
    to.mkdir()
    for file in folder.iterdir():
        if file.name != without:
            (to / file.name).write_bytes(file.read_bytes())
    return to


def test_a_local_folder_is_taken_as_it_is(folder, tmp_path):
    own = copied(folder, tmp_path / "own")
    assert load.resolve(str(own)) == own
    load.causal_lm(own)


def test_a_model_without_a_template_is_one_line(folder, tmp_path):
    own = copied(folder, tmp_path / "own", without="chat_template.jinja")
    with pytest.raises(ConfigError) as error:
        load.tokenizer(own)
    one_line(error, "no chat template", "model.chat_template")
    assert load.tokenizer(own, str(load.TEMPLATE)).chat_template


def test_a_template_that_cannot_be_read_is_one_line(folder, tmp_path):
    with pytest.raises(ConfigError) as error:
        load.tokenizer(folder, str(tmp_path / "none.jinja"))
    one_line(error, "model.chat_template=", "none.jinja", "give a jinja file")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("smollm2-135m-instruckt", ["did you mean 'smollm2-135m-instruct'?"]),
        ("/no/such/model", ["no such folder", "/no/such/model"]),
        ("./no/such/model", ["no such folder"]),
        ("../up", ["no such folder"]),
        ("", ["known: smollm2-135m-instruct, tiny"]),
    ],
)
def test_a_name_that_is_no_model_is_one_line(name, parts):
    with pytest.raises(ConfigError) as error:
        load.resolve(name)
    one_line(error, f"model.name={name}", *parts)
    assert error.value.exit_code == 2


def test_a_folder_that_is_no_model_is_one_line(tmp_path):
    with pytest.raises(ConfigError) as error:
        load.resolve(str(tmp_path))
    one_line(error, "config.json")
    with pytest.raises(ConfigError) as error:
        load.causal_lm(tmp_path)
    one_line(error, "config.json")


@pytest.mark.parametrize(("without", "what"), [("model.safetensors", "loaded"), ("tokenizer.json", "tokenizer")])
def test_an_incomplete_folder_is_one_line(folder, tmp_path, without, what):
    own = copied(folder, tmp_path / "own", without=without)
    with pytest.raises(ConfigError) as error:
        load.causal_lm(own) if without == "model.safetensors" else load.tokenizer(own)
    one_line(error, what, str(own))


def test_a_damaged_config_is_one_line(folder, tmp_path):
    own = copied(folder, tmp_path / "own")
    (own / "config.json").write_text("{")
    with pytest.raises(ConfigError) as error:
        load.window(own)
    one_line(error, "config.json is not JSON")


def test_eos_ids_are_those_of_the_model_and_the_end_of_a_turn(folder, tmp_path):
    own = copied(folder, tmp_path / "own")
    (own / "generation_config.json").write_text(json.dumps({"eos_token_id": [256, 7]}))
    assert load.eos_ids(own) == (7, 256, 258)


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(MachineError) as error:
        load.resolve("tiny", cache=tmp_path / "file" / "cache")
    one_line(error, "QWENGYRE_CACHE")


def test_the_hub_offline_is_one_line(tmp_path):
    code = (
        "from qwengyre.model.load import resolve; from qwengyre.errors import MachineError\n"
        "try: resolve('nobody/no-such-model')\n"
        "except MachineError as error: print(error)"
    )
    said = python(code, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path)).stdout.splitlines()
    assert len(said) == 1
    assert "hub cannot be reached" in said[0]
    assert "give its folder" in said[0]


@pytest.mark.parametrize(
    ("package", "name", "extra"), [("torch", "tiny", "run"), ("gguf", "smollm2-135m-instruct", "smollm2")]
)
def test_a_missing_package_names_its_extra(tmp_path, package, name, extra):
    code = (
        f"import sys; sys.modules['{package}'] = None\n"
        "from qwengyre.model.load import resolve; from qwengyre.errors import MachineError\n"
        f"try: resolve('{name}')\n"
        "except MachineError as error: print(error)"
    )
    said = python(code, QWENGYRE_CACHE=str(tmp_path)).stdout.splitlines()
    assert said == [said[0]]
    assert f"pip install 'qwengyre[{extra}]'" in said[0]
    assert list(tmp_path.glob("[!.]*")) == []


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where harnesses are installed, too (`execution/test_install.py`)."""
    monkeypatch.delenv("QWENGYRE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/there")
    assert load.default_cache() == Path("/there/qwengyre")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert load.default_cache() == Path.home() / ".cache" / "qwengyre"
    monkeypatch.setenv("QWENGYRE_CACHE", "/ours")
    assert load.default_cache() == Path("/ours")
