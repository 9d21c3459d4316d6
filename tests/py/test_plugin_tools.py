"""llama.cpp's own programs, as its releases are built, with nothing but GGML_BACKEND_PATH. tools/build-llama --shared builds
them, once: half an hour on two processors. So this belongs to `make test-all`."""

import concurrent.futures
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tarfile
import time
import urllib.request

import pytest

from test_plugin import PLUGIN, PROGRAMS, caches, pytestmark  # noqa: F401

ROOT = pathlib.Path(__file__).parents[2]
PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def tools():
    built = subprocess.run([ROOT / "tools/build-llama", "--shared"], stdout=subprocess.PIPE, text=True, check=True)
    return pathlib.Path(built.stdout.strip())


@pytest.fixture(scope="module")
def smollm2():
    fetched = subprocess.run([ROOT / "tools/fetch-model", "smollm2"], stdout=subprocess.PIPE, text=True, check=True)
    return fetched.stdout.strip()


def environment(kv):
    if kv is None:
        return dict(os.environ)
    return {**os.environ, "GGML_BACKEND_PATH": PLUGIN, "QUIRE_KV": kv, "QUIRE_STATS": "1"}


def run(command, kv, folder, **more):
    done = subprocess.run(list(map(str, command)), env={**environment(kv), **more}, cwd=folder, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, f"{command}\nstatus {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done


def all_packed(done):
    assert caches(done) and all(packed and not plain for packed, plain in caches(done)), done.stderr[-4000:]
    assert set(re.findall(r"(\d+) fallbacks", done.stderr)) == {"0"}


# ---------------------------------------------------------------- programs that end by themselves

def complete(tools, model, kv, folder, *options):
    return run([tools / "llama-completion", "-m", model, "-p", PROMPT, "-n", 24, "--temp", 0, "-no-cnv", "-t", 1,
                "-c", 1024, *options], kv, folder)


@pytest.mark.parametrize("options", [[], ["-fa", "off"], ["-ctk", "q8_0", "-ctv", "q8_0"], ["-ngl", 0], ["-ngl", 7],
                                     ["-nkvo"], ["-sm", "row"], ["--device", "none"]],
                         ids=lambda o: " ".join(map(str, o)))
def test_delegation_changes_no_text(options, tools, smollm2, tmp_path):
    assert complete(tools, smollm2, "off", tmp_path, *options).stdout == \
        complete(tools, smollm2, None, tmp_path, *options).stdout


@pytest.mark.parametrize("options", [["-fa", "off"], ["-ctk", "q8_0", "-ctv", "q8_0"], ["-ngl", 0], ["-nkvo"],
                                     ["--device", "none"]], ids=lambda o: " ".join(map(str, o)))
def test_what_cannot_be_packed_changes_no_text(options, tools, smollm2, tmp_path):
    assert complete(tools, smollm2, "k4v4", tmp_path, *options).stdout == \
        complete(tools, smollm2, None, tmp_path, *options).stdout


@pytest.mark.parametrize("kv", ["none", "k8v8", "k8v4", "k4v4"])
def test_completion(kv, tools, smollm2, tmp_path):
    done = complete(tools, smollm2, kv, tmp_path)
    all_packed(done)
    assert "Paris" in done.stdout


def test_cli(tools, smollm2, tmp_path):
    """A conversation of one page, which is raw whatever the codec: the answer is the same."""
    command = [tools / "llama-cli", "-m", smollm2, "-p", "Why is the sky blue?", "-n", 12, "--temp", 0, "-t", 1, "-c", 1024,
               "--single-turn", "--simple-io"]
    done, raw = run(command, "k4v4", tmp_path), run(command, "none", tmp_path)
    all_packed(done)

    def answer(run):
        return run.stdout.split("Why is the sky blue?")[-1].split("[ Prompt:")[0].strip()

    assert answer(done) == answer(raw) != ""


def test_layers_on_two_devices(tools, smollm2, tmp_path):
    """-ngl 7: the other layers' caches are the CPU's."""
    all_packed(complete(tools, smollm2, "k8v8", tmp_path, "-ngl", 7))


@pytest.mark.parametrize("options", [[], ["-ngl", 99, "-fit", "off"]], ids=["fit", "no fit"])
def test_a_cache_that_only_packed_fits(options, tools, smollm2, tmp_path):
    """In f16 it would take 1.3 times this machine's memory, packed .36 of it. llama.cpp's --fit must not take layers from the
    device, nor Linux refuse addresses for rows."""
    memory = sum(int(n) for n in re.findall(r"^(?:Mem|Swap)Total: *(\d+) kB", pathlib.Path("/proc/meminfo").read_text(), re.M))
    n_ctx = int(1.3 * 1024 * memory / (30 * 3 * 64 * 2 * 2))
    done = complete(tools, smollm2, "k4v4", tmp_path, "-c", n_ctx, "-b", 32, "-ub", 32, "-n", 4, *options)
    all_packed(done)
    assert "60 packed, 0 plain" in done.stderr


def test_a_context_that_shifts(tools, smollm2, tmp_path):
    all_packed(complete(tools, smollm2, "k8v8", tmp_path, "-c", 256, "-n", 400, "--context-shift", "--ignore-eos"))


def test_bench(tools, smollm2, tmp_path):
    done = run([tools / "llama-bench", "-m", smollm2, "-p", 64, "-n", 8, "-d", 128, "-r", 1, "-t", 1, "-o", "json"], "k4v4",
               tmp_path)
    all_packed(done)
    assert [row["n_depth"] for row in json.loads(done.stdout)] == [128, 128]


@pytest.mark.parametrize("kv", ["none", "k4v4"])
def test_llama_cpp_s_test_of_threads(kv, tools, smollm2, tmp_path):
    all_packed(run([tools / "test-thread-safety", "-m", smollm2, "-ngl", 99, "-p", "The meaning of life is", "-n", 24, "-c",
                    256, "-ub", 32, "-np", 4, "-t", 1], kv, tmp_path))


@pytest.mark.parametrize("kv", ["none", "k8v8"])
def test_llama_cpp_s_test_of_fragmented_states(kv, tools, smollm2, tmp_path):
    all_packed(run([tools / "test-state-restore-fragmented", "-m", smollm2, "-t", 1], kv, tmp_path))


def test_llama_cpp_s_test_of_states_on_every_architecture(tools, tmp_path):
    run([f"{PROGRAMS}/plugin_archs", "-o", tmp_path, "-s", 1], None, tmp_path)
    done = run([tools / "test-save-load-state", "--models", tmp_path, "-t", 1], "none", tmp_path)
    assert "FAIL" not in done.stdout and done.stdout.count("PASS") > 100


# ---------------------------------------------------------------- llama-server

class Server:
    def __init__(self, tools, model, kv, folder, *options):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{s.getsockname()[1]}"
        self.log = folder / "log"
        command = [tools / "llama-server", "-m", model, "-t", 1, "--port", self.url.rsplit(":", 1)[1], "--slot-save-path",
                   folder, *options]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(list(map(str, command)), env=environment(kv), cwd=folder, stdout=log,
                                            stderr=subprocess.STDOUT)

    def __enter__(self):
        while True:
            assert self.process.poll() is None, self.log.read_text(errors="replace")[-4000:]
            try:
                return self if self.ask("/health") else self
            except OSError:
                time.sleep(0.5)

    def __exit__(self, *_):
        self.process.terminate()
        assert self.process.wait() == 0, self.log.read_text(errors="replace")[-4000:]

    def ask(self, path, **body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode() if body else None,
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def chat(self, text, tokens=16):
        answer = self.ask("/v1/chat/completions", messages=[{"role": "user", "content": text}], max_tokens=tokens,
                          temperature=0)
        return answer["choices"][0]["message"]["content"]

    def report(self):
        return subprocess.CompletedProcess([], 0, "", self.log.read_text(errors="replace"))


QUESTIONS = ["What is the capital of France?", "What is 2 plus 2?", "Name a colour.", "Who wrote Hamlet?", "What is water?"]


@pytest.mark.parametrize("options", [[], ["-np", 4, "--no-kv-unified"], ["-np", 2, "--context-shift", "-n", 300]],
                         ids=lambda o: " ".join(map(str, o)) or "default")
@pytest.mark.parametrize("kv", ["none", "k8v4"])
def test_server(kv, options, tools, smollm2, tmp_path):
    with Server(tools, smollm2, kv, tmp_path, "-c", 1024, *options) as server:
        with concurrent.futures.ThreadPoolExecutor(len(QUESTIONS)) as pool:
            answers = list(pool.map(server.chat, QUESTIONS))
        assert all(answers) and "4" in answers[1]
        assert server.ask("/slots/0?action=save", filename="slot")["n_saved"] > 0
        assert server.ask("/slots/0?action=restore", filename="slot")["n_restored"] > 0
        assert "4" in server.chat(QUESTIONS[1])
        if "--context-shift" in options:
            assert server.chat("Tell me a long story.", tokens=700)
    all_packed(server.report())


def test_server_with_the_openai_client(tools, smollm2, tmp_path):
    openai = pytest.importorskip("openai")
    # Prompts are computed whole each time, in the same cells: ggml rounds products of few rows and of many differently.
    options = dict(model="smollm2", messages=[{"role": "user", "content": "Why is the sky blue?"}], max_tokens=12,
                   temperature=0, extra_body={"cache_prompt": False})
    texts = []
    for kv in ("k4v4", "none"):
        with Server(tools, smollm2, kv, tmp_path, "-np", 1) as server:
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", timeout=600)
            texts.append(client.chat.completions.create(**options).choices[0].message.content)
            parts = client.chat.completions.create(**options, stream=True)
            texts.append("".join(part.choices[0].delta.content or "" for part in parts if part.choices))
        assert " 0 fallbacks" in server.log.read_text(errors="replace")
    assert len(set(texts)) == 1 and texts[0]  # one page, which is raw whatever the codec


def test_server_with_a_draft_model(tools, smollm2, tmp_path):
    with Server(tools, smollm2, "k8v8", tmp_path, "-c", 1024, "-np", 1, "-md", smollm2, "--spec-draft-n-max", 4) as server:
        assert "4" in server.chat(QUESTIONS[1])
    all_packed(server.report())


# ---------------------------------------------------------------- llama-cpp-python

BY_PYTHON = """
import sys
from llama_cpp import Llama, _ggml
for path in sys.argv[2:]:
    _ggml.libggml.ggml_backend_load(path.encode())
model = Llama(sys.argv[1], n_gpu_layers=-1, flash_attn=True, n_ctx=1024, n_threads=1, verbose=False)
print(model(%r, max_tokens=12, temperature=0)["choices"][0]["text"])
""" % PROMPT


@pytest.mark.parametrize("by_hand", [True, False])
def test_llama_cpp_python(by_hand, tools, smollm2, tmp_path):
    """The package of the pinned sources over the same libraries. Loaded by its own call, or by GGML_BACKEND_PATH alone."""
    (sdist,) = tools.parent.glob("llama_cpp_python-*.tar.gz")
    with tarfile.open(sdist) as archive:
        prefix = sdist.name.removesuffix(".tar.gz") + "/llama_cpp/"
        for member in archive.getmembers():
            if member.name.startswith(prefix) and member.isfile():
                member.name = member.name.removeprefix(sdist.name.removesuffix(".tar.gz") + "/")
                archive.extract(member, tmp_path)
    (tmp_path / "llama_cpp/lib").symlink_to(tools)
    (tmp_path / "diskcache.py").write_text("class Cache:\n    pass\n")  # for a cache that is not used here
    script = tmp_path / "by_python.py"
    script.write_text(BY_PYTHON)
    command = [sys.executable, script, smollm2] + ([tools / "libggml-cpu.so", PLUGIN] if by_hand else [])
    more = {"PYTHONPATH": str(tmp_path), **({"GGML_BACKEND_PATH": ""} if by_hand else {})}
    done = run(command, "k8v8", tools, **more)  # ggml looks for its CPU backend in the working directory
    assert "Paris" in done.stdout
    all_packed(done)
